"""Keeping computed values for the predictors: the last few per site and branch, freed when nothing needs them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch

from accel.caches.predict import Sample
from accel.calls import Lane
from accel.report import Recorder
from accel.tensors import Tree, map_tensors, nbytes, rows


@dataclass(frozen=True)
class Entry:
    """A computed value: when, for which rows of a batch of how many."""

    step: int
    lane: Lane
    batch: int
    value: Tree


class Past:
    """The kept values of one technique, keyed by site and branch."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._entries: dict[Hashable, list[Entry]] = {}

    def keep(self, key: Hashable, entry: Entry, order: int) -> None:
        """Add a copy of ``entry`` (models may write into the original) and drop all but the last ``order``."""
        copied = Entry(entry.step, entry.lane, entry.batch, map_tensors(torch.Tensor.clone, entry.value))
        kept = self._entries.setdefault(key, [])
        kept.append(copied)
        self._recorder.cached(nbytes(copied.value))
        while len(kept) > order:
            self._recorder.cached(-nbytes(kept.pop(0).value))

    def usable(self, key: Hashable, lane: Lane) -> list[Sample]:
        """The kept samples that cover the rows of ``lane``, cut down to them, oldest first."""
        entries = self._entries.get(key, ())
        return [(e.step, _cut(e, lane)) for e in entries if e.lane is None or e.lane == lane]

    def forget(self, *keys: Hashable) -> None:
        """Free what is kept for these keys."""
        for key in keys:
            for entry in self._entries.pop(key, ()):
                self._recorder.cached(-nbytes(entry.value))

    def clear(self) -> None:
        """Free everything."""
        self.forget(*self._entries)

    def keys(self) -> list[Hashable]:
        """The keys something is kept for."""
        return list(self._entries)


def _cut(entry: Entry, lane: Lane) -> Tree:
    if lane is None or entry.lane == lane:
        return entry.value
    return rows(entry.value, entry.batch, slice(*lane))

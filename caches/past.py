"""Keeping computed values for the predictors: the last few per site and branch, freed when nothing needs them."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

from accel.caches.predict import Sample
from accel.caches.storing import Stored, store_of
from accel.calls import Lane
from accel.report import Recorder
from accel.tensors import Tree, rows


@dataclass(frozen=True)
class Entry:
    """A computed value: when, for which rows of a batch of how many."""

    step: int
    lane: Lane
    batch: int
    value: Tree


class Past:
    """The kept values of one technique, keyed by site and branch, stored as `accel.caches.storing` says."""

    def __init__(self, recorder: Recorder):
        self._recorder = recorder
        self._entries: dict[Hashable, list[tuple[Entry, Stored]]] = {}
        self._full: set[Hashable] = set()
        """What there was no room for: with values missing, the others would be predicted from as if they were newer."""

    def keep(self, key: Hashable, entry: Entry, order: int, exact: bool = False) -> None:
        """Add a copy of ``entry`` and drop all but the last ``order``; ``exact`` where it is to be compared."""
        if key in self._full:
            return
        kept = self._entries.setdefault(key, [])
        while len(kept) >= max(order, 1):
            self._drop(kept.pop(0))
        stored = store_of(self._recorder).put(entry.value, self._recorder, exact)
        if stored is None:
            self.forget(key)
            self._full.add(key)
        else:
            kept.append((replace(entry, value=None), stored))

    def count(self, key: Hashable, lane: Lane) -> int:
        """How many kept samples cover the rows of ``lane``."""
        return len(self._covering(key, lane))

    def usable(self, key: Hashable, lane: Lane) -> list[Sample]:
        """The kept samples that cover the rows of ``lane``, cut down to them, oldest first."""
        return [(e.step, stored.back(_cut(e, stored.value, lane))) for e, stored in self._covering(key, lane)]

    def forget(self, *keys: Hashable) -> None:
        """Free what is kept for these keys."""
        for key in keys:
            for each in self._entries.pop(key, ()):
                self._drop(each)

    def clear(self) -> None:
        """Free everything."""
        self.forget(*self._entries)
        self._full.clear()

    def keys(self) -> list[Hashable]:
        """The keys something is kept for."""
        return list(self._entries)

    def _covering(self, key: Hashable, lane: Lane) -> list[tuple[Entry, Stored]]:
        return [each for each in self._entries.get(key, ()) if each[0].lane is None or each[0].lane == lane]

    def _drop(self, each: tuple[Entry, Stored]) -> None:
        store_of(self._recorder).account(each[1], -1, self._recorder)


def _cut(entry: Entry, value: Tree, lane: Lane) -> Tree:
    return value if lane is None or entry.lane == lane else rows(value, entry.batch, slice(*lane))

"""Deciding for each row of a batch, from how much of what the indicator looks at has changed.

    d_t = |x_t - x_c|_1 / |x_c|_1

Where changes accumulate, c is the step before, and a row is predicted while p(d), summed over the steps since it was
computed, is below the threshold, p being a polynomial (TeaCache, arXiv:2411.19108). Where they do not, c is the step at
which the row was last computed, and d itself must be below.

Where guidance takes two calls in a step, the first decides for both: halves of one difference that are from different
steps would make a difference of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from accel.caches.past import Entry, Past
from accel.caches.table import Row
from accel.tensors import Tree, signature, tensors

Key = tuple[str, str, int]
"""Site, branch and row of the batch."""

_ABOVE = "the indicator was above the threshold"
_FIRST = "there is nothing to compare with yet"
_NO_NUMBER = "the indicator is not a number"
_FOLLOWS = "the other half of guidance was computed"
_WAITS = "the other half of guidance cannot be predicted in this step"
_STILL = "the indicator sees nothing change: it does not look at the picture, use another one or another front"


@dataclass(frozen=True)
class Limits:
    """When a row may be predicted."""

    threshold: float
    most: int
    """Predictions in a row."""
    accumulates: bool = False
    coefficients: tuple[float, ...] = ()
    """Of p, the highest power first; none: p(d) = d."""

    def measured(self, change: float) -> float:
        """p of a change."""
        if not self.coefficients:
            return change
        total = 0.0
        for coefficient in self.coefficients:
            total = total * change + coefficient
        return total


@dataclass
class _Tally:
    """What is known of one row since it was computed."""

    change: float = 0.0
    """The sum of p(d), where changes accumulate."""
    streak: int = 0


@dataclass(frozen=True)
class _Lead:
    """What the first call of a step decided for a site."""

    step: int
    branch: str
    pictures: int
    predicted: frozenset[int]


class Judge:
    """Keeps, row by row, what was seen and what was decided."""

    def __init__(self, limits: Limits, past: Past):
        self.limits, self.past = limits, past
        self.tallies: dict[Key, _Tally] = {}
        self.leads: dict[str, _Lead] = {}
        """By site."""
        self.asked: dict[tuple[str, str], int] = {}
        """The newest step of each site and branch."""

    def follows(self, site: str, branch: str, step: int, pictures: int) -> bool:
        """Has another call of this step decided already?"""
        lead = self.leads.get(site)
        return lead is not None and (lead.step, lead.pictures) == (step, pictures) and lead.branch != branch

    def decide(
        self, row: Row, step: int, keys: Sequence[Key], pictures: int, seen: Sequence[Tree] | None, refusal: str | None
    ) -> tuple[list[bool], list[str]]:
        """Which rows of a batch of ``pictures`` are predicted, and every reason for computing one after all.

        Either all rows of a picture are predicted or none. ``seen`` is what the indicator looks at, row by row;
        without it the rows are predicted whenever their table's ``row`` leaves it open. ``refusal`` is a reason to
        compute them all. Waits for a GPU, once.
        """
        reasons: list[str | None] = []
        guessed = [False] * len(keys)
        if row.predicts(step):
            reasons = [refusal] * len(keys) if refusal else self._either(row.order(step), step, keys, pictures, seen)
            stay = {key[2] % pictures for key, reason in zip(keys, reasons, strict=True) if reason}
            guessed = [key[2] % pictures not in stay for key in keys]
        site, branch = keys[0][:2]
        self.asked[site, branch] = step
        if not self.follows(site, branch, step, pictures):
            predicted = frozenset(key[2] % pictures for key, yes in zip(keys, guessed, strict=True) if yes)
            self.leads[site] = _Lead(step, branch, pictures, predicted)
        if step < row.last:
            self._note(step, keys, seen, guessed)
        return guessed, list(dict.fromkeys(filter(None, reasons)))

    def forget(self, site: str | None, branch: str) -> None:
        """Drop what is known of the rows of a branch, at one site or at all."""
        gone = [key for key in self.tallies if key[1] == branch and site in (None, key[0])]
        self.past.forget(*map(_seen, gone))
        for key in gone:
            del self.tallies[key]

    def _either(
        self, wanted: int, step: int, keys: Sequence[Key], pictures: int, seen: Sequence[Tree] | None
    ) -> list[str | None]:
        """Why each row must be computed, by what the step's first call decided, or as that call itself."""
        site, branch = keys[0][:2]
        if self.follows(site, branch, step, pictures):
            predicted = self.leads[site].predicted
            return [self._bound(wanted, key) or (None if key[2] % pictures in predicted else _FOLLOWS) for key in keys]
        stuck = {key[2] % pictures for key in self._others(site, branch, step) if self._bound(wanted, key)}
        reasons = self._reasons(wanted, keys, seen)
        return [r or (_WAITS if key[2] % pictures in stuck else None) for key, r in zip(keys, reasons, strict=True)]

    def _others(self, site: str, branch: str, step: int) -> list[Key]:
        """Rows of the branches that come later in a step; not of one that has stayed away for some steps."""
        lately = step - self.limits.most - 1
        newest = {key: self.asked.get(key[:2], -1) for key in self.tallies if key[0] == site and key[1] != branch}
        return [key for key, at in newest.items() if at >= lately]

    def _reasons(self, wanted: int, keys: Sequence[Key], seen: Sequence[Tree] | None) -> list[str | None]:
        """Why each row must be computed, ``None`` where it may be predicted."""
        reasons = [self._bound(wanted, key) for key in keys]
        if seen is None or all(reasons):
            return reasons
        changes = self._changes(keys, seen)
        return [reason or self._weigh(key, change) for key, reason, change in zip(keys, reasons, changes, strict=True)]

    def _bound(self, wanted: int, key: Key) -> str | None:
        """Why a row must be computed whatever the indicator says."""
        if self.past.count(key, None) < wanted:
            return f"fewer than {wanted} computed values to predict from"
        full = self._tally(key).streak >= self.limits.most
        return f"{self.limits.most} steps in a row were predicted" if full else None

    def _changes(self, keys: Sequence[Key], seen: Sequence[Tree]) -> list[float | None]:
        """d of each row; ``None`` where there is nothing to compare with."""
        kept = [self.past.usable(_seen(key), None) for key in keys]
        pairs = [(now, then[-1][1]) for now, then in zip(seen, kept, strict=True) if then]
        found = iter(torch.stack([change(*both) for both in pairs]).tolist() if pairs else ())
        return [next(found) if then else None for then in kept]

    def _weigh(self, key: Key, change: float | None) -> str | None:
        if change is None:
            return _FIRST
        if math.isnan(change):
            return _NO_NUMBER
        if change == 0:
            return _STILL
        measured, tally = self.limits.measured(change), self._tally(key)
        if self.limits.accumulates:
            tally.change = measured = tally.change + measured
        return None if measured < self.limits.threshold else _ABOVE

    def _note(self, step: int, keys: Sequence[Key], seen: Sequence[Tree] | None, guessed: Sequence[bool]) -> None:
        for i, (key, predicted) in enumerate(zip(keys, guessed, strict=True)):
            tally = self._tally(key)
            tally.streak = tally.streak + 1 if predicted else 0
            tally.change = tally.change if predicted else 0.0
            if seen is not None and (self.limits.accumulates or not predicted):
                self.past.keep(_seen(key), Entry(step, None, 1, seen[i]), 1, exact=True)

    def _tally(self, key: Key) -> _Tally:
        return self.tallies.setdefault(key, _Tally())


def change(now: Tree, then: Tree) -> torch.Tensor:
    """|now - then|_1 / |then|_1 over all numbers of both, as a tensor without dimensions; ``nan`` for other shapes."""
    if signature(now) != signature(then):
        return torch.tensor(math.nan, device=next(tensors(now)).device)
    pairs = [(a.float(), b.float()) for a, b in zip(tensors(now), tensors(then), strict=True) if a.is_floating_point()]
    off = torch.stack([(a - b).abs().sum() for a, b in pairs]).sum()
    return off / torch.stack([b.abs().sum() for _, b in pairs]).sum()


def _seen(key: Key) -> tuple[str, str, int]:
    return f"seen before {key[0]}", key[1], key[2]

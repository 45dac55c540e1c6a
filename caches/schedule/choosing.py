"""Choosing which cells to predict from what each of them does to the final sample.

A *gap* is a stretch of predicted steps of one row. With v_g the change of the final sample x when only gap g is
predicted, several of them change it, to first order, by the sum of theirs. Changes have signs and may cancel, so what
counts is not how large each is but the Gram matrix G of them:

    |x(gaps) - x|² ≈ |sum of v_g|² = c'G c        c_g = 1 where g is chosen

The choice begins with nothing and makes, again and again, the change that costs the least squared error per work
saved: a gap more, or one in the place of those that it touches; touching gaps are one long gap, measured by itself.
When there is no more room, gaps are exchanged for better ones as long as that helps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_ROUNDING = 1e-9

Errors = Callable[[Tensor], bool]
"""Are the squared errors ``(prompts,)`` small enough?"""


@dataclass(frozen=True)
class Gap:
    """``length`` predicted steps of ``row`` from ``start`` on, between computed ones."""

    row: str
    start: int
    length: int
    saving: float
    """Work that it saves, in any unit."""

    @property
    def stop(self) -> int:
        """The first step after it."""
        return self.start + self.length

    def touches(self, other: Gap) -> bool:
        """Do both lie on a common step, or side by side?"""
        return self.row == other.row and self.start <= other.stop and other.start <= self.stop


def gaps(row: str, steps: int, saving: float, before: int, longest: int) -> list[Gap]:
    """All gaps of up to ``longest`` steps, each step saving ``saving``, after at least ``before`` computed ones.

    The last step is always computed.
    """
    return [
        Gap(row, start, length, length * saving)
        for start in range(before, steps - 1)
        for length in range(1, min(longest, steps - 1 - start) + 1)
    ]


def cells(chosen: Sequence[Gap], rows: Sequence[str], steps: int) -> dict[str, str]:
    """``1`` (compute) and ``0`` (predict) by row."""
    predicted = {(gap.row, step) for gap in chosen for step in range(gap.start, gap.stop)}
    return {row: "".join("10"[(row, step) in predicted] for step in range(steps)) for row in rows}


def gram(changes: Tensor) -> Tensor:
    """Mean products ``(prompts, gaps, gaps)`` of the changes ``(prompts, gaps, numbers)`` of samples."""
    return changes.double() @ changes.double().mT / changes.shape[-1]


def error(products: Tensor, chosen: Sequence[int]) -> Tensor:
    """Mean squared error of each prompt's sample, ``(prompts,)``, to first order: c'G c."""
    return products[:, chosen][:, :, chosen].sum((1, 2)).clamp_min(0.0)


def choose(candidates: Sequence[Gap], products: Tensor, enough: Errors, goal: float | None = None) -> list[int]:
    """Numbers of the gaps to predict.

    Args:
        candidates: What may be chosen.
        products: From `gram`, in their order.
        enough: Whether errors are small enough; nothing is chosen that makes them too large.
        goal: Work after which nothing more needs to be saved; by default as much as ``enough`` allows.
    """
    choice = _Choice(candidates, products, enough)
    chosen: list[int] = []
    while True:
        while (goal is None or choice.saved(chosen) < goal) and (more := choice.grown(chosen)):
            chosen = more
        better = choice.exchanged(chosen)
        if better is None:
            return sorted(chosen)
        chosen = better


@dataclass(frozen=True)
class _Choice:
    """The changes that can be made to a choice."""

    candidates: Sequence[Gap]
    products: Tensor
    enough: Errors

    def saved(self, chosen: Sequence[int]) -> float:
        """Work that it saves."""
        return sum(self.candidates[i].saving for i in chosen)

    def grown(self, chosen: list[int]) -> list[int] | None:
        """With one gap more at the least squared error added per work saved (below zero where errors cancel)."""
        now, saved = self._off(chosen), self.saved(chosen)
        moves = [self._with(chosen, new) for new in range(len(self.candidates))]
        more = [move for move in moves if self.saved(move) > saved and self.enough(error(self.products, move))]
        return min(more, key=lambda move: (self._off(move) - now) / (self.saved(move) - saved), default=None)

    def exchanged(self, chosen: list[int]) -> list[int] | None:
        """With another gap instead of one: saving no less, and closer by more than rounding; ``None`` if none is."""
        now, saved = self._off(chosen), self.saved(chosen)
        outside = [new for new in range(len(self.candidates)) if new not in chosen]
        moves = [self._with([i for i in chosen if i != old], new) for old in chosen for new in outside]
        better = [move for move in moves if self.saved(move) >= saved and self._off(move) < now * (1 - _ROUNDING)]
        return min(filter(lambda move: self.enough(error(self.products, move)), better), key=self._off, default=None)

    def _with(self, chosen: list[int], new: int) -> list[int]:
        """With ``new`` in it, and without what that touches."""
        return [*(old for old in chosen if not self.candidates[old].touches(self.candidates[new])), new]

    def _off(self, chosen: Sequence[int]) -> float:
        return float(error(self.products, chosen).mean())


def decibels(errors: Tensor) -> float:
    """Mean PSNR of samples with these mean squared errors, relative to a peak of one; infinite where all are zero."""
    return float(-10 * torch.log10(errors).mean())

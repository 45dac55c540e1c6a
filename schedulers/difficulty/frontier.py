"""Ways to choose step counts, each as a curve of mean steps against the share of good pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from accel.measure.intervals import Rows
from accel.schedulers.difficulty.curves import log_counts
from accel.schedulers.difficulty.model import choose
from accel.schedulers.difficulty.ridge import Array, Index, Mask

_KNOBS = 60
"""Positions of the knob that trades steps for quality."""

_SHUFFLES = 20


@dataclass(frozen=True)
class Way:
    """A way to choose, at every position of its knob, from few steps to many.

    Attributes:
        name: For the table.
        steps: ``(P, K)``, mean steps of each prompt's pictures.
        good: ``(P, K)``, share of each prompt's pictures that are good enough.
    """

    name: str
    steps: Array
    good: Array

    def needs(self, target: float, rows: Rows | slice = slice(None), mixed: bool = True) -> float:
        """Mean steps for a share of ``target`` good pictures among ``rows``; ``nan`` where no position reaches it.

        The curve is read from its upper end down to where it first falls below the target, so that a lucky position
        further down does not count. Between two positions pictures are dealt out at random to both (``mixed``).
        """
        steps, good = self.steps[rows].mean(0), self.good[rows].mean(0)
        below = np.flatnonzero(good < target)
        last = int(below[-1]) if len(below) else -1
        if last == len(good) - 1:
            return float("nan")
        if last < 0 or not mixed:
            return float(steps[last + 1])
        share = (target - good[last]) / (good[last + 1] - good[last])
        return float(steps[last] + share * (steps[last + 1] - steps[last]))


def constant(good: Mask, counts: Sequence[int], name: str = "constant") -> Way:
    """The same count for every prompt; between two counts a random mixture of both.

    Args:
        good: ``(P, S, N)``.
        counts: N.
        name: For the table.
    """
    return Way(name, np.tile(np.asarray(counts, float), (len(good), 1)), good.mean(1))


def expected(difficulty: Array, good: Mask, counts: Sequence[int], name: str) -> Way:
    """More steps for prompts of more ``difficulty (P,)``, which is on the scale of log N."""
    knobs = np.linspace(*_span(difficulty, counts), _KNOBS)
    index = choose(difficulty[:, None] + knobs, counts)
    return Way(name, np.asarray(counts, float)[index], np.take_along_axis(good.mean(1), index, axis=1))


def shuffled(difficulty: Array, good: Mask, counts: Sequence[int], seed: int = 0) -> Way:
    """The same predictions dealt out to the wrong prompts: what the predictor's spread costs when it knows nothing."""
    draw = np.random.default_rng(seed)
    ways = [expected(draw.permutation(difficulty), good, counts, "") for _ in range(_SHUFFLES)]
    return Way("shuffled predictor", *(np.mean([getattr(way, part) for way in ways], 0) for part in ("steps", "good")))


def oracle(good: Mask, counts: Sequence[int], name: str, learnt: Mask | None = None) -> Way:
    """The best that knowing success beforehand can do: for each row ``max success - λ steps``, λ being the knob.

    Args:
        good: ``(P, S, N)``; counted are prompts with all their pictures together.
        counts: N.
        name: For the table.
        learnt: Pictures ``(P, S', N)`` of the same prompts that the choice is made by instead.
    """
    curve = (good if learnt is None else learnt).mean(1)
    index = _priced(curve, counts)
    return Way(name, np.asarray(counts, float)[index], np.take_along_axis(good.mean(1), index, axis=1))


def oracle_of_pictures(good: Mask, counts: Sequence[int], name: str) -> Way:
    """As `oracle`, each picture on its own: the end of the scale."""
    prompts, seeds, _ = good.shape
    single = good.reshape(prompts * seeds, -1)
    index = _priced(single.astype(float), counts)
    steps, right = np.asarray(counts, float)[index], np.take_along_axis(single, index, axis=1)
    return Way(name, *(values.reshape(prompts, seeds, -1).mean(1) for values in (steps, right.astype(float))))


def _priced(curve: Array, counts: Sequence[int]) -> Index:
    """``(rows, N)`` success to the index ``(rows, K)`` of the best count at each price of a step, dear to cheap."""
    prices = np.geomspace(1.0, 1e-4, _KNOBS)
    worth = curve[:, None] - prices[:, None] * np.asarray(counts, float)
    return np.asarray(worth.argmax(-1))


def _span(difficulty: Array, counts: Sequence[int]) -> tuple[float, float]:
    """Knob positions at which everything gets the fewest, and everything the most steps."""
    steps, margin = log_counts(counts), 1e-6
    return float(steps[0] - difficulty.max() - margin), float(steps[-1] - difficulty.min() + margin)


def halves(good: Mask) -> tuple[Mask, Mask]:
    """The pictures of each prompt in two halves, in turns."""
    return good[:, ::2], good[:, 1::2]


def joined(first: Way, second: Way) -> Way:
    """Two ways over the same prompts as one: the mean of both."""
    return Way(first.name, (first.steps + second.steps) / 2, (first.good + second.good) / 2)

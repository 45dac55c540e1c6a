"""The cells of a schedule at another number of steps."""

from __future__ import annotations

from bisect import bisect_right
from fractions import Fraction
from itertools import pairwise
from math import floor


def stretch(cells: str, steps: int) -> str:
    """``cells`` (one character per step, the first of them ``1``) for a run of ``steps`` steps.

    Kept is the *share* of computed steps around each fraction of the run. N(x) is the number of computed steps before
    step x of the original, growing evenly from each of them to the next; with its n steps, step j of m is computed when

        floor(m/n · N(j n/m)) > floor(m/n · N((j - 1) n/m))

    The first step is always computed, the last one if it was, and no stretch of predicted steps is longer than the
    longest of the original. What is *not* kept is the error: with half the steps each prediction spans twice the time.
    """
    if steps == len(cells):
        return cells
    computed = [step for step, cell in enumerate(cells) if cell == "1"]
    ends = [*computed[1:], len(cells)]
    scale = Fraction(steps, len(cells))

    def before(step: int) -> int:
        place = step / scale
        last = bisect_right(computed, place) - 1
        return floor(scale * (last + (place - computed[last]) / (ends[last] - computed[last])))

    marks = [before(step) for step in range(steps)]
    stretched = "1" + "".join("01"[later > earlier] for earlier, later in pairwise(marks))
    return stretched[:-1] + "1" if cells[-1] == "1" else stretched

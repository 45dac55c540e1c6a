"""Where the objects of a scene stand: boxes on the 64 by 64 picture, drawn from a random generator."""

from __future__ import annotations

import random

from accel.tiny.world import PLACES, SIZE

Box = tuple[int, int, int]
"""Centre x, centre y and edge of an object in pixels."""

_SIZES = {None: (30, 40), "big": (46, 54), "small": (20, 24)}
_GRID = (12, 32, 52)

_TWO = ((17, 18), (47, 18))
_ROW = ((11, 18), (32, 18), (53, 18))
_BELOW = ((32, 46),)
_FOUR = ((17, 17), (47, 17), (17, 47), (47, 47))
_ARRANGEMENTS: dict[tuple[int, ...], tuple[tuple[tuple[tuple[int, int], ...], tuple[int, int]], ...]] = {
    (2,): ((((17, 32), (47, 32)), (23, 28)), (((18, 18), (46, 46)), (23, 28))),
    (3,): ((_TWO + _BELOW, (22, 26)), (((11, 32), (32, 32), (53, 32)), (18, 19))),
    (4,): ((_FOUR, (22, 26)),),
    (2, 1): ((_TWO + _BELOW, (22, 26)),),
    (1, 2): ((_BELOW + _TWO, (22, 26)),),
    (3, 1): ((_ROW + _BELOW, (18, 19)),),
    (1, 3): ((_BELOW + _ROW, (18, 19)),),
    (2, 2): ((_FOUR, (22, 26)),),
}
# Group sizes -> (centres, range of edges); flipping and turning gives the other arrangements.


def _fit(x: float, y: float, size: int) -> Box:
    """The box moved inwards until it lies inside the picture with one pixel to spare."""
    low, high = size // 2 + 1, SIZE - 1 - (size + 1) // 2
    return (min(max(round(x), low), high), min(max(round(y), low), high), size)


def alone(rng: random.Random, scale: str | None) -> Box:
    """A single object near the middle, in one of three stated sizes."""
    jitter = {None: 8, "big": 4, "small": 14}[scale]
    x, y = (32 + rng.randint(-jitter, jitter) for _ in range(2))
    return _fit(x, y, rng.randint(*_SIZES[scale]))


def in_place(rng: random.Random, place: str, *, crowded: bool = False) -> Box:
    """An object at a named place; ``crowded`` keeps it small enough for all nine places."""
    column, row = PLACES[place]
    size = rng.randint(19, 21) if crowded else rng.randint(22, 28)
    return _fit(_GRID[column] + rng.randint(-1, 1), _GRID[row] + rng.randint(-1, 1), size)


def pair(rng: random.Random, sideways: bool) -> tuple[Box, ...]:
    """Two objects, the first one left of (``sideways``) or above the second."""
    size = rng.randint(24, 29)
    boxes = []
    for along in (17, 47):
        x, y = along + rng.randint(-2, 2), 32 + rng.randint(-6, 6)
        boxes.append(_fit(x, y, size) if sideways else _fit(y, x, size))
    return tuple(boxes)


def groups(rng: random.Random, counts: tuple[int, ...]) -> list[tuple[Box, ...]]:
    """One or two groups of equal objects; each group stays together.

    Args:
        rng: Source of the free choices.
        counts: Size of each group, a key of the table of arrangements: four objects at most.
    """
    spots, (low, high) = rng.choice(_ARRANGEMENTS[counts])
    size = rng.randint(low, high)
    flip, turn = rng.random() < 0.5, rng.random() < 0.5
    boxes = []
    for x, y in spots:
        y = SIZE - y if flip else y
        x, y = (y, x) if turn else (x, y)
        boxes.append(_fit(x + rng.randint(-2, 2), y + rng.randint(-2, 2), size))
    ends = [sum(counts[: i + 1]) for i in range(len(counts))]
    return [tuple(boxes[end - n : end]) for n, end in zip(counts, ends, strict=True)]

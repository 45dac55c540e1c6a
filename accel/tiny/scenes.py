"""Seeded scenes with exact facts: what stands where, on which background, and how it is said.

`make_scene` draws one scene of the grammar from a seed; `Scene.caption` says it in words and
`accel.tiny.render.render` paints it. Compositions are split once and for all into a training and
a held-out part by a stable hash, so that pictures can be judged on combinations never trained on.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

from accel.tiny import layout
from accel.tiny.world import (
    BACKGROUNDS,
    COLOURS,
    LANDSCAPES,
    NUMBERS,
    PLACES,
    SHAPES,
    SPRITES,
    background_phrase,
    plural,
    shape_name,
    split_name,
    visible,
)

HELD_OUT_SHARE = 10
"""One composition in this many is held out."""

RELATIONS = ("to the left of", "above")

_PLACE_WORDS = {
    "top": "at the top",
    "left": "on the left",
    "center": "in the center",
    "right": "on the right",
    "bottom": "at the bottom",
}
_KINDS = ("single", "pair", "count", "mixed", "placed")
_KIND_WEIGHTS = (42, 25, 13, 13, 7)


@dataclass(frozen=True)
class SceneObject:
    """One mentioned thing: ``count`` equal objects.

    Attributes:
        name: An entry of `accel.tiny.world.NAMES`, for example ``"red star"``.
        count: How many of them, 1 to 4.
        boxes: ``(x, y, size)`` per object: centre and edge in pixels.
        scale: ``"big"``, ``"small"`` or ``None`` where the caption does not say.
        place: A key of `accel.tiny.world.PLACES`, or ``None`` where the caption does not say.
    """

    name: str
    count: int
    boxes: tuple[layout.Box, ...]
    scale: str | None = None
    place: str | None = None

    @property
    def colour(self) -> str | None:
        """Stated colour, ``None`` for an emoji."""
        return split_name(self.name)[0]

    @property
    def noun(self) -> str:
        """Shape or emoji without its colour."""
        return split_name(self.name)[1]

    @property
    def phrase(self) -> str:
        """The words for this object, for example ``"a big red star"``."""
        if self.count > 1:
            return f"{NUMBERS[self.count]} {plural(self.name)}"
        body = f"{self.scale} {self.name}" if self.scale else self.name
        article = "an" if body[0] in "aeiou" else "a"
        where = f" {_PLACE_WORDS.get(self.place, self.place)}" if self.place else ""
        return f"{article} {body}{where}"


@dataclass(frozen=True)
class Scene:
    """A scene and its facts.

    Attributes:
        objects: The mentioned things, in the order of the caption.
        background: A key of `BACKGROUNDS` or `LANDSCAPES`.
        background_stated: Whether the caption names the background.
        relation: An entry of `RELATIONS` between the first and the second object, or ``None``.
        seed: Seed of the scenery's free details (hills, stars of the night sky).
    """

    objects: tuple[SceneObject, ...]
    background: str
    background_stated: bool
    relation: str | None
    seed: int

    @property
    def caption(self) -> str:
        """The prompt that states every stated fact."""
        phrases = [item.phrase for item in self.objects]
        if self.relation:
            text = f"{phrases[0]} {self.relation} {phrases[1]}"
        elif len(phrases) > 1:
            text = f"{', '.join(phrases[:-1])} and {phrases[-1]}"
        else:
            text = phrases[0]
        return f"{text} {background_phrase(self.background)}" if self.background_stated else text

    @property
    def composition(self) -> str:
        """What the split is made on: the counted objects, plus the background where there is one kind."""
        counted = sorted(f"{item.count} {item.name}" for item in self.objects)
        if len(counted) == 1:
            counted.append(f"on {self.background}")
        return " + ".join(counted)

    @property
    def held_out(self) -> bool:
        """Whether this composition belongs to the held-out part (stable across machines)."""
        return zlib.crc32(self.composition.encode()) % HELD_OUT_SHARE == 0


def make_scene(seed: int, *, held_out: bool | None = False) -> Scene:
    """Draw the scene of ``seed``.

    Args:
        seed: Any integer; the same seed gives the same scene everywhere.
        held_out: ``False`` draws training compositions, ``True`` held-out ones, ``None`` either.
    """
    rng = random.Random(seed)
    while True:
        scene = _draw(rng)
        if held_out is None or scene.held_out is held_out:
            return scene


def _draw(rng: random.Random) -> Scene:
    kind = rng.choices(_KINDS, _KIND_WEIGHTS)[0]
    background = _draw_background(rng)
    relation = None
    if kind == "single":
        objects = _single(rng, background)
    elif kind == "pair":
        relation = rng.choice((None, None, *RELATIONS))
        objects = _pair(rng, background, relation)
    elif kind == "count":
        objects = _groups(rng, background, (rng.choice((2, 3, 4)),))
    elif kind == "mixed":
        objects = _groups(rng, background, rng.choice(((2, 1), (1, 2), (3, 1), (1, 3), (2, 2))))
    else:
        objects = _placed(rng, background)
    stated = rng.random() < (0.6 if background in BACKGROUNDS else 0.85)
    return Scene(objects, background, stated, relation, rng.getrandbits(30))


def _draw_background(rng: random.Random) -> str:
    if rng.random() < 0.75:
        return rng.choice(tuple(BACKGROUNDS))
    return rng.choice(tuple(LANDSCAPES))


def _draw_names(rng: random.Random, background: str, count: int) -> list[str]:
    names: list[str] = []
    while len(names) < count:
        if rng.random() < 0.6:
            name = shape_name(rng.choice(tuple(COLOURS)), rng.choice(SHAPES))
        else:
            name = rng.choice(tuple(SPRITES))
        if name not in names and visible(name, background):
            names.append(name)
    return names


def _single(rng: random.Random, background: str) -> tuple[SceneObject, ...]:
    (name,) = _draw_names(rng, background, 1)
    scale = rng.choices((None, "big", "small"), (60, 20, 20))[0]
    place = rng.choice(tuple(PLACES)) if scale is None and rng.random() < 0.15 else None
    box = layout.in_place(rng, place) if place else layout.alone(rng, scale)
    return (SceneObject(name, 1, (box,), scale, place),)


def _pair(rng: random.Random, background: str, relation: str | None) -> tuple[SceneObject, ...]:
    names = _draw_names(rng, background, 2)
    sideways = rng.random() < 0.5 if relation is None else relation == RELATIONS[0]
    boxes = layout.pair(rng, sideways)
    if relation is None and rng.random() < 0.5:
        boxes = boxes[::-1]
    return tuple(SceneObject(name, 1, (box,)) for name, box in zip(names, boxes, strict=True))


def _groups(rng: random.Random, background: str, counts: tuple[int, ...]) -> tuple[SceneObject, ...]:
    names = _draw_names(rng, background, len(counts))
    groups = layout.groups(rng, counts)
    return tuple(SceneObject(name, count, boxes) for name, count, boxes in zip(names, counts, groups, strict=True))


def _placed(rng: random.Random, background: str) -> tuple[SceneObject, ...]:
    count = rng.choices((3, 4, 5), (60, 25, 15))[0]
    names = _draw_names(rng, background, count)
    places = rng.sample(tuple(PLACES), count)
    return tuple(
        SceneObject(name, 1, (layout.in_place(rng, place, crowded=True),), place=place)
        for name, place in zip(names, places, strict=True)
    )

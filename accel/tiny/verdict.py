"""Which stated facts of a scene hold among the objects that were found in a picture."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from accel.tiny.scenes import RELATIONS, Scene, SceneObject
from accel.tiny.world import PLACES, SIZE

_SMALL, _BIG = 27.0, 43.0
_CLEARLY = SIZE / 8


@dataclass(frozen=True)
class Found:
    """An object seen in a picture.

    Attributes:
        noun: Shape or emoji; ``None`` for something that is none of the world's objects.
        colour: Colour of a shape; ``None`` for an emoji.
        x: Centre in pixels from the left.
        y: Centre in pixels from the top.
        size: Edge in pixels.
        confidence: How clearly it is an object, 0 to 1.
    """

    noun: str | None
    colour: str | None
    x: float
    y: float
    size: float
    confidence: float

    def overlaps(self, other: Found) -> bool:
        """Whether the centres are too close for two objects."""
        apart = max(abs(self.x - other.x), abs(self.y - other.y))
        return apart < 0.25 * (self.size + other.size)


@dataclass(frozen=True)
class Reading:
    """What is seen in a picture: its objects, clearest first, and its background."""

    objects: tuple[Found, ...]
    background: str


@dataclass(frozen=True)
class Verdict:
    """Which stated facts hold; ``None`` where the caption states none of the kind.

    Attributes:
        noun: Every object asked for is there, whatever its colour and number.
        colour: Every shape has its stated colour.
        count: Everything is there exactly as often as stated, and nothing else is there.
        scale: "Big" is at least 43 pixels, "small" at most 27.
        place: Every placed object stands in its ninth of the picture.
        relation: The first object is left of, or above, the second, by at least 8 pixels.
        background: As stated.
    """

    noun: bool
    colour: bool | None
    count: bool
    scale: bool | None
    place: bool | None
    relation: bool | None
    background: bool | None

    @property
    def facts(self) -> dict[str, bool]:
        """The stated kinds of facts and whether they hold."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    @property
    def all_right(self) -> bool:
        """Whether every stated fact holds."""
        return all(self.facts.values())


def judge(reading: Reading, scene: Scene) -> Verdict:
    """Compare what is seen with what was asked for."""
    groups, extra = _assign(list(reading.objects), scene.objects)
    pairs = list(zip(scene.objects, groups, strict=True))
    coloured = [(item, group) for item, group in pairs if item.colour]
    scaled = [(item, group) for item, group in pairs if item.scale]
    placed = [(item, group) for item, group in pairs if item.place]
    return Verdict(
        noun=all(any(each.noun == item.noun for each in group) for item, group in pairs),
        colour=_all(bool(group) and all(e.colour == item.colour for e in group) for item, group in coloured),
        count=not extra and all(len(group) == item.count for item, group in pairs),
        scale=_all(bool(group) and all(_has_scale(e, item.scale) for e in group) for item, group in scaled),
        place=_all(bool(group) and all(_in_place(e, item.place) for e in group) for item, group in placed),
        relation=_related(scene.relation, groups) if scene.relation else None,
        background=reading.background == scene.background if scene.background_stated else None,
    )


def _all(facts: Iterable[bool]) -> bool | None:
    """Whether all hold; ``None`` where there are none."""
    known = list(facts)
    return all(known) if known else None


def _assign(found: list[Found], asked: tuple[SceneObject, ...]) -> tuple[list[list[Found]], list[Found]]:
    """Share out the objects among the mentions; returns a group per mention and the rest.

    An object goes to the mention it fits best: same noun and colour, then same noun, then the same
    colour. An object that fits nothing stands for a mention of which nothing is there, so that a
    wrong object is one wrong fact and not three.
    """
    groups: list[list[Found]] = [[] for _ in asked]
    for exact in (True, False):
        for group, item in zip(groups, asked, strict=True):
            fitting = [e for e in found if e.noun == item.noun and (e.colour == item.colour or not exact)]
            _move(fitting, found, group, item)
    for alike in (True, False):
        for group, item in zip(groups, asked, strict=True):
            if not group:
                fitting = [e for e in found if e.colour == item.colour or not alike]
                _move(sorted(fitting, key=lambda e: not _in_place(e, item.place)), found, group, item)
    return groups, found


def _move(fitting: list[Found], found: list[Found], group: list[Found], item: SceneObject) -> None:
    """Take what ``item`` still lacks out of ``found``."""
    for each in fitting[: item.count - len(group)]:
        found.remove(each)
        group.append(each)


def _has_scale(found: Found, scale: str | None) -> bool:
    return found.size >= _BIG if scale == "big" else found.size <= _SMALL


def _in_place(found: Found, place: str | None) -> bool:
    """Whether the centre lies in the named ninth of the picture; anywhere will do for no name."""
    if place is None:
        return True
    return PLACES[place] == (int(3 * found.x // SIZE), int(3 * found.y // SIZE))


def _related(relation: str, groups: list[list[Found]]) -> bool:
    """Whether all of the first mention's objects are left of (or above) all of the second's."""
    if not groups[0] or not groups[1]:
        return False
    sideways = relation == RELATIONS[0]
    first, second = ([e.x if sideways else e.y for e in group] for group in groups[:2])
    return max(first) + _CLEARLY <= min(second)

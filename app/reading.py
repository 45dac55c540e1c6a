"""What the bundled reader sees in a picture, in words, and which facts of a known prompt hold there."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING, Any

from accel.tiny.prompts import prompts
from accel.tiny.scenes import Scene
from accel.tiny.world import NUMBERS, SIZE, background_phrase, plural, shape_name

if TYPE_CHECKING:
    from torch import Tensor

    from accel.tiny.verdict import Found

_KNOWN = 24
"""Bundled prompts of each difficulty whose facts can be told."""


@cache
def known() -> dict[str, Scene]:
    """Caption → scene of the bundled prompts that the page offers as examples."""
    sets = [prompts(difficulty, _KNOWN) for difficulty in ("one", "two", "many")]
    return {scene.caption: scene for together in zip(*sets, strict=True) for scene in together}


@cache
def _reader() -> Any:
    from accel.tiny import reader

    return reader.load()


def says(picture: Tensor, prompt: str) -> dict[str, Any] | None:
    """What is ``seen`` in a picture ``(3, 64, 64)``, and the ``facts`` that a known prompt states: kind → does it hold.

    ``None`` for other sizes, which the reader does not know.
    """
    if tuple(picture.shape) != (3, SIZE, SIZE):
        return None
    pictures = picture[None].clamp(0, 1)
    (reading,) = _reader().read(pictures)
    scene = known().get(prompt)
    facts = _reader().judge(pictures, [scene])[0].facts if scene else {}
    return {"seen": in_words(reading.objects, reading.background), "facts": facts}


def in_words(objects: tuple[Found, ...], background: str) -> str:
    """``"2 red stars, a panda at night"``."""
    counted = Counter((each.colour, each.noun) for each in objects)
    named = [_named(count, colour, noun) for (colour, noun), count in counted.items()]
    return f"{', '.join(named) or 'nothing it knows'} {background_phrase(background)}"


def _named(count: int, colour: str | None, noun: str | None) -> str:
    if noun is None:
        return "something" if count == 1 else f"{count} unknown things"
    try:
        name = shape_name(colour, noun) if colour else noun
        many = plural(name)
    except KeyError:  # a colour on an emoji, or none on a shape: not a thing of its world
        name, many = noun, f"{noun}s"
    if count == 1:
        return f"{'an' if name[0] in 'aeiou' else 'a'} {name}"
    return f"{NUMBERS.get(count, count)} {many}"

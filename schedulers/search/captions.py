"""From a prompt of the bundled grammar to the scene that it states: the inverse of a scene's caption."""

from __future__ import annotations

import functools
import re

from accel.errors import AccelError
from accel.tiny.scenes import RELATIONS, Scene, SceneObject
from accel.tiny.world import BACKGROUNDS, LANDSCAPES, NAMES, NUMBERS, PLACES, background_phrase


def scene_of(caption: str) -> Scene:
    """The scene with this caption; what the caption does not say is not stated.

    Raises:
        AccelError: where it is no caption of the bundled grammar.
    """
    text = caption.strip()
    background = next(
        (name for name in (*BACKGROUNDS, *LANDSCAPES) if text.endswith(f" {background_phrase(name)}")), None
    )
    bare = text.removesuffix(f" {background_phrase(background)}") if background else text
    relation = next((each for each in RELATIONS if f" {each} " in bare), None)
    phrases = bare.split(f" {relation} ") if relation else re.split(", | and ", bare)
    if unknown := [phrase for phrase in phrases if phrase not in _objects()]:
        raise AccelError(
            f"the bundled reader cannot tell whether a picture shows {unknown[0]!r}: write like 'two green squares and "
            "a red star on a blue background', or name another verifier"
        )
    objects = tuple(_objects()[phrase] for phrase in phrases)
    scene = Scene(objects, background or next(iter(BACKGROUNDS)), background is not None, relation, seed=0)
    if scene.caption != text:
        raise AccelError(f"the bundled reader reads {caption!r} as {scene.caption!r}: write that, or something else")
    return scene


@functools.cache
def _objects() -> dict[str, SceneObject]:
    """Every phrase for an object."""
    several = [SceneObject(name, count, ()) for name in NAMES for count in NUMBERS if count > 1]
    single = [
        SceneObject(name, 1, (), scale, place)
        for name in NAMES
        for scale in (None, "big", "small")
        for place in (None, *PLACES)
    ]
    return {item.phrase: item for item in (*several, *single)}

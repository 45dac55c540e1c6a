"""Fixed sets of scenes to ask a bundled pipeline for, by difficulty.

``[scene.caption for scene in prompts("two", 64)]`` are the prompts, and the scenes are what
`accel.tiny.reader.Reader.judge` needs to judge the answers.
"""

from __future__ import annotations

from accel.tiny.scenes import Scene, make_scene

DIFFICULTIES: dict[str, range] = {"one": range(1, 2), "two": range(2, 3), "many": range(3, 6)}
"""Name of a set to the number of objects drawn ("three red stars" are three)."""

FIRST_SEEDS = {"one": 2_000_000_000, "two": 2_100_000_000, "many": 2_200_000_000}
"""Every set walks upwards from its seed and keeps what fits."""

_SEARCHED = 10_000


def prompts(difficulty: str, n: int) -> list[Scene]:
    """The first ``n`` scenes of a set; a shorter set is the beginning of a longer one.

    All are held-out compositions with different captions. The caption of a scene of one object always
    states the background, since there the held-out composition is the object *on* its background.

    Args:
        difficulty: ``"one"``, ``"two"`` or ``"many"`` (three to five) objects.
        n: How many, at least 1. "one" has 364 scenes, the others about 2000.

    Raises:
        ValueError: for another difficulty, or more scenes than the world has.
    """
    if difficulty not in DIFFICULTIES:
        raise ValueError(f"no prompts of difficulty {difficulty!r}: use one of {', '.join(DIFFICULTIES)}")
    if n < 1:
        raise ValueError(f"{n} prompts are none: ask for at least 1")
    first = FIRST_SEEDS[difficulty]
    found: dict[str, Scene] = {}
    for seed in range(first, first + _SEARCHED):
        scene = make_scene(seed, held_out=True)
        if drawn(scene) in DIFFICULTIES[difficulty] and (difficulty != "one" or scene.background_stated):
            found.setdefault(scene.caption, scene)
        if len(found) == n:
            return list(found.values())
    raise ValueError(f"only {len(found)} different prompts of difficulty {difficulty!r} are known: ask for no more")


def drawn(scene: Scene) -> int:
    """How many objects the picture of a scene holds."""
    return sum(item.count for item in scene.objects)

"""The judge of the bundled pipelines: what it reads, what it concludes, and on which prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from accel.tiny import reader as readers
from accel.tiny import world
from accel.tiny.reader import Reader
from accel.tiny.render import render
from accel.tiny.scenes import Scene, SceneObject, make_scene
from accel.tiny.training.augment import weather
from accel.tiny.training.evaluate import summary
from accel.tiny.verdict import Found, Reading, judge

SCENES = [make_scene(seed, held_out=True) for seed in range(300)]


def pictures(scenes: list[Scene]) -> Tensor:
    """Scenes as drawn, ``(B, 3, 64, 64)`` in [0, 1]."""
    return torch.from_numpy(np.stack([render(scene) for scene in scenes])).permute(0, 3, 1, 2).float() / 255


def truth(scene: Scene) -> Reading:
    """What a flawless reader sees."""
    seen = [Found(i.noun, i.colour, x, y, size, 1.0) for i in scene.objects for x, y, size in i.boxes]
    return Reading(tuple(seen), scene.background)


@pytest.fixture(scope="module")
def reader() -> Reader:
    return readers.load()


@pytest.fixture(scope="module")
def real() -> Tensor:
    return pictures(SCENES)


# One change each, or None where a scene has no such fact


def changed_object(scene: Scene, **changes: object) -> Scene:
    return replace(scene, objects=(replace(scene.objects[0], **changes), *scene.objects[1:]))


def other_name(scene: Scene, keep: Callable[[str], bool]) -> Scene | None:
    """The first object under another name that can be seen and that nothing else of the scene resembles."""
    used = {part for item in scene.objects for part in world.split_name(item.name) if part}
    for name in world.NAMES:
        new = {part for part in world.split_name(name) if part}
        if keep(name) and world.visible(name, scene.background) and len(new - used) == 1:
            return changed_object(scene, name=name)
    return None


def other_noun(scene: Scene) -> Scene | None:
    return other_name(scene, lambda name: world.split_name(name)[0] == scene.objects[0].colour)


def other_colour(scene: Scene) -> Scene | None:
    noun = scene.objects[0].noun
    return other_name(scene, lambda name: world.split_name(name)[1] == noun) if scene.objects[0].colour else None


def one_less(scene: Scene) -> Scene | None:
    first = scene.objects[0]
    return changed_object(scene, count=first.count - 1, boxes=first.boxes[1:]) if first.count > 1 else None


def one_more(scene: Scene) -> Scene | None:
    """Another object in a free corner."""
    taken = [box for item in scene.objects for box in item.boxes]
    for x, y in ((12, 12), (12, 52), (52, 12), (52, 52)):
        if all(max(abs(x - u), abs(y - v)) >= 0.5 * (20 + s) for u, v, s in taken):
            name = next(n for n in ("red star", "car") if n not in {i.name for i in scene.objects})
            return replace(scene, objects=(*scene.objects, SceneObject(name, 1, ((x, y, 20),))))
    return None


def other_place(scene: Scene) -> Scene | None:
    """The next column of the same row."""
    first = scene.objects[0]
    if len(scene.objects) > 1 or first.place is None:
        return None
    ((_, y, size),) = first.boxes
    column, _ = world.PLACES[first.place]
    return changed_object(scene, boxes=(((15, 32, 48)[(column + 1) % 3], y, size),))


def swapped(scene: Scene) -> Scene | None:
    if scene.relation is None:
        return None
    first, second = scene.objects
    return replace(scene, objects=(replace(first, boxes=second.boxes), replace(second, boxes=first.boxes)))


def other_background(scene: Scene) -> Scene | None:
    fitting = [
        ground
        for ground in (*world.BACKGROUNDS, *world.LANDSCAPES)
        if ground != scene.background and all(world.visible(item.name, ground) for item in scene.objects)
    ]
    return replace(scene, background=fitting[scene.seed % len(fitting)]) if scene.background_stated else None


def other_scale(scene: Scene) -> Scene | None:
    scale = scene.objects[0].scale
    return changed_object(scene, boxes=((32, 32, 22 if scale == "big" else 50),)) if scale else None


CHANGES = [
    ("noun", other_noun),
    ("colour", other_colour),
    ("count", one_less),
    ("count", one_more),
    ("place", other_place),
    ("relation", swapped),
    ("background", other_background),
    ("scale", other_scale),
]
MANY = [make_scene(seed, held_out=None) for seed in range(1200)]


def changes_of(change: Callable[[Scene], Scene | None], limit: int) -> list[tuple[Scene, Scene]]:
    """``(asked, drawn)`` pairs that differ by one change."""
    found = [(scene, new) for scene in MANY if (new := change(scene)) is not None]
    assert len(found) >= 20
    return found[:limit]


# Conclusions


def test_true_readings_are_all_right() -> None:
    for scene in MANY:
        verdict = judge(truth(scene), scene)
        assert verdict.all_right, (scene.caption, verdict)
        first = scene.objects[0]
        assert (verdict.scale is None) == (first.scale is None) and (verdict.relation is None) == (not scene.relation)
        assert (verdict.background is None) == (not scene.background_stated)
        assert (verdict.colour is None) == all(item.colour is None for item in scene.objects)


@pytest.mark.parametrize(("kind", "change"), CHANGES)
def test_one_change_flips_one_fact(kind: str, change: Callable[[Scene], Scene | None]) -> None:
    for scene, new in changes_of(change, 300):
        wrong = [name for name, holds in judge(truth(new), scene).facts.items() if not holds]
        assert wrong == [kind], (scene.caption, new)


def found(name: str, x: float = 32, y: float = 32, size: float = 20) -> Found:
    colour, noun = world.split_name(name)
    return Found(noun, colour, x, y, size, 1.0)


def test_counts_are_exact_and_nothing_may_be_extra() -> None:
    item = SceneObject("red star", 2, ((17, 32, 24), (47, 32, 24)))
    scene = Scene((item,), "white", False, None, 0)
    stars = [found("red star", x) for x in (10, 30, 50)]

    def facts(*seen: Found) -> list[bool]:
        return list(judge(Reading(seen, "black"), scene).facts.values())

    assert facts(*stars[:2]) == [True, True, True]
    assert facts(*stars) == facts(stars[0]) == facts(*stars[:2], found("car", 50)) == [True, True, False]
    assert facts(stars[0], found("red circle")) == [True, True, False]
    assert facts(stars[0], found("blue star")) == [True, False, True]
    assert facts(found("red circle"), found("red circle", 50)) == [False, True, True]
    assert facts() == [False, False, False]
    assert facts(*stars[:2], Found(None, "red", 50, 50, 20, 1.0)) == [True, True, False]


# Reading


def test_real_pictures_are_read_right(reader: Reader, real: Tensor) -> None:
    verdicts = reader.judge(real, SCENES)
    assert np.mean([verdict.all_right for verdict in verdicts]) >= 0.97
    assert min(summary(verdicts).facts.values()) >= 0.95


def test_pictures_of_other_scenes_are_rejected(reader: Reader, real: Tensor) -> None:
    """All but those that happen to be asked for the same."""
    others = [*SCENES[1:], SCENES[0]]
    same = [judge(truth(scene), other).all_right for scene, other in zip(SCENES, others, strict=True)]
    assert sum(same) == 3
    assert sum(verdict.all_right for verdict in reader.judge(real, others)) <= 4


def test_objects_are_found_where_they_stand(reader: Reader, real: Tensor) -> None:
    for scene, reading in zip(SCENES[:60], reader.read(real[:60]), strict=True):
        for item in scene.objects:
            for x, y, size in item.boxes:
                near = min(reading.objects, key=lambda e: abs(e.x - x) + abs(e.y - y))
                assert max(abs(near.x - x), abs(near.y - y)) < 3 and abs(near.size - size) < 0.2 * size


@pytest.mark.parametrize(("kind", "change"), CHANGES)
def test_a_changed_picture_flips_its_fact(kind: str, change: Callable, reader: Reader) -> None:
    pairs = changes_of(change, 20)
    verdicts = reader.judge(pictures([new for _, new in pairs]), [scene for scene, _ in pairs])
    wrong = [[name for name, holds in verdict.facts.items() if not holds] for verdict in verdicts]
    assert sum(names == [kind] for names in wrong) >= 0.9 * len(pairs), wrong


def test_soft_pictures_are_read(reader: Reader, real: Tensor) -> None:
    soft = weather(real, torch.Generator().manual_seed(0))
    assert np.mean([verdict.all_right for verdict in reader.judge(soft, SCENES)]) >= 0.8


def test_nothing_is_seen_in_an_empty_picture(reader: Reader) -> None:
    for background, colour in world.BACKGROUNDS.items():
        picture = (torch.tensor(colour) / 255).reshape(1, 3, 1, 1).expand(1, 3, 64, 64)
        assert reader.read(picture) == [Reading((), background)]


def test_half_mixed_objects_are_not_named(reader: Reader) -> None:
    """Halfway between two shapes is neither."""

    def drawn_as(noun: str) -> Tensor:
        items = [SceneObject(f"{colour} {noun}", 1, ((32, 32, 36),)) for colour in world.COLOURS]
        return pictures([Scene((item,), "gray", False, None, 0) for item in items])

    named = [[e.noun for e in reading.objects] for reading in reader.read((drawn_as("square") + drawn_as("star")) / 2)]
    assert sum(nouns == [None] for nouns in named) >= 5, named


# Features


def test_features_are_the_same_every_time(reader: Reader, real: Tensor) -> None:
    features = reader.features(real[:100])
    assert features.shape == (100, reader.num_features) == (100, 128) and features.dtype == torch.float32
    assert torch.equal(features, reader(real[:100])) and not features.requires_grad
    assert torch.allclose(features[7:8], reader.features(real[7:8]), atol=1e-4)
    assert torch.equal(features, readers.load().features(real[:100].double()))
    assert float((features[0] - features[1]).norm()) > 0.1


@pytest.mark.filterwarnings("ignore:Metric `Kernel Inception Distance` will save:UserWarning")
def test_the_reader_is_a_feature_extractor_for_torchmetrics(reader: Reader, real: Tensor) -> None:
    kid = pytest.importorskip("torchmetrics.image.kid")
    torch.manual_seed(0)
    empty = real[100:160].mean((2, 3), keepdim=True).expand(60, 3, 64, 64)
    distances = []
    for other in (real[100:160], empty):
        metric = kid.KernelInceptionDistance(feature=reader, subset_size=40, subsets=5)
        metric.update(real[:60], real=True)
        metric.update(other, real=False)
        distances.append(float(metric.compute()[0]))
    assert distances[1] > 4 * abs(distances[0]), distances


@pytest.mark.parametrize(
    ("bad", "hint"),
    [
        (torch.zeros(2, 3, 32, 32), "have shape .*resize"),
        (torch.zeros(3, 64, 64), "give a batch"),
        (torch.zeros(0, 3, 64, 64), "have shape"),
        (torch.zeros(2, 64, 64, 3), "channels first"),
        (torch.zeros(2, 3, 64, 64, dtype=torch.uint8), "pictures / 255"),
        (torch.full((2, 3, 64, 64), -1.0), r"lie in \[-1, -1\].*clamp"),
        (torch.full((2, 3, 64, 64), 255.0), r"\[0, 1\]"),
        (torch.full((2, 3, 64, 64), torch.nan), "NaN"),
    ],
)
def test_pictures_that_cannot_be_read_are_refused(bad: Tensor, hint: str, reader: Reader) -> None:
    for ask in (reader.read, reader.features, reader, lambda p: reader.judge(p, SCENES[: len(p)])):
        with pytest.raises(ValueError, match=hint):
            ask(bad)


def test_every_picture_needs_its_scene(reader: Reader, real: Tensor) -> None:
    with pytest.raises(ValueError, match="2 pictures but 3 scenes"):
        reader.judge(real[:2], SCENES[:3])


# Files


def test_files_are_small_and_hold_no_pickle() -> None:
    folder = Path(readers.__file__).with_name("weights") / "reader"
    files = list(folder.iterdir())
    assert {file.name for file in files} == {"README.md", "config.json", "model.safetensors"}
    assert sum(file.stat().st_size for file in files) < 2_500_000


def test_missing_and_foreign_weights_are_explained(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="accel.tiny.train reader"):
        readers.load(tmp_path)
    config = readers.describe(64) | {"nouns": ["zebra"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="knows other words.*train it again"):
        readers.load(tmp_path)

"""The reader's training, the fixed prompts, and the score of a pipeline."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor

from accel.tiny import reader as readers
from accel.tiny import world
from accel.tiny.prompts import DIFFICULTIES, drawn, prompts
from accel.tiny.reader import Reader
from accel.tiny.render import render
from accel.tiny.scenes import Scene, make_scene
from accel.tiny.training.augment import weather
from accel.tiny.training.evaluate import score
from accel.tiny.training.flat import FlatWeights
from accel.tiny.training.loop import Loop, Settings
from accel.tiny.training.reader import ReaderTask, sample, save


def pictures(scenes: list[Scene]) -> Tensor:
    """Scenes as drawn, ``(B, 3, 64, 64)`` in [0, 1]."""
    return torch.from_numpy(np.stack([render(scene) for scene in scenes])).permute(0, 3, 1, 2).float() / 255


# Training


def small_task() -> ReaderTask:
    torch.manual_seed(3)
    return ReaderTask(Reader(width=16))


def trained(out: Path, *stops: int, steps: int = 4) -> FlatWeights:
    """Train in as many runs as there are stops."""
    for stop in stops:
        task = small_task()
        weights = FlatWeights(task.modules())
        out.mkdir(exist_ok=True)
        Loop(task, weights, Settings(out=out, learning_rate=2e-3, batch=4, steps=steps), 0, 1).run(stop=stop)
    return weights


def test_an_interrupted_run_ends_in_the_same_reader(tmp_path: Path) -> None:
    through, broken = trained(tmp_path / "through", 4).state(), trained(tmp_path / "broken", 2, 4).state()
    assert all(torch.equal(through[name], broken[name]) for name in through)
    folder = save(small_task(), tmp_path / "broken" / "checkpoint.pt", tmp_path / "reader")
    stored = torch.cat([p.reshape(-1) for p in readers.load(folder).parameters()])
    assert torch.allclose(stored, broken["ema"], atol=1e-3)


def test_training_lowers_the_loss(tmp_path: Path) -> None:
    before = float(small_task().loss(16, seed=9).detach())
    trained(tmp_path / "run", 40, steps=40)
    task = small_task()
    weights = FlatWeights(task.modules())
    weights.load_state(torch.load(tmp_path / "run" / "checkpoint.pt", weights_only=True))
    assert float(task.loss(16, seed=9).detach()) < 0.7 * before


def test_training_pictures_are_seeded_and_their_objects_lie_inside() -> None:
    for seed in range(0, 200, 2):
        picture, objects, background = sample(seed)
        again, *_ = sample(seed)
        assert np.array_equal(picture, again) and picture.shape == (64, 64, 3)
        assert objects and background in (*world.BACKGROUNDS, *world.LANDSCAPES)
        assert all(0 <= v - t.size / 2 and v + t.size / 2 <= 64 for t in objects for v in (t.x, t.y))


def test_weather_is_seeded_and_stays_in_range() -> None:
    clean = pictures([make_scene(seed) for seed in range(16)])
    first, second = (weather(clean, torch.Generator().manual_seed(1)) for _ in range(2))
    assert torch.equal(first, second) and first.shape == (16, 3, 64, 64)
    assert float(first.min()) >= 0 and float(first.max()) <= 1
    assert 0.005 < float((first - clean).square().mean()) ** 0.5 < 0.2


# Prompts and scores


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_prompts_are_fixed_held_out_and_different(difficulty: str) -> None:
    scenes = prompts(difficulty, 256)
    assert scenes[:20] == prompts(difficulty, 20)
    assert len({scene.caption for scene in scenes}) == 256 and all(scene.held_out for scene in scenes)
    assert {drawn(scene) for scene in scenes} == set(DIFFICULTIES[difficulty])
    nouns = {item.noun for scene in scenes for item in scene.objects}
    assert len(nouns) == (14 if difficulty == "one" else 20)


def test_prompts_that_do_not_exist_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="'huge': use one of one, two, many"):
        prompts("huge", 4)
    with pytest.raises(ValueError, match="at least 1"):
        prompts("one", 0)
    monkeypatch.setattr("accel.tiny.prompts._SEARCHED", 100)
    with pytest.raises(ValueError, match=r"only \d\d different prompts of difficulty 'many'"):
        prompts("many", 365)


def test_a_pipeline_that_draws_what_is_said_scores_full_marks() -> None:
    known = {scene.caption: scene for name in DIFFICULTIES for scene in prompts(name, 12)}

    def perfect(captions: list[str], **_: object) -> SimpleNamespace:
        return SimpleNamespace(images=pictures([known[caption] for caption in captions]))

    def late(captions: list[str], **_: object) -> SimpleNamespace:
        return perfect(captions[1:] + captions[:1])

    good, bad = (score(pipe, count=12, batch=8).by_difficulty for pipe in (perfect, late))
    assert all(each.count == 12 and each.all_right >= 0.9 for each in good.values())
    assert all(each.all_right <= 0.1 for each in bad.values())
    assert "relation" in good["two"].facts and "relation" not in good["one"].facts
    table = str(score(perfect, count=2)).splitlines()
    assert [line.split()[0] for line in table] == ["pictures", "one", "two", "many"]

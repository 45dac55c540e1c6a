"""``accel search``: who judges, what is written, and one line for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from accel.cli import main
from accel.errors import AccelError
from accel.measure.arms import draw
from accel.schedulers.search.captions import scene_of
from accel.tiny.scenes import make_scene
from tests.schedulers.small import small

PROMPT = "two green squares and a red star"
QUICK = ("--steps", "4", "--guidance", "3", "--size", "16", "--seed", "5", "--candidates", "3")


def brightness(pictures: torch.Tensor, prompt: str) -> torch.Tensor:
    """A verifier that the command imports by name."""
    assert prompt == PROMPT
    return pictures.mean((1, 2, 3))


BY_NAME = ("--verifier", f"{__name__}:brightness")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "small"
    small().save_pretrained(folder)
    return str(folder)


def search(model: str, out: Path, *more: str) -> int:
    return main(["search", PROMPT, "--model", model, "--out", str(out), *QUICK, *more])


def told(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_text())


def test_the_best_by_a_function_of_ones_own(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(model, tmp_path, *BY_NAME, "--compare") == 0
    report, said = told(tmp_path), capsys.readouterr().out
    assert sorted(file.name for file in tmp_path.iterdir()) == ["best.png", "more-steps.png", "report.json"]
    assert report["files"] == ["best.png", "more-steps.png"]
    assert report["evaluations"] == 3 * 4 * 2 and report["more_steps"]["steps"] == 12
    call = {"guidance_scale": 3.0, "height": 16, "width": 16}
    wanted = draw(small(), [PROMPT] * 3, [5, 6, 7], 4, call).mean((1, 2, 3))
    assert report["scores"] == pytest.approx(wanted.tolist(), abs=1e-3)
    assert report["seed"] == 5 + int(wanted.argmax()) and report["score"] == max(report["scores"])
    assert f"the noise of seed {report['seed']}" in said and "the same work as 12 steps" in said


def test_pruning_and_noises_that_no_seed_tells(model: str, tmp_path: Path) -> None:
    assert search(model, tmp_path / "pruned", *BY_NAME, "--keep", "0.4", "--after", "0.5") == 0
    assert sum(told(tmp_path / "pruned")["dropped"]) == 2
    assert search(model, tmp_path / "near", *BY_NAME, "--method", "zero_order", "--candidates", "9") == 0
    report = told(tmp_path / "near")
    assert len(report["scores"]) == 9 and report["seed"] is None and "noise.safetensors" in report["files"]
    latents = load_file(tmp_path / "near" / "noise.safetensors")["latents"]
    call = {"guidance_scale": 3.0, "height": 16, "width": 16, "latents": latents}
    assert draw(small(), [PROMPT], [0], 4, call).mean().item() == pytest.approx(report["score"], abs=1e-3)


@pytest.mark.parametrize(
    ("more", "hint"),
    [
        ((), "say who judges the pictures of"),
        (("--verifier", "no.such:thing"), "cannot be imported"),
        (("--verifier", f"{__name__}:QUICK"), "is no function"),
        (("--verifier", "nowhere"), "nowhere"),
        ((*BY_NAME, "--keep", "1"), "each within 0 and 1"),
        ((*BY_NAME, "--method", "paths", "--keep", "0.5"), "leave prune out"),
        ((*BY_NAME, "--method", "best"), "see accel search --help"),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: tuple[str, ...], hint: str
) -> None:
    assert search(model, tmp_path / "out", *more) == 2
    said = capsys.readouterr().err
    assert hint in said and said.count("\n") == 1 and not (tmp_path / "out").exists()


def test_every_caption_is_read_as_its_scene() -> None:
    for seed in range(300):
        scene = make_scene(seed, held_out=None)
        read = scene_of(scene.caption)
        assert read.caption == scene.caption and read.relation == scene.relation
        assert [(o.name, o.count, o.scale, o.place) for o in read.objects] == [
            (o.name, o.count, o.scale, o.place) for o in scene.objects
        ]
        assert read.background_stated == scene.background_stated
        assert read.background == scene.background or not scene.background_stated


@pytest.mark.parametrize("text", ["a green dog", "two star", "a red star, a red star", "a red star and", ""])
def test_other_prompts_are_not_the_readers(text: str) -> None:
    with pytest.raises(AccelError, match="the bundled reader"):
        scene_of(text)

"""Collecting curves: what is drawn, going on after being killed, features of prompts, and the command end to end."""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from accel.cli import main
from accel.errors import AccelError
from accel.measure.arms import draw
from accel.measure.quality import psnr
from accel.schedulers.difficulty.collect import JOURNAL, Study, collect
from accel.schedulers.difficulty.curves import Curves, Goal
from accel.schedulers.difficulty.features import _arguments, features, pooled
from accel.schedulers.difficulty.model import DifficultyModel
from tests.schedulers.small import small

PROMPTS = ("a red star", "two blue cars at night", "a green heart above a frog")
STUDY = Study(PROMPTS, counts=(2, 3, 4), seeds=3, reference=8, batch=4, seed=20, call={"guidance_scale": 2.0})


class Bright:
    """A picture is right when its middle is bright."""

    def facts(self, pictures: torch.Tensor, rows: Sequence[int]) -> list[dict[str, bool]]:
        assert len(rows) == len(pictures) and max(rows) < len(PROMPTS)
        return [{"bright": bool(picture.mean() > 0.5), "there": True} for picture in pictures]

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        raise AssertionError("not asked")

    real = features  # type: ignore[assignment]


@pytest.fixture(scope="module")
def pipe() -> Any:
    return small()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("whole")


@pytest.fixture(scope="module")
def curves(pipe: Any, folder: Path) -> Curves:
    return collect(pipe, STUDY, folder, Bright())


def test_every_sample_is_where_it_belongs(pipe: Any, curves: Curves) -> None:
    assert curves.psnr.shape == (3, 3, 3) and curves.right.shape == (3, 3, 3) and curves.long_right.shape == (3, 3)
    seed = 20 + 1 * 3 + 2  # prompt 1, noise 2
    truth, picture = (draw(pipe, [PROMPTS[1]], [seed], steps, STUDY.call) for steps in (8, 3))
    assert curves.psnr[1, 2, 1] == pytest.approx(float(psnr(picture, truth)), abs=0.05)
    assert curves.right[1, 2, 1] == bool(picture.mean() > 0.5) and curves.long_right[1, 2] == bool(truth.mean() > 0.5)
    assert curves.groups == PROMPTS and curves.features.shape[0] == 3
    assert curves.about["fingerprint"]["scheduler"] == "DDIMScheduler" and curves.about["machine"]["cores"]


def test_killed_it_goes_on_where_it_was(pipe: Any, curves: Curves, tmp_path: Path) -> None:
    told: list[int] = []

    def stop(what: str, done: int, total: int) -> None:
        told.append(done)
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        collect(pipe, STUDY, tmp_path, Bright(), stop)
    kept = (tmp_path / JOURNAL).read_text()
    (tmp_path / JOURNAL).write_text(kept + '{"kind": "pictures", "samp')  # the line that was being written
    again = collect(pipe, STUDY, tmp_path, Bright(), lambda what, done, total: told.append(done))
    assert told == [0, 4, 4, 8] and (tmp_path / JOURNAL).read_text().startswith(kept)
    assert (again.psnr == curves.psnr).all() and (again.right == curves.right).all()
    assert (again.features == curves.features).all()


def test_another_study_is_refused(pipe: Any, curves: Curves, folder: Path) -> None:
    for changed, judge, reason in (
        ({"seed": 21}, Bright(), "seed: 20, now 21"),
        ({"solver": "dpm++"}, Bright(), "other scheduler|scheduler.class"),
        ({}, None, "judge: Bright, now NoneType"),
    ):
        with pytest.raises(AccelError, match=f"other settings.*({reason})"):
            collect(pipe, Study(**{**vars(STUDY), **changed}), folder, judge)
    again = collect(pipe, Study(**{**vars(STUDY), "batch": 2}), folder, Bright())  # nothing is left to draw
    assert (again.psnr == curves.psnr).all()


def test_curves_are_kept(curves: Curves, tmp_path: Path) -> None:
    curves.save(tmp_path)
    again = Curves.load(tmp_path)
    for name in ("psnr", "right", "long_right", "features"):
        assert (getattr(again, name) == getattr(curves, name)).all()
    assert (again.prompts, again.groups, again.counts, again.about) == (
        curves.prompts,
        curves.groups,
        curves.counts,
        json.loads(json.dumps(curves.about)),
    )
    told = json.loads((tmp_path / "curves.json").read_text())
    (tmp_path / "curves.json").write_text(json.dumps(told | {"prompts": ["one"]}))
    with pytest.raises(AccelError, match="do not fit together"):
        Curves.load(tmp_path)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"prompts": ("a",)}, "at least two prompts"),
        ({"prompts": ("a", "a")}, "each of them once"),
        ({"counts": (4, 2)}, "must rise"),
        ({"reference": 7}, "at least twice as many"),
        ({"solver": "magic"}, "no solver 'magic': there are own, dpm"),
        ({"seeds": 1}, "take at least two"),
        ({"groups": ("a",)}, "1 groups do not belong to 3 prompts"),
    ],
)
def test_studies_that_measure_nothing_are_refused(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(AccelError, match=reason):
        Study(**{**vars(STUDY), **changed})


# --- features ---------------------------------------------------------------------------------------------------------


def test_features_are_a_prompt_s_own(pipe: Any) -> None:
    found = features(pipe, PROMPTS)
    assert found.shape == (3, 64) and found.dtype == torch.float32
    assert torch.equal(found[1:2], features(pipe, [PROMPTS[1]])) and torch.equal(found, features(pipe, PROMPTS))
    assert not torch.allclose(found[0], found[1])


def test_pooled_is_mean_and_spread() -> None:
    embeds = torch.tensor([[[1.0, 0.0], [3.0, 0.0]]], dtype=torch.bfloat16)
    assert pooled(embeds).tolist() == [[2.0, 0.0, 1.0, 0.0]]
    for wrong in (torch.zeros(2, 3), torch.zeros(1, 2, 3, dtype=torch.long)):
        with pytest.raises(AccelError, match="a text embedding is"):
            pooled(wrong)


NAMES = ("StableDiffusion", "StableDiffusionXL", "StableDiffusion3", "Flux", "PixArtSigma", "Sana", "QwenImage", "Wan")


@pytest.mark.parametrize("name", [*NAMES, "LatentConsistencyModel", "HunyuanDiT", "CogView4", "Chroma", "HunyuanVideo"])
def test_every_pipeline_s_encoder_takes_what_it_is_given(name: str) -> None:
    encode = getattr(diffusers, f"{name}Pipeline").encode_prompt
    bare = inspect.signature(encode)
    call = bare.replace(parameters=list(bare.parameters.values())[1:])

    class Pipe:
        device = "cpu"
        __signature__ = call

        def __call__(self) -> None: ...

    bound = call.bind(**_arguments(Pipe, Pipe, PROMPTS[0]))
    bound.apply_defaults()
    assert bound.arguments["prompt"] == PROMPTS[0] and not bound.arguments.get("do_classifier_free_guidance")


def test_no_encoder_is_told(pipe: Any) -> None:
    class Plain:
        device = "cpu"

    with pytest.raises(AccelError, match="Plain has no encode_prompt"):
        features(Plain(), PROMPTS)
    with pytest.raises(AccelError, match="give a list"):
        features(pipe, "a red star")


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_command_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "made")
    size = ["--n", "12", "--seeds", "2", "--counts", "2,3", "--reference", "6", "--batch", "24"]
    assert main(["difficulty", "collect", "--solver", "dpm++", "--out", out, *size]) == 0
    curves = Curves.load(tmp_path / "made")
    assert curves.psnr.shape == curves.right.shape == (12, 2, 2) and len(set(curves.groups)) == 12
    assert (np.diff(curves.psnr.mean((0, 1))) > 0).all()  # more steps are closer to the long run
    goal = f"{np.median(curves.psnr):.1f} dB"
    assert main(["difficulty", "evaluate", out, "--goal", goal]) == 0
    assert main(["difficulty", "train", out, "--goal", goal]) == 0
    said = capsys.readouterr()
    assert "3 steps: " in said.out and "intraclass correlation of log N*" in said.out and said.err == ""
    assert json.loads((tmp_path / "made" / "evaluation.json").read_text())["goal"] == goal
    model = DifficultyModel.load(out)
    assert set(model.steps(curves.features, 0.5)) <= {2, 3} and model.goal == Goal(goal)
    assert model.call == {"guidance_scale": 4.0} and model.fingerprint.scheduler == "DPMSolverMultistepScheduler"


def test_mistakes_of_the_command_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, reason in (
        (["train", str(tmp_path)], "cannot be read"),
        (["evaluate", str(tmp_path), "--goal", "nice"], "cannot be read"),
        (["collect", "--counts", "4,x"], "must be a whole number"),
        (["guess"], "invalid choice"),
    ):
        assert main(["difficulty", *arguments]) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.count("\n") == 1 and reason in said.err

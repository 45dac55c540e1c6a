"""Several denoisers taking turns by noise level."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

import accel
from accel import Plan, Refused
from accel.contract.trace import differences, trace
from accel.schedulers.stages import OWN, Stages
from tests.families import case, run, with_scheduler
from tests.families.seeding import seed_weights

STEPS = 8


def build(name: str = "sd") -> Any:
    return with_scheduler(case(name).build(), "euler")


def draw(pipe: Any, **kw: Any) -> torch.Tensor:
    return run(case("sd"), pipe, **{"steps": STEPS, **kw})


@pytest.fixture(scope="module")
def other() -> torch.nn.Module:
    """A denoiser of the same form with other weights."""
    return seed_weights(copy.deepcopy(build().unet), 77)


def by_hand(pipe: Any, other: torch.nn.Module, high: bool, switch: float) -> torch.Tensor:
    """The pipeline with a plain forward that looks at the timestep."""
    own = pipe.unet.forward
    pipe.unet.forward = lambda x, t, **kw: (other if (float(t) >= switch) == high else own)(x, t, **kw)
    try:
        return draw(pipe)
    finally:
        del pipe.unet.forward


@pytest.mark.parametrize("high", [True, False])
def test_the_model_of_the_noise_level_is_called(other: torch.nn.Module, high: bool) -> None:
    """T-Stitch's way round, and Hybrid SD's."""
    pipe, switch = build(), 500.0
    plain = draw(pipe)
    wanted, before = by_hand(pipe, other, high, switch), trace(pipe)
    models = (other, OWN) if high else (OWN, other)
    with accel.accelerate(pipe, Stages(models, (switch,))) as handle:
        assert torch.equal(draw(pipe), wanted)
        report = handle.report()
        times = pipe.scheduler.timesteps.tolist()
        routed = sum((time >= switch) == high for time in times)
        part = report.techniques["stages"]
        assert (part.lighter, part.computed) == (routed, STEPS) and 0 < routed < STEPS
        assert report.calls_computed == STEPS
        assert part.strip == ("=" * routed + "#" * (STEPS - routed) if high else "#" * (STEPS - routed) + "=" * routed)
    assert not torch.equal(wanted, plain)
    assert differences(before, trace(pipe)) == []
    assert torch.equal(draw(pipe), plain)


def test_the_pipelines_own_model_alone_is_the_plain_run() -> None:
    pipe = build()
    plain = draw(pipe)
    with accel.accelerate(pipe, Stages((OWN, OWN), (500.0,))), pytest.warns(accel.AccelWarning, match="saved nothing"):
        assert torch.equal(draw(pipe), plain)


def test_a_model_from_a_folder_and_a_plan_file(other: torch.nn.Module, tmp_path: Path) -> None:
    source = build()
    source.unet = other
    source.save_pretrained(tmp_path / "small")
    plan = Plan.of(Stages((str(tmp_path / "small"), OWN), (500.0,)))
    plan.save(tmp_path / "plan.json")
    pipe = build()
    wanted = by_hand(pipe, other, True, 500.0)
    with accel.accelerate(pipe, tmp_path / "plan.json"):
        assert torch.equal(draw(pipe), wanted)


def test_each_model_has_its_guidance(other: torch.nn.Module) -> None:
    pipe = build()
    seen = []

    def look(pipe: Any, step: int, time: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        seen.append(pipe.guidance_scale)
        return kwargs

    with accel.accelerate(pipe, Stages((other, OWN), (500.0,), guidance=(2.0, 6.0))) as handle:
        draw(pipe, callback_on_step_end=look)
        routed = handle.report().techniques["stages"].lighter
        assert pipe.guidance_scale == case("sd").inputs(steps=STEPS)["guidance_scale"]  # as the call said
    wanted = [2.0] * routed + [6.0] * (STEPS - routed)
    assert seen[:-1] == wanted[:-1]  # the last callback comes after the run


def test_models_that_do_not_share_their_latents_are_refused() -> None:
    pipe = build()
    other = case("sdxl").build().unet
    with pytest.raises(Refused, match="addition_embed_type is text_time.* they share no latents, or no prompts"):
        accel.accelerate(pipe, Stages((other, OWN), (500.0,)))


def test_a_model_that_predicts_something_else_is_refused(other: torch.nn.Module, tmp_path: Path) -> None:
    source = build()
    source.scheduler.register_to_config(prediction_type="v_prediction")
    source.save_pretrained(tmp_path)
    with pytest.raises(Refused, match="predicts v_prediction"):
        accel.accelerate(build(), Stages((str(tmp_path), OWN), (500.0,)))


def test_a_folder_that_is_no_pipeline_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="not a pipeline in diffusers format"):
        accel.accelerate(build(), Stages((str(tmp_path), OWN), (500.0,)))


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        (((OWN, OWN), ()), "change at 1 switches"),
        (((OWN, OWN, OWN), (300.0, 600.0)), "fall from high noise to low"),
        (((OWN, 3), (300.0,)), "a folder, a hub id"),
        ((("<UNet2DConditionModel>", OWN), (300.0,)), "save one that was only in memory"),
        (((OWN, OWN), (300.0,), (4.0, 1.0)), "above 1 for each model"),
    ],
)
def test_settings_that_say_nothing_are_refused(settings: tuple[Any, ...], text: str) -> None:
    with pytest.raises(accel.AccelError, match=text):
        Stages(*settings)

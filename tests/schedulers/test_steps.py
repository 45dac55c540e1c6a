"""Techniques of the step axis on tiny pipelines: fewer steps up front, converged pictures, mixed batches, deadlines."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import DPMSolverMultistepScheduler

import accel
from accel import AccelWarning, Refused
from accel.contract.trace import differences, trace
from accel.schedulers import prompt_steps
from accel.schedulers.converged import Converged
from accel.schedulers.deadline import Deadline
from accel.schedulers.prompt_steps import PromptSteps
from accel.schedulers.schedule import StepPlan
from accel.schedulers.spacing import SPACINGS, spaced
from accel.schedulers.steps import Steps
from accel.schedulers.upfront import UpFront
from tests.families import case, run, with_scheduler

FAMILIES = ["sd", "sdxl", "sd-img2img", "sd-controlnet", "sd3", "flux", "flux-cfg", "flux-img2img", "wan", "pixart"]
ROUNDING = 1e-3
"""Other batch sizes are summed in another order."""


@contextmanager
def saving_nothing() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)
        yield


def build(name: str, solver: str | None = "euler") -> Any:
    pipe = case(name).build()
    return with_scheduler(pipe, solver) if solver else pipe


def draw(name: str, pipe: Any, **kw: Any) -> torch.Tensor:
    return run(case(name), pipe, **kw)


# --- a constant ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_constant_is_the_plain_run_of_that_many_steps(name: str) -> None:
    pipe = build(name, None)
    few, many = draw(name, pipe, steps=5), draw(name, pipe, steps=9)
    before = trace(pipe)
    with accel.accelerate(pipe, Steps(5)) as handle:
        assert torch.equal(draw(name, pipe, steps=9), few)
        report = handle.report().techniques["steps"]
        assert report.predicted > 0 and report.computed == handle.report().steps_run
    assert torch.equal(draw(name, pipe, steps=9), many) and not torch.equal(few, many)
    assert differences(before, trace(pipe)) == []


def test_a_shorter_call_is_left_alone() -> None:
    pipe = build("sd")
    plain = draw("sd", pipe, steps=4)
    with accel.accelerate(pipe, Steps(8)), pytest.warns(AccelWarning, match="steps saved nothing"):
        assert torch.equal(draw("sd", pipe, steps=4), plain)


@pytest.mark.parametrize(("asked", "taken"), [(10, 5), (5, 3), (6, 3), (3, 3), (2, 2)])
def test_a_share_follows_the_call_and_leaves_short_ones_alone(asked: int, taken: int) -> None:
    pipe = build("sd")
    few = draw("sd", pipe, steps=taken)
    with saving_nothing(), accel.accelerate(pipe, Steps(share=0.5, least=3)) as handle:
        assert torch.equal(draw("sd", pipe, steps=asked), few)
        assert handle.report().steps_run == taken


@pytest.mark.parametrize("solver", ["euler", "dpm++", "unipc"])
def test_the_schedulers_own_timesteps_give_its_own_picture(solver: str) -> None:
    pipe = build("sd", solver)
    plain = draw("sd", pipe, steps=6)
    times = tuple(float(t) for t in pipe.scheduler.timesteps)
    with saving_nothing(), accel.accelerate(pipe, Steps(timesteps=times)):
        torch.testing.assert_close(draw("sd", pipe, steps=6), plain, atol=ROUNDING, rtol=0)
        torch.testing.assert_close(draw("sd", pipe, steps=20), plain, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("solver", ["euler", "dpm++"])
def test_a_spacing_is_that_schedule_for_as_many_steps_as_are_asked_for(solver: str) -> None:
    pipe = build("sd", solver)
    times, plain = spaced(pipe.scheduler, "karras", 6), draw("sd", pipe, steps=6)
    before = trace(pipe)
    with accel.accelerate(pipe, Steps(timesteps=times)):
        wanted = draw("sd", pipe, steps=6)
    with accel.accelerate(pipe, Steps(spacing="karras")) as handle:
        assert torch.equal(draw("sd", pipe, steps=6), wanted)
        assert handle.report().hints == [] and handle.report().steps_run == 6
    with accel.accelerate(pipe, "steps(count=6, spacing=karras)") as handle:
        assert torch.equal(draw("sd", pipe, steps=9), wanted)
        assert handle.report().techniques["steps"].predicted == 3
    assert differences(before, trace(pipe)) == []
    assert torch.equal(draw("sd", pipe, steps=6), plain) and not torch.equal(plain, wanted)


@pytest.mark.parametrize("spacing", SPACINGS)
def test_a_plan_with_a_spacing_is_written_as_it_is_read(spacing: str) -> None:
    plan = accel.Plan.of(Steps(9, spacing))
    assert accel.Plan.of(str(plan)) == accel.Plan.from_dict(plan.to_dict()) == plan


def test_a_spacing_for_another_model_is_refused_also_when_the_solver_was_swapped() -> None:
    pipe = build("sd")
    with pytest.raises(Refused, match="ays_svd begins at noise level 700"):
        accel.accelerate(pipe, Steps(spacing="ays_svd"))
    with pytest.raises(Refused, match=r"EulerDiscreteScheduler\.from_config"):
        accel.accelerate(build("sd", "ddim"), Steps(spacing="karras"))
    with saving_nothing(), accel.accelerate(pipe, Steps(spacing="karras")) as handle:
        config = {**pipe.scheduler.config, "prediction_type": "flow_prediction", "use_flow_sigmas": True}
        pipe.scheduler = DPMSolverMultistepScheduler.from_config(config)
        draw("sd", pipe, steps=4)
        assert any("flow matching" in why for why in handle.report().techniques["steps"].declined)


@pytest.mark.parametrize("by_keyword", [False, True])
def test_an_image_to_image_schedule_is_cut_by_the_steps_taken(by_keyword: bool) -> None:
    """Only after a schedule was asked for: until then, and after the run, the arithmetic is the pipeline's own."""
    pipe = build("sd-img2img")

    def cut(steps: int) -> tuple[list[float], int]:
        given = {"num_inference_steps": steps, "strength": 0.5, "device": "cpu"}
        times, count = pipe.get_timesteps(**given) if by_keyword else pipe.get_timesteps(*given.values())
        return times.tolist(), count

    pipe.scheduler.set_timesteps(4)
    wanted = cut(4)
    pipe.scheduler.set_timesteps(8)
    plain = cut(8)
    with accel.accelerate(pipe, Steps(4)):
        assert cut(8) == plain
        pipe.scheduler.set_timesteps(8)
        assert cut(8) == wanted != plain
        draw("sd-img2img", pipe, steps=8)
        assert cut(4) == wanted  # of the four steps that the scheduler was left with
    pipe.scheduler.set_timesteps(8)
    assert cut(8) == plain


def test_timesteps_are_refused_with_the_way_out() -> None:
    pipe = build("sd", "ddim")
    with pytest.raises(Refused, match=r"number of steps.*EulerDiscreteScheduler\.from_config"):
        accel.accelerate(pipe, Steps(timesteps=(900.0, 400.0)))


def test_timesteps_that_the_call_brings_are_left_alone() -> None:
    pipe = build("sd", "dpm++")
    own = dict(timesteps=[900, 600, 300])
    plain = draw("sd", pipe, **own)
    with accel.accelerate(pipe, Steps(2)) as handle, pytest.warns(AccelWarning, match="timesteps of its own"):
        assert torch.equal(draw("sd", pipe, **own), plain)
        assert "steps" in handle.report().techniques


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"count": 3, "timesteps": (900.0,)}, "one of count and timesteps"),
        ({"count": 3, "share": 0.5}, "one of count and share"),
        ({"count": 0}, "at least 1"),
        ({"share": 1.5}, "share is above 0 and at most 1, not 1.5"),
        ({"share": 0.5, "least": 0}, "least must be a whole number of at least 1"),
        ({"spacing": "karras", "timesteps": (900.0,)}, "either a spacing or timesteps"),
        ({"spacing": "ays"}, "there are karras, exponential, ays_sd15"),
        ({"timesteps": (100.0, 900.0)}, "fall from step to step"),
    ],
)
def test_a_constant_that_is_none_is_refused(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(accel.AccelError, match=text):
        Steps(**settings)


def test_two_rules_for_one_schedule_are_refused() -> None:
    with pytest.raises(Refused, match="both take over schedule"):
        accel.accelerate(build("sd"), [Steps(4), Deadline(100.0)])


# --- pictures on schedules of their own ------------------------------------------------------------------------------


@contextmanager
def choosing(pipe: Any, *counts: int) -> Iterator[Any]:
    """A plan that gives each picture of a batch its own number of steps."""

    class Given(Steps):
        def attach(self, target: Any, clock: Any, recorder: Any) -> Any:
            return UpFront(self.name, lambda asked: [StepPlan(n) for n in counts], clock, recorder).attach()

    with accel.accelerate(pipe, Given(1)) as handle:
        yield handle


@pytest.mark.parametrize(
    ("name", "solver"),
    [("sd", "euler"), ("sd", "dpm++"), ("sd", "ddim"), ("sd", "heun"), ("sdxl", "unipc"), ("sd3", "euler"),
     ("flux-cfg", "euler"), ("wan", "unipc"), ("pixart", "dpm++")],
)  # fmt: skip
def test_every_picture_of_a_mixed_batch_is_what_it_is_alone(name: str, solver: str) -> None:
    """Three pictures with 6, 3 and 6 steps: the second leaves the batch half-way."""
    pipe = build(name, solver)
    alone = [draw(name, pipe, steps=n, seed=seed) for seed, n in enumerate((6, 3, 6))]
    with choosing(pipe, 6, 3, 6) as handle:
        together = draw(name, pipe, steps=9, batch=3)
        report = handle.report()
    torch.testing.assert_close(together, torch.cat(alone), atol=ROUNDING, rtol=0)
    assert report.rows_computed < report.rows


def test_the_order_of_a_batch_does_not_matter() -> None:
    pipe = build("sd", "dpm++")
    with choosing(pipe, 3, 6):
        first = draw("sd", pipe, steps=9, batch=2)
    with choosing(pipe, 6, 3):
        other = draw("sd", pipe, steps=9, batch=2)
    short, long = draw("sd", pipe, steps=3), draw("sd", pipe, steps=6)
    torch.testing.assert_close(first[:1], short, atol=ROUNDING, rtol=0)
    torch.testing.assert_close(other[:1], long, atol=ROUNDING, rtol=0)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("sd-img2img", "begins in the middle of its schedule"),  # the noise was added for one schedule
        ("sd-controlnet", "controlnet is given one timestep"),
        ("sd-inpaint", "begins in the middle of its schedule"),
        ("wan-two-experts", "chooses between its denoisers"),
        ("z-image", "a list with one tensor for each row"),
    ],
)
def test_a_batch_that_cannot_be_told_apart_takes_the_most_steps(name: str, reason: str) -> None:
    pipe = build(name, None)
    plain = draw(name, pipe, steps=6, batch=2)
    with choosing(pipe, 6, 4) as handle:
        torch.testing.assert_close(draw(name, pipe, steps=9, batch=2), plain, atol=ROUNDING, rtol=0)
        assert any(reason in declined for declined in handle.report().techniques["steps"].declined)


def test_with_a_cache_a_batch_takes_the_most_steps() -> None:
    pipe = build("sd")
    with accel.accelerate(pipe, "deepcache(warm_up=2)"):
        wanted = draw("sd", pipe, steps=6, batch=2)
        with choosing(pipe, 6, 4) as handle:
            assert torch.equal(draw("sd", pipe, steps=9, batch=2), wanted)
            assert any("counts in steps" in reason for reason in handle.report().techniques["steps"].declined)


def test_inpainting_at_full_strength_takes_the_most_steps() -> None:
    """The pipeline blends in the picture with the noise of its own step."""
    pipe = build("sd-inpaint")
    plain = draw("sd-inpaint", pipe, steps=6, batch=2, strength=1.0)
    with choosing(pipe, 6, 3) as handle:
        assert torch.equal(draw("sd-inpaint", pipe, steps=9, batch=2, strength=1.0), plain)
        assert any("blends in" in declined for declined in handle.report().techniques["steps"].declined)


def test_a_swapped_scheduler_is_followed_at_once() -> None:
    pipe = build("sd")
    with accel.accelerate(pipe, Steps(3)) as handle:
        draw("sd", pipe, steps=9)
        with_scheduler(pipe, "dpm++")
        swapped = draw("sd", pipe, steps=9)
        assert handle.report().steps_run == 3 and handle.report().techniques["steps"].predicted == 6
    assert torch.equal(swapped, draw("sd", pipe, steps=3))


# --- converged -------------------------------------------------------------------------------------------------------

EAGER = Converged(threshold=99.0, warm_up=2, patience=1, tail=2)


@pytest.mark.parametrize(
    ("name", "solver"),
    [("sd", "euler"), ("sd", "dpm++"), ("sd", "unipc"), ("sd3", "euler"), ("flux-cfg", "euler"), ("wan", "unipc"),
     ("sd-img2img", "euler")],
)  # fmt: skip
def test_a_converged_picture_is_finished_in_a_few_steps(name: str, solver: str) -> None:
    pipe = build(name, solver)
    plain = draw(name, pipe, steps=9)
    before = trace(pipe)
    with accel.accelerate(pipe, EAGER) as handle:
        fast = draw(name, pipe, steps=9)
        report = handle.report()
        both = draw(name, pipe, steps=9, batch=2)
        other = draw(name, pipe, steps=9, seed=1)
        assert torch.equal(draw(name, pipe, steps=9), fast)
    assert fast.isfinite().all() and not torch.equal(fast, plain)
    assert report.steps_run - report.techniques["converged"].strip.count(".") == EAGER.warm_up + EAGER.tail
    torch.testing.assert_close(both, torch.cat([fast, other]), atol=ROUNDING, rtol=0)
    assert differences(before, trace(pipe)) == []
    assert torch.equal(draw(name, pipe, steps=9), plain)


def test_a_picture_that_never_stands_still_is_plain() -> None:
    pipe = build("sd")
    plain = draw("sd", pipe, steps=9)
    with saving_nothing(), accel.accelerate(pipe, Converged(threshold=0.0)):
        assert torch.equal(draw("sd", pipe, steps=9), plain)


def test_a_run_that_ends_before_its_schedule_keeps_it() -> None:
    pipe = build("sdxl")
    plain = draw("sdxl", pipe, steps=10, denoising_end=0.6)
    with saving_nothing(), accel.accelerate(pipe, EAGER) as handle:
        assert torch.equal(draw("sdxl", pipe, steps=10, denoising_end=0.6), plain)
        assert any("ends before its schedule" in text for text in handle.report().techniques["converged"].declined)


def test_guidance_may_end_while_finished_pictures_wait() -> None:
    pipe = build("sd")

    def without(pipe: Any, step: int, time: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == 6:
            pipe._guidance_scale = 0.0
            kwargs["prompt_embeds"] = kwargs["prompt_embeds"].chunk(2)[-1]
        return kwargs

    callback = {"callback_on_step_end": without, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}
    with accel.accelerate(pipe, EAGER):
        assert draw("sd", pipe, steps=9, batch=2, **callback).isfinite().all()


def test_the_tail_of_a_solver_that_takes_none_is_refused() -> None:
    for solver, reason in (("ddim", "number of steps"), ("heun", "two steps for each timestep")):
        with pytest.raises(Refused, match=reason):
            accel.accelerate(build("sd", solver), Converged())


def test_what_counts_in_steps_cannot_be_combined() -> None:
    with pytest.raises(Refused, match="both take over block_outputs"):
        accel.accelerate(build("sd"), [Converged(), *accel.Plan.of("deepcache").techniques])


# --- deadline --------------------------------------------------------------------------------------------------------


def slow(pipe: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A clock on which a call of the denoiser takes ten seconds, and nothing else any time."""
    calls: list[int] = []
    first = next(module for module in pipe.unet.modules() if not list(module.children()))
    first.register_forward_hook(lambda module, args, output: calls.append(1))
    monkeypatch.setattr("accel.schedulers.deadline.time", SimpleNamespace(perf_counter=lambda: 10.0 * len(calls)))
    return pipe


def test_a_deadline_is_met_in_the_first_run_and_known_before_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = slow(build("sd"), monkeypatch)
    with accel.accelerate(pipe, Deadline(ms=65_000, least=2)) as handle:
        draw("sd", pipe, steps=12)
        assert handle.report().calls_computed == 6 and handle.report().steps_run == 12
        later = [draw("sd", pipe, steps=12) for _ in range(3)]
        assert handle.report().calls_computed == handle.report().steps_run == 6
    assert all(torch.equal(each, draw("sd", pipe, steps=6)) for each in later)


def test_a_deadline_never_takes_fewer_than_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = slow(build("sd"), monkeypatch)
    with accel.accelerate(pipe, Deadline(ms=1, least=5)) as handle:
        for _ in range(2):
            draw("sd", pipe, steps=12)
            assert handle.report().calls_computed == 5


def test_where_the_tail_cannot_be_changed_the_next_run_is_on_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = slow(build("sd", "ddim"), monkeypatch)
    with accel.accelerate(pipe, Deadline(ms=65_000)) as handle:
        with pytest.warns(AccelWarning, match="only the next run is on time"):
            draw("sd", pipe, steps=12)
        draw("sd", pipe, steps=12)
        assert handle.report().steps_run == 6


# --- by the prompt ---------------------------------------------------------------------------------------------------


class Predictor:
    """Takes the place of a trained one: a prompt's number of steps by the rank of its features' mean."""

    counts = (3, 6)

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def steps(self, features: torch.Tensor, target: float) -> list[int]:
        return [self.counts[int(row.mean() > self.threshold)] for row in features]

    def fingerprint_problems(self, target: Any) -> tuple[list[str], list[str]]:
        return [], []

    def call_problems(self, call: Any) -> list[str]:
        return []


def test_each_prompt_gets_its_steps_through_an_ordinary_call(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pipe = build("sd", "dpm++")
    (tmp_path / "difficulty.json").write_text("{}")
    seen: list[float] = []
    predictor = Predictor(0.0)
    monkeypatch.setattr(prompt_steps.DifficultyModel, "load", lambda path: predictor)
    monkeypatch.setattr(predictor, "steps", lambda rows, target: seen.extend(rows.mean(1).tolist()) or [6] * len(rows))
    with accel.accelerate(pipe, PromptSteps(str(tmp_path))):
        draw("sd", pipe, steps=9, batch=2)
    monkeypatch.undo()
    monkeypatch.setattr(prompt_steps.DifficultyModel, "load", lambda path: Predictor(sum(seen) / 2))
    alone = [draw("sd", pipe, steps=3 if mean < sum(seen) / 2 else 6, seed=i) for i, mean in enumerate(seen)]
    assert len(seen) == 2 and seen[0] != seen[1]
    with accel.accelerate(pipe, PromptSteps(str(tmp_path))) as handle:
        together = draw("sd", pipe, steps=9, batch=2)
        assert handle.report().rows_computed < handle.report().rows
    torch.testing.assert_close(together, torch.cat(alone), atol=ROUNDING, rtol=0)


def test_without_a_predictor_the_way_to_one_is_told(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="accel difficulty"):
        accel.accelerate(build("sd"), PromptSteps(str(tmp_path)))

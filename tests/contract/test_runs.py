"""No run changes the next: each output equals that of a fresh pipeline."""

from __future__ import annotations

import copy
import json
import pickle

import pytest
import torch

import accel
from accel import Plan
from accel.contract import run_contract
from tests.contract.plans import PLANS, refused
from tests.contract.support import bench, draw, fresh, may_save_nothing, same, steps_of
from tests.families import case, run

CHEAP = ("pixart", "wan")
"""One case with both halves of guidance in a batch, one with two calls per step: the fastest of each."""
VARIED = [PLANS[text] for text in PLANS if "+" in text]


def _in_turns(plans: list[Plan]) -> list[tuple[str, Plan]]:
    """Each plan on one of the cheap cases, in turns, or on the one that it fits."""
    fitting = [[name for name in CHEAP if not refused(plan, name)] for plan in plans]
    return [(names[i % len(names)], plan) for i, (names, plan) in enumerate(zip(fitting, plans, strict=True))]


BUNDLED = [("tiny", plan) for plan in VARIED if {t.name for t in plan.techniques} & {"tgate", "rehash", "residual"}]
"""This pipeline has the sizes of a real one, so that it takes long: a few of the combinations."""


@pytest.mark.parametrize(("name", "plan"), _in_turns(list(PLANS.values())) + BUNDLED, ids=str)
def test_package_contract(name: str, plan: Plan) -> None:
    """What ``accel check`` runs on a user's pipeline passes here in full."""
    pipe = case(name).build()
    checks = run_contract(pipe, plan, lambda p, steps: run(case(name), p, steps=steps), steps_of(name))
    assert [str(check) for check in checks if not check.passed or check.detail.startswith("not checked")] == []
    assert len(checks) >= 14


@pytest.mark.parametrize(("name", "plan"), _in_turns(VARIED), ids=str)
def test_runs_of_every_shape_in_a_row(name: str, plan: Plan) -> None:
    size = case(name).sizes[-1]
    row = [{}, {"size": size}, {"batch": 2}, {"steps": 5}, {"guidance": False}, {"batch": 2, "size": size}, {"seed": 3}]
    pipe = case(name).build()
    with may_save_nothing(), accel.accelerate(pipe, plan):
        for kw in [*row, {}]:
            assert same(draw(name, pipe, **kw), fresh(name, plan, **kw)), kw


class Stop(Exception):
    """Raised by a step callback."""


@pytest.mark.parametrize("broken_at", [0, 1, 3])
@pytest.mark.parametrize("name", CHEAP[1:] + ("sd-plain",))
def test_error_in_a_callback(name: str, broken_at: int) -> None:
    """It frees what was kept at once; the next run, at another resolution too, is a fresh one."""

    def stop(pipe: object, step: int, *_: object) -> dict:
        if step == broken_at:
            raise Stop
        return {}

    plan = VARIED[1]
    pipe = case(name).build()
    with may_save_nothing(), accel.accelerate(pipe, plan) as handle:
        with pytest.raises(Stop):
            draw(name, pipe, callback_on_step_end=stop)
        report = handle.report()
        assert report.steps_run == broken_at + 1
        assert report.aborted == (report.steps_run < steps_of(name))  # the last callback comes after the last step
        assert report.cache_bytes == 0 < report.cache_bytes_peak
        for kw in ({"size": case(name).sizes[-1]}, {}):
            assert same(draw(name, pipe, **kw), fresh(name, plan, **kw)), kw


def test_interrupted_run() -> None:
    """``pipe._interrupt`` is how web front ends stop a run: it returns early, and keeps nothing."""

    def interrupt(pipe: object, step: int, *_: object) -> dict:
        pipe._interrupt = step == 2
        return {}

    plan, pipe = VARIED[0], case("wan").build()
    with accel.accelerate(pipe, plan) as handle:
        draw("wan", pipe, callback_on_step_end=interrupt)
        assert handle.report().steps_run == 3
        assert handle.report().cache_bytes == 0 < handle.report().cache_bytes_peak
        assert same(draw("wan", pipe), fresh("wan", plan))


def test_removal_in_the_middle_of_a_run() -> None:
    """The rest of the run is plain, so the picture is another one; the next run has the plain bits."""
    subject = bench("wan")
    handle = subject.attached(VARIED[0])
    with may_save_nothing():
        middle = draw("wan", subject.pipe, callback_on_step_end=lambda *_: handle.remove() or {})
    assert same(middle, subject.plain)  # the first step is always computed
    assert same(draw("wan", subject.pipe), subject.plain)


def test_reset_forgets_a_broken_run() -> None:
    subject = bench("pixart")
    with subject.attached(VARIED[0]) as handle:
        subject.pipe.progress_bar, bar = (lambda total: NoBar()), vars(subject.pipe).get("progress_bar")
        try:
            with pytest.raises(Stop):
                draw("pixart", subject.pipe, callback=lambda step, *_: raise_stop(step), callback_steps=1)
        finally:
            subject.pipe.progress_bar = bar
        assert handle.report().cache_bytes > 0  # nothing told us that the loop was left
        handle.reset()
        assert handle.report().cache_bytes == 0 and handle.report().aborted
        assert same(draw("pixart", subject.pipe), fresh("pixart", VARIED[0]))


class NoBar:
    """A progress bar that cannot be listened to."""

    def __enter__(self) -> NoBar:
        return self

    def __exit__(self, *_: object) -> None: ...

    def update(self) -> None: ...


def raise_stop(step: int) -> None:
    if step == 1:
        raise Stop


@pytest.mark.parametrize("plan", list(PLANS.values()), ids=list(PLANS))
def test_copies_of_a_plan_are_the_plan(plan: Plan) -> None:
    text = json.dumps(plan.to_dict())
    for again in (copy.deepcopy(plan), pickle.loads(pickle.dumps(plan)), Plan.from_dict(json.loads(text))):
        assert again == plan and str(again) == str(plan)
        assert json.dumps(again.to_dict()) == text


@pytest.mark.parametrize("name", CHEAP)
def test_hand_written_loop(name: str) -> None:
    """No pipeline on the call stack: the loop over its parts is accelerated all the same, and its bits repeat."""
    pipe = bench(name).pipe
    plain = _loop(pipe)
    with may_save_nothing(), accel.accelerate(pipe, PLANS["deepcache(warm_up=2)"]) as handle:
        fast = _loop(pipe)
        report = handle.report()
        assert (report.steps_run, sum(report.calls.values()), report.predicted) == (6, 6, 2)
        assert report.cache_bytes == 0
        assert same(_loop(pipe), fast) and not torch.equal(fast, plain)
    assert same(_loop(pipe), plain)


@torch.no_grad()
def _loop(pipe: object) -> torch.Tensor:
    video = type(pipe).__name__ == "WanPipeline"
    sample = torch.randn((1, 4, 3, 8, 8) if video else (1, 4, 16, 16), generator=torch.Generator().manual_seed(5))
    text = torch.ones(1, 8, 32) / 4
    more = {} if video else {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}}
    pipe.scheduler.set_timesteps(6)
    for t in pipe.scheduler.timesteps:
        noise = pipe.transformer(
            hidden_states=sample, timestep=t.expand(1), encoder_hidden_states=text, return_dict=False, **more
        )[0]
        sample = pipe.scheduler.step(noise[:, :4], t, sample).prev_sample
    return sample


def test_loop_with_recorded_gradients() -> None:
    """Nothing may be cached then; the warning names the cause, not one of its symptoms."""
    pipe = bench("wan").pipe
    with accel.accelerate(pipe, PLANS["deepcache(warm_up=2)"]):
        with pytest.warns(accel.AccelWarning, match="saved nothing in this run .gradients are being recorded"):
            _loop.__wrapped__(pipe)


@torch.no_grad()
def _views_loop(pipe: object) -> torch.Tensor:
    """Two overlapping views of one picture, each with a solver step of its own (MultiDiffusion)."""
    sample = torch.randn(1, 4, 8, 12, generator=torch.Generator().manual_seed(5))
    pipe.scheduler.set_timesteps(6)
    for t in pipe.scheduler.timesteps:
        views = [sample[..., :8], sample[..., 4:]]
        noise = []
        for i, view in enumerate(views):
            noise.append(pipe.unet(view, t, encoder_hidden_states=torch.ones(1, 8, 32) / 4).sample)
            views[i] = pipe.scheduler.step(noise[i], t, view).prev_sample
        sample = torch.cat([views[0][..., :4], (views[0][..., 4:] + views[1][..., :4]) / 2, views[1][..., 4:]], dim=-1)
    return sample


def test_loop_with_several_solver_steps_per_timestep() -> None:
    """Views are not steps: extrapolating from one to the next would mix parts of the picture."""
    pipe = bench("sd-plain").pipe
    plain = _views_loop(pipe)
    with accel.accelerate(pipe, PLANS["deepcache(warm_up=2)"]) as handle:
        with pytest.warns(accel.AccelWarning, match="several solver steps at one timestep"):
            assert same(_views_loop(pipe), plain)
        assert handle.report().aborted and handle.report().cache_bytes == 0


def test_direct_calls_beside_a_broken_run_are_plain() -> None:
    """A denoiser that is called by hand after a pipeline's run broke off is no part of that run."""
    subject = bench("wan")
    denoiser = subject.pipe.transformer
    inputs = {
        "hidden_states": torch.ones(1, 4, 3, 8, 8),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.ones(1, 8, 32),
        "return_dict": False,
    }
    with torch.no_grad():
        plain = denoiser(**inputs)[0]
        with subject.attached(PLANS["deepcache(warm_up=2)"]):
            subject.pipe.progress_bar, bar = (lambda total: NoBar()), vars(subject.pipe).get("progress_bar")
            with pytest.raises(Stop):
                draw("wan", subject.pipe, callback_on_step_end=lambda p, step, *_: raise_stop(step) or {})
            subject.pipe.progress_bar = bar
            assert torch.equal(denoiser(**inputs)[0], plain)

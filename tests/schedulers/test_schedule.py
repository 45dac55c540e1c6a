"""Schedules: read, rewritten, tried out; and how ways to take fewer steps rank on data whose denoiser is exact."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import diffusers
import numpy as np
import pytest
import torch

from accel.schedulers.gaussian import Gaussian, denoise
from accel.schedulers.levels import clean, level, output_for, sigma
from accel.schedulers.probe import abilities, doubles, equivalent
from accel.schedulers.schedule import Asked, StepPlan, edits, rewrite, thinned
from accel.schedulers.spacing import spaced, unfit

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True}
EDITABLE: dict[str, Any] = {
    "euler": diffusers.EulerDiscreteScheduler(),
    "dpm++": diffusers.DPMSolverMultistepScheduler(),
    "unipc": diffusers.UniPCMultistepScheduler(),
    "deis": diffusers.DEISMultistepScheduler(),
    "flow": diffusers.FlowMatchEulerDiscreteScheduler(shift=3.0),
    "flow-mu": diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True),
    "flow-unipc": diffusers.UniPCMultistepScheduler(**FLOW),
    "flow-dpm++": diffusers.DPMSolverMultistepScheduler(**FLOW),
}
REFUSED: dict[str, tuple[Any, str]] = {
    "ddim": (diffusers.DDIMScheduler(), "computes its next timestep from the number of steps"),
    "pndm": (diffusers.PNDMScheduler(), "computes its next timestep from the number of steps"),
    "heun": (diffusers.HeunDiscreteScheduler(), "two steps for each timestep"),
    "edm": (diffusers.EDMEulerScheduler(), "tells no noise level"),
}


@pytest.mark.parametrize("name", EDITABLE)
def test_a_scheduler_with_a_table_takes_any_schedule(name: str) -> None:
    can = abilities(EDITABLE[name])
    assert (can.count, can.timesteps, can.tail) == (None, None, None)


@pytest.mark.parametrize("name", ["EulerAncestralDiscrete", "SASolver", "FlowMatchLCM"])
def test_solvers_that_add_noise_do_too(name: str) -> None:
    can = abilities(getattr(diffusers, f"{name}Scheduler")())
    assert (can.count, can.timesteps, can.tail) == (None, None, None)


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_with_the_reason(name: str) -> None:
    scheduler, reason = REFUSED[name]
    can = abilities(scheduler)
    assert can.count is None
    for each in (can.timesteps, can.tail):
        assert each is not None and type(scheduler).__name__ in each and reason in each


def test_ddim_has_an_equivalent() -> None:
    hint = equivalent(REFUSED["ddim"][0])
    assert hint is not None and "EulerDiscreteScheduler.from_config" in hint
    assert equivalent(EDITABLE["euler"]) is None


def test_a_solver_that_loses_its_way_is_found_out() -> None:
    """A singlestep solver plans its orders for the whole run, so another tail breaks it: only trying shows that."""
    can = abilities(diffusers.DPMSolverSinglestepScheduler())
    assert can.timesteps is None
    assert can.tail is not None and "loses its way" in can.tail


def test_timesteps_that_rise_are_not_taken() -> None:
    can = abilities(diffusers.FlowMatchEulerDiscreteScheduler(invert_sigmas=True))
    assert can.timesteps is not None and "rise" in can.timesteps and can.tail == can.timesteps


def test_duplicate_timesteps_are_refused() -> None:
    """A known failure of diffusers: rounded spacings meet, and the solver runs out of its table."""
    scheduler = diffusers.DPMSolverMultistepScheduler(beta_schedule="squaredcos_cap_v2", use_karras_sigmas=True)
    scheduler.set_timesteps(20)
    problem = doubles(scheduler)
    assert problem is not None and "comes twice" in problem and "take fewer steps" in problem
    assert abilities(scheduler).count is not None


@pytest.mark.parametrize("kind", ["epsilon", "v_prediction", "sample", "flow_prediction"])
@pytest.mark.parametrize("time", [999.0, 500.0, 20.5])
def test_the_clean_sample_is_read_off_every_prediction(kind: str, time: float) -> None:
    config = FLOW if kind == "flow_prediction" else {"prediction_type": kind}
    scheduler = diffusers.DPMSolverMultistepScheduler(**config)
    x0, noise = torch.randn(2, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    signal, spread = level(scheduler, time)
    sample = signal * x0 + spread * noise
    torch.testing.assert_close(clean(scheduler, output_for(scheduler, x0, sample, time), sample, time), x0)


@pytest.mark.parametrize("name", EDITABLE)
def test_noise_levels_are_the_schedulers_own(name: str) -> None:
    fresh = ready(EDITABLE[name], 12)
    told = [sigma(fresh, float(t)) for t in fresh.timesteps]
    np.testing.assert_allclose(told, fresh.sigmas[:-1].numpy(), rtol=2e-2, atol=1e-3)


def test_a_schedule_rewritten_to_itself_changes_nothing() -> None:
    fresh = ready(EDITABLE["euler"], 9)
    again = copy.deepcopy(fresh)
    rewrite(again, fresh.timesteps.tolist())
    torch.testing.assert_close(again.timesteps, fresh.timesteps)
    torch.testing.assert_close(again.sigmas, fresh.sigmas)


@pytest.mark.parametrize(("done", "left"), [(0, 4), (5, 3), (11, 1), (3, 9)])
def test_a_thinned_tail_keeps_what_is_done_and_ends_at_the_end(done: int, left: int) -> None:
    fresh = ready(EDITABLE["dpm++"], 12)
    before = copy.deepcopy(fresh)
    thinned(fresh, done, left)
    assert len(fresh.timesteps) == done + left and len(fresh.sigmas) == done + left + 1
    assert torch.equal(fresh.timesteps[: done + 1], before.timesteps[: done + 1])
    assert set(fresh.timesteps.tolist()) <= set(before.timesteps.tolist())
    assert fresh.sigmas[-1] == before.sigmas[-1]
    assert (fresh.sigmas.diff() < 0).all()


def test_what_a_call_asks_for_is_read_however_it_is_said() -> None:
    flow = EDITABLE["flow"]
    assert Asked.of(flow, (30,), {"device": "cpu"}).count == 30
    assert Asked.of(flow, (), {"num_inference_steps": 30}).count == 30
    assert Asked.of(flow, (), {"sigmas": [1.0, 0.5]}).count == 2
    assert Asked.of(flow, (), {"timesteps": [900.0, 500.0, 100.0]}).own
    assert Asked.of(flow, (30,), {"mu": 0.7}).at(10) == {"num_inference_steps": 10, "mu": 0.7}


@pytest.mark.parametrize(("asked", "count"), [(50, 20), (28, 4), (7, 7)])
def test_noise_levels_that_a_pipeline_brings_keep_their_course(asked: int, count: int) -> None:
    """Flux and others hand over linspace(1, 1/n, n): for another n it must be that of the other n."""
    brought = np.linspace(1, 1 / asked, asked)
    changed = Asked.of(EDITABLE["flow"], (), {"sigmas": brought}).at(count)
    np.testing.assert_allclose(changed["sigmas"], np.linspace(1, 1 / count, count), atol=1e-12)


def test_a_plan_never_adds_steps() -> None:
    assert [StepPlan(12).steps(n) for n in (50, 12, 5)] == [12, 12, 5]
    assert StepPlan().steps(7) == 7 and StepPlan(timesteps=(900.0, 100.0)).steps(7) == 2


# --- which way to take fewer steps? ----------------------------------------------------------------------------------

SIZE, LONG, SHORT, DECIDED = 512, 48, 12, 6


def power_law(slope: float = 2.0) -> Gaussian:
    """Independent coordinates with the variances of natural pictures' frequencies, mean 1."""
    variance = torch.arange(1, SIZE + 1, dtype=torch.float64) ** -(slope / 2)
    return Gaussian(variance / variance.mean())


def psnr(result: torch.Tensor, truth: torch.Tensor) -> float:
    return float(10 * torch.log10(truth.abs().max() ** 2 / ((result - truth) ** 2).mean()))


def stepped(scheduler: Any, data: Gaussian, change: Callable[[Any], None] = lambda fresh: None) -> torch.Tensor:
    """A run of `LONG` planned steps whose schedule is changed after `DECIDED`; it takes `SHORT` at most."""
    fresh = ready(scheduler, LONG)
    sample = noise() * fresh.init_noise_sigma
    for step in range(SHORT):
        if step == DECIDED:
            change(fresh)
        time = fresh.timesteps[step]
        fresh.scale_model_input(sample, time)
        sample = fresh.step(data.output(fresh, sample, float(time)), time, sample, return_dict=False)[0]
    return sample


def ready(scheduler: Any, steps: int) -> Any:
    """A copy with that many steps."""
    fresh = copy.deepcopy(scheduler)
    fresh.set_timesteps(steps, **({"mu": 1.0} if fresh.config.get("use_dynamic_shifting") else {}))
    return fresh


def noise() -> torch.Tensor:
    return torch.randn(4, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


@pytest.mark.parametrize("slope", [1.5, 2.0, 3.0])
@pytest.mark.parametrize("name", ["euler", "dpm++", "unipc"])
def test_deciding_up_front_beats_respacing_beats_breaking_off(name: str, slope: float) -> None:
    """The same number of denoiser calls each, held against the long run."""
    kind, data = type(EDITABLE[name]), power_law(slope)
    scheduler = kind(timestep_spacing="trailing", beta_schedule="scaled_linear", beta_start=0.00085, beta_end=0.012)
    truth = denoise(ready(scheduler, 4 * LONG), data, noise())
    up_front = psnr(denoise(ready(scheduler, SHORT), data, noise()), truth)
    respaced = psnr(stepped(scheduler, data, lambda fresh: thinned(fresh, DECIDED, SHORT - DECIDED)), truth)
    broken_off = psnr(stepped(scheduler, data), truth)
    assert respaced > broken_off + 5
    assert up_front > broken_off + 10
    assert up_front > respaced - 3  # of many steps at high noise a multistep solver may even gain


def test_editing_only_the_timesteps_breaks_a_multistep_solver() -> None:
    """Why `thinned` cuts the schedule: the solver asks for its length when it lowers its order at the end."""
    data, scheduler = power_law(), diffusers.DPMSolverMultistepScheduler(timestep_spacing="trailing")
    assert edits(ready(scheduler, LONG)) is None

    def careless(fresh: Any) -> None:
        rest = len(fresh.timesteps) - DECIDED
        kept = copy.deepcopy(fresh)
        thinned(kept, DECIDED, SHORT - DECIDED)
        fresh.timesteps = torch.cat([kept.timesteps, kept.timesteps[-1:].repeat(rest - (SHORT - DECIDED))])
        fresh.sigmas = torch.cat([kept.sigmas, kept.sigmas[-1:].repeat(rest - (SHORT - DECIDED))])

    assert stepped(scheduler, data, lambda fresh: thinned(fresh, DECIDED, SHORT - DECIDED)).isfinite().all()
    assert not stepped(scheduler, data, careless).isfinite().all()


# --- spacings --------------------------------------------------------------------------------------------------------

SD = {"beta_schedule": "scaled_linear", "beta_start": 0.00085, "beta_end": 0.012}
SVD = diffusers.EulerDiscreteScheduler(
    **SD,
    prediction_type="v_prediction",
    timestep_type="continuous",
    use_karras_sigmas=True,
    sigma_min=0.002,
    sigma_max=700.0,
)


@pytest.mark.parametrize(
    ("spacing", "name"), [("ays_sd15", "StableDiffusionTimesteps"), ("ays_sdxl", "StableDiffusionXLTimesteps")]
)
def test_ten_steps_of_a_published_table_are_its_timesteps(spacing: str, name: str) -> None:
    """diffusers ships the tables twice, as noise levels, which are used, and as timesteps."""
    scheduler = diffusers.DPMSolverMultistepScheduler(**SD)
    assert unfit(scheduler, spacing) is None
    published = diffusers.schedulers.AysSchedules[name]
    np.testing.assert_allclose(spaced(scheduler, spacing, 10), published, atol=1)


def test_a_table_for_another_number_of_steps_keeps_its_course() -> None:
    scheduler = diffusers.DPMSolverMultistepScheduler(**SD)
    ten, twenty, one = (np.array(spaced(scheduler, "ays_sd15", n)) for n in (10, 20, 1))
    np.testing.assert_allclose(twenty[::2], ten)
    assert (np.diff(twenty) < 0).all() and one[0] == ten[0] == 999
    levels = np.log([sigma(scheduler, time) for time in twenty])
    np.testing.assert_allclose(levels[1:-1:2], (levels[:-2:2] + levels[2::2]) / 2, atol=1e-4)


def test_the_video_table_is_for_a_model_that_counts_time_by_noise() -> None:
    assert unfit(SVD, "ays_svd") is None
    fresh = ready(SVD, 10)
    assert sigma(fresh, float(fresh.timesteps[3])) == pytest.approx(float(fresh.sigmas[3]), rel=1e-5)
    assert abilities(SVD).timesteps is None
    rewrite(fresh, spaced(SVD, "ays_svd", 10))
    table = diffusers.schedulers.AysSchedules["StableDiffusionVideoSigmas"]
    np.testing.assert_allclose(fresh.sigmas.numpy(), table, rtol=1e-5)
    np.testing.assert_allclose(fresh.timesteps.numpy(), np.log(table[:-1]) / 4, rtol=1e-4)


@pytest.mark.parametrize(
    ("spacing", "option"), [("karras", "use_karras_sigmas"), ("exponential", "use_exponential_sigmas")]
)
def test_a_formula_is_that_of_diffusers(spacing: str, option: str) -> None:
    """Which takes its ends from a schedule that has every timestep."""
    scheduler = diffusers.EulerDiscreteScheduler(**SD)
    smallest, largest = sigma(scheduler, 0.0), sigma(scheduler, 999.0)
    theirs = ready(diffusers.EulerDiscreteScheduler(**SD, **{option: True}, sigma_min=smallest, sigma_max=largest), 12)
    ours = [sigma(scheduler, time) for time in spaced(scheduler, spacing, 12)]
    np.testing.assert_allclose(ours, theirs.sigmas[:-1].numpy(), rtol=2e-3)


@pytest.mark.parametrize(
    ("scheduler", "spacing", "reason"),
    [
        (diffusers.DPMSolverMultistepScheduler(**SD), "ays_svd", "begins at noise level 700, this model at 14.61"),
        (diffusers.DPMSolverMultistepScheduler(), "ays_sd15", "it is another's"),
        (SVD, "ays_sdxl", "it is another's"),
        (EDITABLE["flow"], "karras", "flow matching has a shift of its own"),
        (diffusers.DDIMScheduler(rescale_betas_zero_snr=True), "exponential", "begins without any signal"),
        (diffusers.EDMEulerScheduler(), "karras", "tells no noise level"),
    ],
)
def test_a_spacing_for_another_model_is_refused(scheduler: Any, spacing: str, reason: str) -> None:
    problem = unfit(scheduler, spacing)
    assert problem is not None and reason in problem


@pytest.mark.parametrize("steps", [1, 2, 9, 30])
@pytest.mark.parametrize("spacing", ["karras", "exponential", "ays_sd15"])
def test_a_spacing_falls_from_the_first_noise_level(spacing: str, steps: int) -> None:
    times = spaced(diffusers.DPMSolverMultistepScheduler(**SD), spacing, steps)
    assert len(times) == steps and times[0] == pytest.approx(999)
    assert all(later < earlier for earlier, later in zip(times, times[1:], strict=False)) and times[-1] >= 0

"""Short schedules chosen on a long trajectory."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler

from accel import AccelError
from accel.contract.trace import differences, trace
from accel.schedulers.gaussian import Gaussian, denoise
from accel.schedulers.levels import clean, is_variance_exploding, level
from accel.schedulers.optimise import best_path, errors, judge, optimise
from accel.schedulers.recording import Runs, Trajectory
from accel.schedulers.refine import bent, refined
from accel.schedulers.schedule import rewrite
from accel.schedulers.steps import Steps
from tests.families import case, run, with_scheduler
from tests.schedulers.small import small

NODES = 7


def test_the_path_is_the_cheapest_of_all() -> None:
    rng = np.random.default_rng(0)
    cost = np.full((NODES, NODES, NODES + 1), np.inf)
    for i in range(NODES):
        cost[: i + 1, i, i + 1 :] = rng.random((i + 1, NODES - i))

    def total(path: tuple[int, ...]) -> float:
        ends = (*path, NODES)
        later = zip(ends, ends[1:], ends[2:], strict=False)
        return cost[0, 0, ends[1]] + sum(cost[g, i, j] for g, i, j in later)

    for steps in range(1, NODES + 1):
        paths = [(0, *rest) for rest in itertools.combinations(range(1, NODES), steps - 1)]
        assert tuple(best_path(cost, steps)) == min(paths, key=total)


def recorded(scheduler: Any, data: Gaussian, start: torch.Tensor) -> tuple[Trajectory, Any]:
    """The scheduler's run on exact data, as `optimise` records it from a pipeline."""
    track, sample = Trajectory(), start * scheduler.init_noise_sigma
    for time in scheduler.timesteps:
        scheduler.scale_model_input(sample, time)
        output = data.output(scheduler, sample, float(time))
        signal, noise = level(scheduler, float(time))
        track.times.append(float(time))
        track.levels.append((signal, noise))
        track.samples.append([(sample * (signal if is_variance_exploding(scheduler) else 1.0)).flatten()])
        track.cleans.append([clean(scheduler, output, sample, float(time)).flatten()])
        sample = scheduler.step(output, time, sample, return_dict=False)[0]
    track.samples.append([sample.flatten()])
    return track, sample


@pytest.mark.parametrize(("kind", "order"), [(EulerDiscreteScheduler, 1), (DPMSolverMultistepScheduler, 2)])
def test_the_error_of_a_step_is_what_the_solver_makes(kind: Any, order: int) -> None:
    """Each node's own next step has no error: the formula is the solver's. A longer one has what the solver misses."""
    scheduler = kind(timestep_spacing="trailing")
    scheduler.set_timesteps(12)
    start = torch.randn(64, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Gaussian(torch.linspace(0.1, 2, 64, dtype=torch.float64))
    track, _ = recorded(scheduler, data, start)
    cost = errors(track, order)
    assert cost[0, 0, 1] < 1e-6
    for node in range(1, 11):
        assert cost[node - 1, node, node + 1] < 1e-6
        assert cost[node - 1, node, 12] > cost[node - 1, node, node + 1]
    assert np.isinf(cost[3, 5, 5]) and np.isinf(cost[5, 3, 6])


def test_a_chosen_schedule_beats_the_solvers_own_on_exact_data() -> None:
    fine, few = DPMSolverMultistepScheduler(timestep_spacing="trailing"), 6
    fine.set_timesteps(60)
    start = torch.randn(256, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data = Gaussian(torch.linspace(0.01, 2, 256, dtype=torch.float64))
    track, truth = recorded(fine, data, start)
    missed = []
    for nodes in (None, best_path(errors(track, 2), few)):
        scheduler = DPMSolverMultistepScheduler(timestep_spacing="trailing")
        scheduler.set_timesteps(few)
        if nodes:
            rewrite(scheduler, [track.times[node] for node in nodes])
        missed.append(float(((recorded(scheduler, data, start)[1] - truth) ** 2).mean()))
    assert missed[1] < 0.8 * missed[0]


# --- refining by the final sample ------------------------------------------------------------------------------------


def on_exact_data(few: int, values: int = 64) -> tuple[Any, list[float], Any]:
    """What DPM++ misses of a long run on exact data, its own timesteps, and the path chosen by single steps."""
    data = Gaussian(torch.linspace(0.01, 2, values, dtype=torch.float64))
    start = torch.randn(values, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    long = DPMSolverMultistepScheduler(timestep_spacing="trailing")
    long.set_timesteps(60)
    track, truth = recorded(long, data, start)
    own = DPMSolverMultistepScheduler(timestep_spacing="trailing")
    own.set_timesteps(few)

    def missed(timesteps: Any) -> Any:
        scheduler = copy.deepcopy(own)
        rewrite(scheduler, timesteps)
        return (denoise(scheduler, data, start) - truth).numpy()

    return missed, own.timesteps.tolist(), [track.times[node] for node in best_path(errors(track, 2), few)]


def error(missed: Any, timesteps: Any) -> float:
    return float((missed(timesteps) ** 2).mean())


def test_two_steps_are_refined_to_the_best_there_are() -> None:
    """There is one timestep to choose, so all can be tried."""
    missed, own, _ = on_exact_data(2)
    best = min(error(missed, (own[0], time)) for time in range(1, 990, 8))
    assert error(missed, refined(missed, own, rounds=8)) < 1.02 * best < 0.6 * error(missed, own)


@pytest.mark.parametrize(("few", "left"), [(4, 1.0), (6, 0.5), (10, 0.01)])
def test_refining_beats_the_solvers_own_and_the_path_of_single_steps(few: int, left: float) -> None:
    """``left`` is what remains of the error of the path, which may be as good as it gets nearby."""
    missed, own, path = on_exact_data(few)
    found = refined(missed, own)
    assert found[0] == own[0] and all(later < earlier for earlier, later in zip(found, found[1:], strict=False))
    assert error(missed, found) < 0.25 * error(missed, own)
    assert error(missed, refined(missed, path)) <= left * error(missed, path)


def test_a_schedule_that_misses_nothing_stays() -> None:
    assert refined(lambda times: np.zeros(8), (999.0, 600.0, 200.0)) == (999.0, 600.0, 200.0)
    assert refined(lambda times: np.ones(8), (999.0,)) == (999.0,)


@pytest.mark.parametrize("size", [0.0, 0.5, 30.0])
def test_a_bent_schedule_is_one(size: float) -> None:
    times = (999.0, 700.0, 300.0, 100.0, 3.0)
    for bends in size * np.random.default_rng(0).normal(size=(20, 4)):
        found = np.array(bent(times, bends))
        assert found[0] == 999 and (np.diff(found) <= -1 + 1e-9).all() and found[-1] >= 0
    np.testing.assert_allclose(bent(times, np.zeros(4)), times)


# --- on pipelines ----------------------------------------------------------------------------------------------------


def test_a_pipeline_is_left_as_it_was_and_its_schedule_is_one() -> None:
    pipe = with_scheduler(case("sd").build(), "dpm++")
    plain = run(case("sd"), pipe, steps=4)
    before = trace(pipe)
    prompts = [case("sd").inputs(steps=4, seed=seed) for seed in (0, 1)]
    found = optimise(pipe, prompts, steps=4, nodes=9)
    assert len(found.timesteps) == 4
    assert found.steps == (Steps(timesteps=found.timesteps) if found.gain.low > 0 else Steps(count=4))
    assert ("own schedule is kept" in str(found)) == (found.gain.low <= 0)
    assert differences(before, trace(pipe)) == []
    assert torch.equal(run(case("sd"), pipe, steps=4), plain)


def test_texts_drawn_together_are_what_they_are_alone() -> None:
    pipe = with_scheduler(small(), "dpm++")
    prompts = ["a red star", "two green squares", "a blue circle"]
    call = {"guidance_scale": 3.0, "height": 16, "width": 16}
    together, again, alone = (Runs(pipe, prompts, call, 5, batch).final(3) for batch in (2, 2, 1))
    assert together.shape[0] == 3 and np.array_equal(together, again)
    np.testing.assert_allclose(together, alone, atol=1e-3)
    assert np.abs(together[0] - together[1]).max() > 0.1


def test_a_schedule_is_kept_only_where_it_wins_on_other_prompts() -> None:
    """The long run's own timesteps, of which the short run has only the first, are worse than any even spacing."""
    pipe = with_scheduler(small(), "dpm++")
    runs = Runs(pipe, ["a red star", "two green squares"], {"guidance_scale": 3.0, "height": 16, "width": 16})
    worse = judge(runs, (999.0, 998.0, 997.0), nodes=12)
    assert worse.gain.high < 0 and worse.steps == Steps(count=3) and "the solver's own schedule is kept" in str(worse)
    own = tuple(runs.record(4).times)
    same = judge(runs, own, nodes=12)
    assert same.gain.value == 0 and same.steps == Steps(count=4)


def test_bad_input_is_told() -> None:
    pipe = case("sd").build()
    with pytest.raises(AccelError, match="EulerDiscreteScheduler.from_config"):
        optimise(with_scheduler(pipe, "ddim"), ["a", "b"], steps=4)
    with pytest.raises(AccelError, match="give at least 2"):
        optimise(pipe, ["a"], steps=4)
    with pytest.raises(AccelError, match="chosen from more than that"):
        optimise(with_scheduler(pipe, "dpm++"), ["a", "b"], steps=9, nodes=9)

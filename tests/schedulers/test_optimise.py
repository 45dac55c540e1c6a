"""Short schedules chosen on a long trajectory."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import DPMSolverMultistepScheduler, EulerDiscreteScheduler

from accel import AccelError
from accel.contract.trace import differences, trace
from accel.schedulers.gaussian import Gaussian
from accel.schedulers.levels import clean, is_variance_exploding, level
from accel.schedulers.optimise import Trajectory, best_path, errors, optimise
from accel.schedulers.schedule import rewrite
from tests.families import case, run, with_scheduler

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


def test_a_pipeline_is_left_as_it_was_and_its_schedule_is_one() -> None:
    pipe = with_scheduler(case("sd").build(), "dpm++")
    plain = run(case("sd"), pipe, steps=4)
    before = trace(pipe)
    prompts = [case("sd").inputs(steps=4, seed=seed) for seed in (0, 1)]
    found = optimise(pipe, prompts, steps=4, nodes=9)
    assert (
        found.before > 0 and found.after > 0 and found.gain == pytest.approx(10 * np.log10(found.before / found.after))
    )
    assert len(found.steps.timesteps) == 4 if found.gain > 0 else found.steps.count == 4
    assert ("own schedule is kept" in str(found)) == (found.gain <= 0)
    assert differences(before, trace(pipe)) == []
    assert torch.equal(run(case("sd"), pipe, steps=4), plain)


def test_bad_input_is_told() -> None:
    pipe = case("sd").build()
    with pytest.raises(AccelError, match="EulerDiscreteScheduler.from_config"):
        optimise(with_scheduler(pipe, "ddim"), ["a", "b"], steps=4)
    with pytest.raises(AccelError, match="give at least 2"):
        optimise(pipe, ["a"], steps=4)
    with pytest.raises(AccelError, match="chosen from more than that"):
        optimise(pipe, ["a", "b"], steps=9, nodes=9)

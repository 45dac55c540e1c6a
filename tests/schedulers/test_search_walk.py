"""Leaving early, replaying and entering late, on pipelines and solvers that know nothing of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from accel.contract.census import Census
from accel.errors import AccelError
from accel.hooks import labels
from accel.schedulers.levels import clean
from accel.schedulers.search.noise import fresh, neighbour, renoised
from accel.schedulers.search.walk import Route, Walk, _joined, _lane
from accel.target import Target
from tests.families import case, run, with_scheduler

STEPS, STOP = 6, 2
PIPELINES = ("sd", "sd-plain", "sdxl", "flux", "flux-cfg", "sd3", "pixart", "wan")
SOLVERS = ("ddim", "euler", "euler-a", "dpm++", "unipc", "heun", "lcm", "pndm")


def walked(name: str, pipe: Any, batch: int, route: Route, **more: Any) -> tuple[torch.Tensor, Walk]:
    with Walk(Target.of(pipe), batch, route) as walk:
        out = run(case(name), pipe, steps=STEPS, batch=batch, **more)
    return out, walk


def rows_of_one(name: str, pipe: Any) -> int:
    """Denoiser rows of one whole plain run of one picture, by a plain torch hook."""
    with Census.of({"it": Target.of(pipe).denoisers[0].module}) as census:
        run(case(name), pipe, steps=STEPS, batch=1)
    return census.total("it")


def check_resumed(name: str, pipe: Any) -> None:
    """Two of three pictures go on after a preview, as if they had been drawn at once; the work is what is left."""
    module = Target.of(pipe).denoisers[0].module
    plain = run(case(name), pipe, steps=STEPS, batch=2)
    preview, seen = walked(name, pipe, 3, Route(leave=STOP))
    resumed, rest = walked(name, pipe, 2, Route(lanes=seen.lanes[:2], replay=STOP))
    assert torch.allclose(resumed, plain, atol=1e-5)
    assert len(preview) == 3 and not torch.allclose(preview[:2], plain, atol=1e-3)
    assert seen.evaluations % (3 * STOP) == 0
    assert rest.evaluations == 2 * (rows_of_one(name, pipe) - seen.evaluations // 3)
    assert torch.equal(run(case(name), pipe, steps=STEPS, batch=2), plain)
    assert "step" not in vars(pipe.scheduler)
    assert not labels(module) and "forward" not in vars(module)


@pytest.mark.parametrize("name", PIPELINES)
def test_survivors_go_on_on_every_pipeline(name: str) -> None:
    check_resumed(name, case(name).build())


@pytest.mark.parametrize("solver", SOLVERS)
def test_survivors_go_on_with_every_solver(solver: str) -> None:
    check_resumed("sd", with_scheduler(case("sd").build(), solver))


@pytest.mark.parametrize(("name", "solver"), [("sd", "ddim"), ("sd", "euler"), ("sd", "dpm++"), ("flux", None)])
def test_a_preview_is_the_clean_sample_of_its_step(name: str, solver: str | None) -> None:
    pipe = case(name).build()
    pipe = pipe if solver is None else with_scheduler(pipe, solver)
    scheduler, made = pipe.scheduler, []
    step = type(scheduler).step

    def note(model_output: torch.Tensor, timestep: torch.Tensor, sample: torch.Tensor, **more: Any) -> Any:
        made.append(clean(scheduler, model_output, sample, float(timestep)))
        return step(scheduler, model_output, timestep, sample, **more)

    scheduler.step = note
    run(case(name), pipe, steps=STEPS)
    del scheduler.step
    preview, walk = walked(name, pipe, 1, Route(leave=STOP))  # the cases return latents
    assert torch.allclose(preview.flatten(), made[STOP - 1].flatten(), atol=1e-4)
    assert len(walk.times) == STEPS and walk.times == sorted(walk.times, reverse=True)


@pytest.mark.parametrize(("name", "solver"), [("sd", "ddim"), ("sd", "euler"), ("flux", None), ("sd3", None)])
def test_entering_with_its_own_sample_is_going_on(name: str, solver: str | None) -> None:
    """For solvers without a history."""
    pipe = case(name).build()
    pipe = pipe if solver is None else with_scheduler(pipe, solver)
    plain = run(case(name), pipe, steps=STEPS, batch=2)
    _, seen = walked(name, pipe, 2, Route(leave=3))
    entered, rest = walked(name, pipe, 2, Route(lanes=seen.lanes, replay=3, enter=seen.sample))
    assert torch.allclose(entered, plain, atol=1e-4)
    assert rest.evaluations == seen.evaluations  # three steps each
    other, _ = walked(name, pipe, 2, Route(lanes=seen.lanes, replay=3, enter=seen.sample + 1))
    assert not torch.allclose(other, plain, atol=1e-2)


@pytest.mark.parametrize("solver", ["dpm++", "unipc"])
def test_a_multistep_solver_enters_without_a_history(solver: str) -> None:
    pipe = with_scheduler(case("sd").build(), solver)
    plain = run(case("sd"), pipe, steps=STEPS, batch=2)
    _, seen = walked("sd", pipe, 2, Route(leave=3))
    entered, _ = walked("sd", pipe, 2, Route(lanes=seen.lanes, replay=3, enter=seen.sample))
    assert entered.isfinite().all() and not torch.equal(entered, plain)
    assert (entered - plain).square().mean() < 0.1 * plain.square().mean()


def test_an_exception_leaves_nothing_behind() -> None:
    pipe = case("sd").build()

    def fail(*_: Any) -> Any:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        walked("sd", pipe, 2, Route(leave=STOP), callback_on_step_end=fail)
    assert "step" not in vars(pipe.scheduler) and not labels(pipe.unet)
    check_resumed("sd", pipe)


def test_a_call_that_never_steps_is_told() -> None:
    with pytest.raises(AccelError, match="does not step its scheduler"), Walk(Target.of(case("sd").build()), 1):
        pass


def test_lanes_are_rows_of_both_halves() -> None:
    output = {"sample": torch.arange(6.0).reshape(6, 1), "scale": torch.tensor(7.0)}
    lanes = [_lane([[output]], row, 3) for row in range(3)]
    assert lanes[1][0][0]["sample"].flatten().tolist() == [1, 4]
    back = _joined([lanes[2][0][0], lanes[0][0][0]])
    assert back["sample"].flatten().tolist() == [2, 0, 5, 3] and float(back["scale"]) == 7
    with pytest.raises(AccelError, match="no rows that could be told apart"):
        _lane([[[torch.zeros(2)]]], 0, 1)


# --- noise ------------------------------------------------------------------------------------------------------------


def test_neighbours_stay_noise() -> None:
    pivot, noise = fresh(torch.zeros(1, 100_000), 0, 0), fresh(torch.zeros(1, 100_000), 0, 1)
    near = neighbour(pivot, 0.5, noise)
    assert float(near.std()) == pytest.approx(1, abs=0.01)
    assert float((near * pivot).mean()) == pytest.approx(1 / 1.25**0.5, abs=0.01)
    assert torch.equal(near, neighbour(pivot, 0.5, fresh(torch.zeros(1, 100_000), 0, 1)))


@pytest.mark.parametrize(("name", "solver"), [("sd", "ddim"), ("sd", "euler"), ("flux", None)])
def test_renoised_samples_are_those_of_the_earlier_step(name: str, solver: str | None) -> None:
    """Mean and spread of a sample that was noised from zero are those of the earlier noise level."""
    scheduler = (with_scheduler(case(name).build(), solver) if solver else case(name).build()).scheduler
    noise = [fresh(torch.zeros(1, 100_000), 1, move) for move in range(2)]
    late = noised(scheduler, 300.0, noise[0])
    back = renoised(scheduler, late, 300.0, 600.0, noise[1])
    expected = noised(scheduler, 600.0, noise[1])
    assert float(back.std()) == pytest.approx(float(expected.std()), rel=0.01)
    assert float(back.mean()) == pytest.approx(float(expected.mean()), abs=0.02 * float(expected.std()))
    assert torch.allclose(renoised(scheduler, late, 300.0, 300.0, noise[1]), late, atol=1e-3)


def noised(scheduler: Any, time: float, noise: torch.Tensor) -> torch.Tensor:
    """Two, with noise, in the solver's own scale."""
    from accel.schedulers.levels import is_variance_exploding, level

    signal, spread = level(scheduler, time)
    x = 2 * signal + spread * noise
    return x / signal if is_variance_exploding(scheduler) else x

"""Weights fitted to the final picture: the algebra on planted problems, and once on the bundled pipeline."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

import accel
from accel import AccelError, Plan, cli
from accel.caches import fitting
from accel.caches.deepcache import DeepCache
from accel.caches.fitted import FittedCache
from accel.caches.guidance import GuidanceCache
from accel.caches.table import Row
from accel.handle import handles
from accel.runs import Run
from tests.families import case, run

CELLS = "1110101"
PROMPTS = ["a red star", "a penguin", "two blue circles", "a big green ring", "a frog", "a moon and a heart"]


def fitted(*weights: tuple[float, ...], cells: str = "1110") -> Row:
    return Row(cells, "fitted", weights=weights)


class Planted(fitting._Bench):
    """Samples that depend on the weights by a known matrix; the reference is what ``best`` gives, plus noise."""

    def __init__(self) -> None:
        start = FittedCache(deep=Row(CELLS, "linear"), guidance=Row(CELLS, "reuse"))
        super().__init__(accel.load("tiny"), PROMPTS, start, 9, {}, 0, 2, lambda *_: None)
        make = torch.Generator().manual_seed(0)
        self.best = torch.randn(2 * 2 + 2, generator=make, dtype=torch.float64)
        self.matrix = torch.randn(len(PROMPTS), 40, 6, generator=make, dtype=torch.float64)
        self.noise = torch.zeros(len(PROMPTS), 40, dtype=torch.float64)

    def _run(self) -> Run:
        return Run([float(9 - step) for step in range(len(CELLS))], [1.5**-step for step in range(len(CELLS))])

    def _sample(self, technique: FittedCache, rows: Sequence[int]) -> torch.Tensor:
        self.runs += 1
        return self.matrix[list(rows)] @ fitting._flat(technique)

    def _truth(self, rows: Sequence[int]) -> torch.Tensor:
        return self.matrix[list(rows)] @ self.best + self.noise[list(rows)]


def test_planted_weights_are_found():
    found = Planted().fit(range(4), range(4, 6))
    (technique,) = found.plan.techniques
    assert isinstance(technique, FittedCache)
    torch.testing.assert_close(fitting._flat(technique), Planted().best, atol=0.1, rtol=0)
    assert found.after < found.before - 25
    assert found.runs == 2 * (1 + 6) + 5  # two chunks of prompts, then five candidates on one


def test_where_fitting_only_fits_noise_the_polynomials_stay():
    bench = Planted()
    bench.best = fitting._flat(fitting._weighted(bench.start, bench._run().along("logsnr")))
    bench.noise = torch.randn(6, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    bench.noise[4:] = 0  # on the held-out prompts the polynomials are perfect
    found = bench.fit(range(4), range(4, 6))
    assert found.after == found.before < -200
    torch.testing.assert_close(fitting._flat(found.plan.techniques[0]), bench.best)


def test_the_directions_of_a_cell_are_its_level_and_its_slopes_and_span_its_weights():
    technique = FittedCache(deep=fitted((1.0, 2.0, 3.0)), guidance=fitted((1.0,)))
    found = fitting._directions(technique)
    assert found.tolist() == [[0.25, 0, 0, 0], [1, -1, 0, 0], [1, 0, -1, 0], [0, 0, 0, 0.25]]


def test_polynomials_written_out_as_weights_give_the_same_picture():
    pipe = case("sd").build()
    run_with = [DeepCache(axis="logsnr"), GuidanceCache(axis="logsnr")]
    bench = fitting._Bench(pipe, PROMPTS, FittedCache(deep=Row(CELLS, "linear", "logsnr")), 7, {}, 0, 2, print)
    with accel.accelerate(pipe, run_with[0]):
        expected = run(case("sd"), pipe, steps=7)
    pipe.scheduler.set_timesteps(7)
    alphas = pipe.scheduler.alphas_cumprod[pipe.scheduler.timesteps]
    places = (alphas / (1 - alphas)).log().tolist()
    with accel.accelerate(pipe, fitting._weighted(bench.start, places)) as handle:
        got = run(case("sd"), pipe, steps=7)
        assert handle.report().techniques["fitted"].predicted == 2
    torch.testing.assert_close(got, expected, atol=1e-4, rtol=1e-4)


def test_fitting_the_bundled_pipeline_brings_it_closer_to_the_long_run():
    pipe = accel.load("tiny")
    pipe.set_progress_bar_config(disable=True)
    told: list[str] = []
    options = {"steps": 6, "deep": "111010", "guidance": None, "reference": 12, "batch": 5, "held_out": 0.17}
    found = fitting.fit(
        pipe, PROMPTS, **options, call={"guidance_scale": 4.0}, progress=lambda what, *_: told.append(what)
    )
    assert {"fitting", "judging"} <= set(told)
    again = Plan.from_dict(found.plan.to_dict())
    assert again.techniques == found.plan.techniques
    assert not handles(pipe)

    def off(technique: FittedCache) -> float:
        bench = fitting._Bench(pipe, PROMPTS, technique, 12, {"guidance_scale": 4.0}, 0, 5, lambda *_: None)
        return bench._error(technique, range(5))

    polynomial = FittedCache(deep=Row("111010", "linear", "logsnr"))
    assert off(found.plan.techniques[0]) < off(polynomial)


def test_the_command_writes_a_plan_that_generate_takes(tmp_path, capsys):
    plan, out = str(tmp_path / "plan.json"), str(tmp_path / "out")
    fit = ["fit", "--steps", "5", "--interval", "2", "--warm-up", "3", "--n", "4", "--solver", "dpm++", "--out", plan]
    assert cli.main(fit) == 0
    said = capsys.readouterr().out
    assert "dB closer to the long run on held-out prompts" in said and "--steps 5 --solver dpm++" in said
    assert cli.main(["generate", "a red star", "--plan", plan, "--steps", "5", "--solver", "dpm++", "--out", out]) == 0
    assert cli.main(["fit", "--n", "1", "--steps", "5", "--out", plan]) == 2
    assert "1 prompts are too few" in capsys.readouterr().err


def test_a_run_of_another_length_is_plain_and_says_so():
    pipe, plan = case("sd").build(), FittedCache(deep=fitted((1.5, -0.5)), guidance=fitted((1.0,)))
    expected = run(case("sd"), pipe, steps=5)
    with accel.accelerate(pipe, plan) as handle, pytest.warns(accel.AccelWarning):
        assert torch.equal(run(case("sd"), pipe, steps=5), expected)
    for name in ("fitted", "fitted guidance"):
        assert "its weights are for 4 steps, this run has 5" in handle.report().techniques[name].declined


def test_a_run_at_other_timesteps_is_plain_and_says_so():
    pipe = case("sd").build()
    pipe.scheduler.set_timesteps(4)
    times = tuple(float(t) for t in pipe.scheduler.timesteps)
    fits = FittedCache(deep=fitted((1.5, -0.5)), times=times)
    with accel.accelerate(pipe, fits) as handle:
        run(case("sd"), pipe, steps=4)
        assert handle.report().techniques["fitted"].predicted == 1
    expected = run(case("sd"), pipe, steps=4)
    other = FittedCache(deep=fitted((1.5, -0.5)), times=tuple(t + 100 for t in times))
    with accel.accelerate(pipe, other) as handle, pytest.warns(accel.AccelWarning):
        assert torch.equal(run(case("sd"), pipe, steps=4), expected)
    assert "its weights are for other timesteps than this run's" in handle.report().techniques["fitted"].declined


def test_what_cannot_be_fitted_is_refused_with_the_way_out():
    pipe = accel.load("tiny")
    for options, text in [
        ({"deep": "10101010"}, "deep predicts step 2 from 2 values, but fewer are computed before it"),
        ({"deep": "1110"}, "cells are for 4 and 8 steps: use one number|rows are for 4 and 8 steps"),
        ({"deep": "1110", "guidance": None}, "cells are for 4 steps, the runs have 8"),
        ({"deep": None, "guidance": None}, "nothing to fit: no cell is predicted"),
        ({"deep": "11111111", "guidance": None}, "nothing to fit: no cell is predicted"),
    ]:
        with pytest.raises(AccelError, match=text):
            fitting.fit(pipe, PROMPTS, steps=8, **options)
    with pytest.raises(AccelError, match="no weight makes a difference"):  # without guidance there is no difference
        fitting.fit(pipe, PROMPTS[:4], steps=5, deep=None, reference=5, call={"guidance_scale": 1.0})
    with pytest.raises(AccelError, match="deep part cannot be predicted as zero"):
        FittedCache(deep=Row("1110", "zero"))
    with pytest.raises(AccelError, match="at least one finite number"):
        fitted((float("nan"),))
    with pytest.raises(AccelError, match="1 prompts are too few"):
        fitting.fit(pipe, PROMPTS[:1])
    with pytest.raises(AccelError, match="no weights yet: make a plan with accel.caches.fitting.fit"):
        accel.accelerate(pipe, "fitted")
    with pytest.raises(AccelError, match="deep is an object of cells, how and weights"):
        FittedCache(deep=3)
    with accel.accelerate(pipe, "deepcache"), pytest.raises(AccelError, match="has a plan attached"):
        fitting.fit(pipe, PROMPTS)

"""Choosing cells by what they do to the final picture: planted problems with known answers, and real pipelines."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import accel
from accel import AccelError, Plan, console
from accel.caches.fitted import FittedCache
from accel.caches.guidance import GuidanceCache
from accel.caches.schedule import choose_cells, measured
from accel.caches.schedule.choosing import Gap, cells, choose, decibels, error, gaps, gram
from accel.caches.smoothcache import SmoothCache
from accel.caches.table import Row
from accel.commands import calibrate as command
from accel.handle import handles
from accel.technique import Technique
from tests.families import case, run


def single(count: int, saving: float = 1.0) -> list[Gap]:
    """Gaps that touch nothing."""
    return [Gap(f"row{i}", 3, 1, saving) for i in range(count)]


def at_most(limit: float) -> Any:
    return lambda errors: float(errors.mean()) <= limit


# --- the choice ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(10))
def test_of_independent_cells_the_cheapest_are_taken(seed: int) -> None:
    """Nothing that saves more is within the limit: every subset was tried."""
    sizes = torch.rand(8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    products = torch.diag(sizes)[None]
    limit = 0.4 * float(sizes.sum())
    found = choose(single(8), products, at_most(limit))
    every = chain.from_iterable(combinations(range(8), k) for k in range(9))
    best = max((s for s in every if sizes[list(s)].sum() <= limit), key=lambda s: (len(s), -sizes[list(s)].sum()))
    assert found == list(best)


def test_work_counts_not_the_number_of_cells() -> None:
    candidates = [Gap("dear", 3, 1, 10.0), Gap("cheap", 3, 1, 1.0)]
    products = torch.diag(torch.tensor([2.0, 1.0]))[None]
    assert choose(candidates, products, at_most(2.5)) == [0]


def test_errors_that_cancel_are_taken_together() -> None:
    changes = torch.tensor([[1.0, 0.0], [-1.0, 0.1], [0.0, 0.9]])[None]
    products = gram(changes)
    assert choose(single(3), products, lambda _: True, goal=2) == [0, 1]  # by their sizes it would be 0 and 2
    torch.testing.assert_close(error(products, [0, 1]), torch.tensor([0.005], dtype=torch.float64))


def test_gaps_of_one_row_stay_apart_and_a_longer_one_takes_their_place() -> None:
    steps, candidates = 7, gaps("ff", 7, 1.0, before=2, longest=2)
    assert [(gap.start, gap.length) for gap in candidates[:3]] == [(2, 1), (2, 2), (3, 1)]
    assert max(gap.stop for gap in candidates) == steps - 1
    products = torch.diag(torch.tensor([float(gap.length) for gap in candidates]))[None]
    found = [candidates[i] for i in choose(candidates, products, lambda _: True)]
    assert not any(a.touches(b) for a, b in combinations(found, 2))
    assert cells(found, ["ff", "attn"], steps) == {"ff": "1100101", "attn": "1111111"}


def test_a_goal_of_work_ends_the_choice() -> None:
    products = torch.diag(torch.tensor([3.0, 1.0, 2.0, 4.0]))[None]
    assert choose(single(4), products, lambda _: True, goal=2.0) == [1, 2]
    assert choose(single(4), products, lambda _: False) == []


def test_decibels_are_those_of_a_peak_of_one() -> None:
    assert decibels(torch.tensor([0.01, 0.0001])) == pytest.approx(30.0)
    assert decibels(torch.zeros(2)) == float("inf")


# --- until real pictures are close enough ----------------------------------------------------------------------------


class Planted(measured.Easel):
    """Samples that move by a known amount for each predicted cell, and by more than the sum where several are."""

    def __init__(self, size: Mapping[tuple[str, int], float], steps: int, more: float) -> None:
        super().__init__(None, ["a", "b"], lambda _: None, {}, steps, 0)  # type: ignore[arg-type, return-value]
        self.steps, self.size, self.more = steps, size, more
        make = torch.Generator().manual_seed(0)
        self.start = [torch.rand(500, generator=make) for _ in self.prompts]
        self.directions = {key: torch.randn(500, generator=make) for key in size}

    def plain(self) -> list[Tensor]:
        return self.start

    def under(self, chosen: Mapping[str, str]) -> list[Tensor]:
        self.runs += 1
        predicted = [(row, step) for row, line in chosen.items() for step, cell in enumerate(line) if cell == "0"]
        moved = sum((self.size[key] * self.directions[key] for key in predicted), torch.zeros(500))
        return [start + moved * (1 + self.more * (len(predicted) > 1)) for start in self.start]


def searched(easel: Planted, rows: Mapping[str, float], target: float) -> measured.Choice:
    return measured._Search(easel, rows, "linear", 1, lambda *_: None).reach(target, 8)


SIZES = {("attn", step): 1e-3 if step in (3, 5) else 1e-1 for step in range(8)} | {
    ("mlp", step): 1e-3 if step in (2, 6) else 1e-1 for step in range(8)
}
"""Few cells do little to the sample; only these may be predicted at 40 dB."""


@pytest.mark.parametrize("more", [0.0, 1.0, -0.5])
def test_planted_cells_are_found_whatever_the_sum_gets_wrong(more: float) -> None:
    found = searched(Planted(SIZES, 8, more), {"attn": 1.0, "mlp": 2.0}, 40.0)
    assert found.cells == {"attn": "11101011", "mlp": "11011101"}
    assert found.psnr >= 40 and found.saved == pytest.approx(6 / 24)


def test_where_the_sum_promises_too_much_less_is_predicted() -> None:
    """Twice the error of the sum costs 6 dB: so many cells as the sum allows at 46 are right at 40."""
    sizes = {("mlp", step): 10 ** (-2.7 + step / 40) for step in range(20)}
    wrong, right = (searched(Planted(sizes, 20, more), {"mlp": 1.0}, 40.0) for more in (1.0, 0.0))
    assert wrong.psnr >= 40 and right.psnr >= 40
    assert wrong.expected == pytest.approx(wrong.psnr + 6.02, abs=0.01)
    assert right.expected == pytest.approx(right.psnr, abs=0.01)
    assert 0 < wrong.saved < right.saved


def test_a_target_that_nothing_reaches_is_refused() -> None:
    with pytest.raises(AccelError, match="nothing can be predicted 100 dB close"):
        searched(Planted(SIZES, 8, 0.0), {"attn": 1.0}, 100.0)
    with pytest.raises(AccelError, match="3 steps are too few"):
        searched(Planted({}, 3, 0.0), {"attn": 1.0}, 40.0)


def test_cells_that_change_nothing_are_not_taken_for_savings() -> None:
    sizes = SIZES | {("mlp", step): 0.0 for step in range(8)}
    assert searched(Planted(sizes, 8, 0.0), {"attn": 1.0, "mlp": 9.0}, 40.0).cells["mlp"] == "1" * 8


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({"prompts": []}, "nothing to choose by"),
        ({"prompts": "a star"}, "nothing to choose by"),
        ({"target_db": 0}, "target_db is a distance in dB"),
    ],
)
def test_what_makes_no_sense_is_refused(kw: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"prompts": ["a star"], "target_db": 40.0, **kw}
    with pytest.raises(AccelError, match=message):
        choose_cells(case("pixart").build(), given["prompts"], SmoothCache, {"ff": 1.0}, target_db=given["target_db"])


# --- on pipelines ----------------------------------------------------------------------------------------------------

STEPS = 6


def calls(name: str) -> list[dict[str, Any]]:
    """Arguments of one call, as calibration takes them."""
    return [{k: v for k, v in case(name).inputs(steps=STEPS).items() if k != "generator"}]


def psnr(name: str, plan: Any) -> float:
    """Of the case's own picture, drawn apart."""
    pipe = case(name).build()
    plain = run(case(name), pipe, steps=STEPS)
    with accel.accelerate(pipe, plan):
        off = (run(case(name), pipe, steps=STEPS) - plain).square().mean()
    low, high = float(plain.min()), float(plain.max())
    peak = 1.0 if 0 <= low and high <= 1 else high - low
    return float(-10 * torch.log10(off / peak**2))


@pytest.mark.parametrize(("name", "target"), [("dit", 45.0), ("wan", 30.0)])
def test_a_schedule_for_a_quality_keeps_it(name: str, target: float) -> None:
    pipe = case(name).build()
    plan = SmoothCache.calibrated(pipe, calls(name), target_db=target, steps=STEPS, lookahead=1)
    (technique,) = plan.techniques
    assert not handles(pipe)
    assert plan.fingerprint is not None and plan.fingerprint.quality["psnr"] >= target
    assert psnr(name, technique) == pytest.approx(plan.fingerprint.quality["psnr"], abs=1e-2)
    assert "0" in "".join(technique.cells.values()) and Plan.from_dict(plan.to_dict()) == plan


def test_rows_of_other_techniques_are_chosen_alike() -> None:
    """The deep part and guidance, as `fitted` takes them."""

    def build(chosen: Mapping[str, str]) -> Technique:
        return FittedCache(deep=Row(chosen["deep"]), guidance=Row(chosen["guidance"]))

    found = choose_cells(
        case("sd").build(), calls("sd"), build, {"deep": 0.6, "guidance": 0.4}, target_db=25.0, steps=STEPS, lookahead=1
    )
    assert found.psnr >= 25 and set(found.cells) == {"deep", "guidance"}
    assert psnr("sd", build(found.cells)) == pytest.approx(found.psnr, abs=1e-2)


def test_a_pipeline_with_a_plan_is_refused() -> None:
    pipe = case("pixart").build()
    with accel.accelerate(pipe, GuidanceCache()), pytest.raises(AccelError, match="has a plan attached"):
        SmoothCache.calibrated(pipe, calls("pixart"), target_db=40)
    with pytest.raises(AccelError, match="a goal of its own"):
        SmoothCache.calibrated(pipe, calls("pixart"), target_db=40, alpha=0.1)
    with pytest.raises(AccelError, match="has no resnet to predict"):
        SmoothCache.chosen(pipe, calls("pixart"), target_db=40, kinds=["resnet"])


def test_the_command_takes_a_quality(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "schedule.json"
    said = {"model": "tiny", "device": "cpu", "dtype": "float32", "prompts": "bundled", "n": 1, "guidance": None}
    goal = {"alpha": None, "target": 0.5, "target_db": 20.0, "how": "reuse", "steps": 4, "lookahead": 1, "seed": 0}
    with console.plain_warnings():
        assert command.run(argparse.Namespace(**said, solver="own", **goal, size=32, out=str(out))) == 0
    plan = Plan.load(out)
    assert plan.fingerprint is not None and plan.fingerprint.quality["psnr"] >= 20
    assert "dB from the plain pictures" in capsys.readouterr().out


def test_an_unknown_predictor_is_refused_before_anything_is_drawn() -> None:
    for how in ("cubic", "fitted"):
        with pytest.raises(AccelError, match=f"no predictor here is called '{how}'"):
            SmoothCache.calibrated(case("dit").build(), [{"class_labels": [1]}], target_db=30.0, how=how)

"""The measurement of plans: its journal, its statistics on planted numbers, and one real run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn

import accel
from accel import cli
from accel.caches.deepcache import DeepCache
from accel.errors import AccelError
from accel.measure import results, tabulate
from accel.measure.arms import Arm, arms, reference
from accel.measure.bench import Setup
from accel.measure.intervals import resampled
from accel.measure.journal import Item, Journal
from accel.measure.quality import psnr, ssim
from accel.measure.sets import FEWEST, fid, kid
from accel.measure.solvers import solvers
from accel.plan import Plan
from accel.spelling import call, split
from accel.tiny.judging import SceneJudge, mixed

# The journal


def test_a_journal_goes_on_where_it_was_broken_off(tmp_path: Path) -> None:
    path, head = tmp_path / "journal", {"steps": 25, "plans": ("a", "b")}
    journal = Journal(path, head)
    journal.add({"kind": "round", "seconds": 1.5})
    journal.add({"kind": "picture", "psnr": None})
    with path.open("a") as file:
        file.write('{"kind": "pic')  # killed here
    again = Journal(path, head)
    assert again.items == [{"kind": "round", "seconds": 1.5}, {"kind": "picture", "psnr": None}]
    again.add({"kind": "round", "seconds": 2.0})
    assert [item["seconds"] for item in Journal(path, head).of("round")] == [1.5, 2.0]


def test_a_journal_of_other_settings_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    Journal(path, {"steps": 25, "model": "tiny"}).add({"kind": "round"})
    before = path.read_text()
    with pytest.raises(AccelError, match="steps: 25, now 15.*another folder"):
        Journal(path, {"steps": 15, "model": "tiny"})
    assert path.read_text() == before
    path.write_text("not ours\n")
    with pytest.raises(AccelError, match="something other than results"):
        Journal(path, {})


# Statistics, on planted numbers


def planted(
    plan_psnr: float, plan_seconds: float, prompts: int = 40, solvers: tuple[str, ...] = ("own",)
) -> tuple[Setup, list[Item]]:
    """A pipeline that gains 1 dB per step and takes 1 s per step; the plan is as told."""
    names = [f"prompt {i}" for i in range(prompts)]
    setup = Setup("planted", names, [Plan.of("deepcache")], steps=20, rounds=9, solvers=solvers)
    draw = random.Random(1)
    items: list[Item] = []
    hardness = [draw.gauss(0, 3) for _ in range(prompts)]
    for arm in setup.arms:
        exact = arm == reference(20, arm.solver)
        for row in range(prompts):
            quality = plan_psnr if arm.plan else 20.0 + arm.steps
            quality += 2.0 if arm.solver != "own" else 0.0  # a better solver
            value = 100.0 if exact else quality + hardness[row] + draw.gauss(0, 0.2)
            facts = {"noun": arm.steps >= 10 or row % 2 == 0, "count": True}
            items.append({"kind": "picture", "arm": arm.name, "prompt": row, "psnr": value, "ssim": 0.9})
            items[-1] |= {"facts": facts, "features": None}
        cost = {"flops": 100 * arm.steps, "peak_bytes": 5, "predicted": 7 if arm.plan else 0}
        items.append({"kind": "cost", "arm": arm.name, **cost})
    for _ in range(setup.rounds):
        load = draw.uniform(1, 3)
        seconds = {a.name: load * (plan_seconds if a.plan else a.steps) * draw.uniform(0.97, 1.03) for a in setup.arms}
        items.append({"kind": "round", "seconds": seconds})
    return setup, items


def row_of_plan(plan_psnr: float, plan_seconds: float, solvers: tuple[str, ...] = ("own",)) -> results.Row:
    setup, items = planted(plan_psnr, plan_seconds, solvers=solvers)
    return next(row for row in results.rows(setup, items) if row.arm.plan)


def test_a_plan_that_beats_fewer_steps_is_seen() -> None:
    row = row_of_plan(plan_psnr=38.0, plan_seconds=10.0)  # 18 plain steps are as good
    assert row.gain and row.gain.value == pytest.approx(1.8, rel=0.05) and row.gain.low > 1.6
    assert row.speed_up.low < 2.0 < row.speed_up.high
    assert tabulate.verdict(row, 40) == "beats fewer steps"
    assert tabulate.verdict(row, 3) == "too few prompts to say"


def test_the_best_solver_is_the_one_to_beat() -> None:
    row = row_of_plan(plan_psnr=38.0, plan_seconds=10.0, solvers=("own", "dpm++"))  # now 16 plain steps are as good
    assert row.gain and row.gain.value == pytest.approx(1.6, rel=0.05)


def test_a_planted_quality_loss_is_seen() -> None:
    row = row_of_plan(plan_psnr=27.0, plan_seconds=10.0)  # 7 plain steps are as good
    assert row.gain and row.gain.value == pytest.approx(0.7, rel=0.05)
    assert tabulate.verdict(row, 40) == "loses to fewer steps"
    hopeless = row_of_plan(plan_psnr=3.0, plan_seconds=10.0)  # the shortest plain run is better, in 4 s
    assert hopeless.gain and hopeless.gain.value == pytest.approx(0.4, rel=0.05)


def test_an_equal_plan_is_no_clear_difference() -> None:
    row = row_of_plan(plan_psnr=30.0, plan_seconds=10.0)
    assert row.gain and row.gain.low < 1 < row.gain.high
    assert tabulate.verdict(row, 40) == "no clear difference"


def test_quality_above_the_plain_curve_is_not_extrapolated() -> None:
    row = row_of_plan(plan_psnr=90.0, plan_seconds=10.0)
    assert row.gain is None and tabulate.verdict(row, 40) == "better than the plain curve"


def test_a_gain_that_is_known_in_most_resamples_has_an_interval() -> None:
    found = resampled(lambda rows: float("nan") if rows[0] == 0 else float(rows.mean()), 50)
    assert found.low < 24.5 < found.high < 49


def test_content_is_judged_by_the_share_of_facts_that_hold() -> None:
    setup, items = planted(plan_psnr=30.0, plan_seconds=5.0, prompts=120)
    by_name = {row.name: row for row in results.rows(setup, items)}
    assert by_name["plain, 8 steps"].right.value == 0.5 and by_name["plain, 10 steps"].right.value == 1.0
    assert by_name["plain, 8 steps"].attributes.value == 0.75  # of two facts the second holds always
    assert by_name["plain, 8 steps"].facts == {"count": 1.0, "noun": 0.5}
    plan = by_name["deepcache, 20 steps"]
    assert plan.content_gain == pytest.approx(2.0, rel=0.05)  # 10 plain steps keep the content as well
    few, items = planted(plan_psnr=30.0, plan_seconds=5.0)
    assert all(row.content_gain is None for row in results.rows(few, items))  # one picture in 40 is too much
    assert plan.flops == 1.0 and by_name["plain, 10 steps"].flops == 0.5


def test_changes_are_told_from_noise() -> None:
    old, new = (
        results.document(setup, {"format": 1}, items, results.rows(setup, items))
        for setup, items in (planted(38.0, 10.0), planted(38.0, 15.0))
    )
    line = next(line for line in tabulate.changes(old, new).splitlines() if "deepcache" in line)
    assert "| **2.0" in line and "(noise)" in line  # slower; the PSNR is the same
    worse = [
        item | {"psnr": item["psnr"] - 0.5} if item["kind"] == "picture" else item for item in planted(38.0, 10.0)[1]
    ]
    setup, _ = planted(38.0, 10.0)
    third = results.document(setup, {"format": 1}, worse, results.rows(setup, worse))
    line = next(line for line in tabulate.changes(old, third).splitlines() if "deepcache" in line)
    assert "**38" in line  # half a decibel on every prompt is no noise, although prompts differ by more
    with pytest.raises(AccelError, match="no way to draw in common"):
        tabulate.changes(old, {**new, "rows": []})


# Quality


def test_similarity_and_bad_pictures() -> None:
    picture = torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert ssim(picture, picture).tolist() == pytest.approx([1.0, 1.0])
    noisy = picture + 0.1 * torch.randn(picture.shape, generator=torch.Generator().manual_seed(1))
    assert all(0.5 < value < 0.99 for value in ssim(noisy.clamp(0, 1), picture).tolist())
    broken = picture.clone()
    broken[1, 0, 0, 0] = float("nan")
    for measure in (psnr, ssim):
        with pytest.raises(AccelError, match="picture 1 holds NaN"):
            measure(broken, picture)
        with pytest.raises(AccelError, match="2x3x32x32 and 1x3x32x32"):
            measure(picture, picture[:1])


def features(count: int, seed: int, shift: float = 0.0) -> torch.Tensor:
    return torch.randn(count, 8, generator=torch.Generator().manual_seed(seed)) + shift


def test_kid_is_the_library_s_without_its_random_subsets() -> None:
    from torchmetrics.image.kid import KernelInceptionDistance

    extractor = nn.Identity()
    extractor.num_features = 8
    with pytest.warns(UserWarning, match="save all extracted features"):  # said to everybody
        metric = KernelInceptionDistance(feature=extractor, subsets=1, subset_size=64)
    fake, real = features(64, 1, shift=0.3), features(64, 2)
    metric.update(real, real=True)
    metric.update(fake, real=False)
    assert kid(fake, real) == pytest.approx(float(metric.compute()[0]), rel=1e-4)


def test_distances_of_sets_from_one_distribution_are_within_their_spread() -> None:
    spread = [kid(features(200, seed), features(200, seed + 100)) for seed in range(20)]
    assert abs(sum(spread) / 20) < 0.05 and min(spread) < 0 < max(spread)
    assert kid(features(200, 1, shift=0.5), features(200, 2)) > 5 * max(spread)
    assert fid(features(200, 1, shift=1.0), features(200, 2)) == pytest.approx(8, rel=0.3)  # |shift|² = 8
    with pytest.raises(AccelError, match=f"at least {FEWEST}"):
        kid(features(3, 1), features(200, 2))


# Arms


def test_arms_leave_the_pipeline_as_it_was() -> None:
    pipe = accel.load("tiny")
    own = pipe.scheduler
    with Arm(4, "dpm++", Plan.of("deepcache")).ready(pipe) as handle:
        assert type(pipe.scheduler).__name__ == "DPMSolverMultistepScheduler" and accel.handles(pipe) == [handle]
    assert pipe.scheduler is own and not accel.handles(pipe)
    assert solvers(pipe) == ["own", "dpm++"]


def test_the_curve_covers_what_a_plan_may_be_worth() -> None:
    found = arms([Plan.of("fast")], 25, ("own", "dpm++"))
    counts = [arm.steps for arm in found if arm.plan is None and arm.solver == "own"]
    assert counts == [4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50]
    assert [arm.name for arm in found if arm.plan] == ["fast, 25 steps", "fast, 25 steps, dpm++"]


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"prompts": []}, "at least one prompt"),
        ({"prompts": ["a star", " "]}, "prompt 2 of 2 is empty"),
        ({"plans": [Plan.of("fast"), Plan.of("fast")]}, "asked for twice"),
        ({"solvers": ["dpm++"]}, "nothing to compare with: add 'own'"),
    ],
)
def test_a_senseless_measurement_is_refused(change: dict, hint: str) -> None:
    with pytest.raises(AccelError, match=hint):
        Setup(**{"model": "tiny", "prompts": ["a star"], "plans": [], **change})


# The command, on the bundled pipeline


def bench(folder: Path, *more: str) -> int:
    small = ["--n", "2", "--steps", "4", "--rounds", "1", "--solvers", "own", "--batch", "1"]
    return cli.main(["bench", "--plans", "deepcache(warm_up=2),guidance", *small, "--out", str(folder), *more])


def test_bench_from_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "bench"
    assert bench(folder) == 0
    said = capsys.readouterr().out
    assert "deepcache(warm_up=2), 4 steps" in said and "frontier gain" in said
    loaded = json.loads((folder / "results.json").read_text())
    rows = {row["name"]: row for row in loaded["rows"]}
    assert set(rows) >= {"plain, 4 steps", "plain, 8 steps", "plain, 16 steps", "guidance, 4 steps"}
    assert rows["plain, 4 steps"]["speed_up"]["value"] == 1.0
    assert rows["plain, 8 steps"]["psnr"]["value"] > rows["plain, 4 steps"]["psnr"]["value"]
    assert rows["plain, 8 steps"]["flops"] == pytest.approx(2, rel=0.1)
    assert rows["deepcache(warm_up=2), 4 steps"]["predicted"] == 1
    assert 0.7 < rows["deepcache(warm_up=2), 4 steps"]["flops"] < 0.9
    assert "| plain, 4 steps |" in (folder / "results.md").read_text()
    assert (folder / "front.png").stat().st_size > 10_000

    journal = folder / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    kept = lines[: len(lines) // 2]
    journal.write_text("".join(kept))  # as if it had been killed half way
    assert bench(folder) == 0
    again = journal.read_text().splitlines(keepends=True)
    assert again[: len(kept)] == kept and len(again) == len(lines)
    assert facts_of(again) == facts_of(lines)  # the same prompts from the same noise
    assert bench(folder, "--seed", "1") == 2
    assert "belongs to a measurement with other settings (seed: 0, now 1)" in capsys.readouterr().err
    assert cli.main(["bench", "--compare", str(folder), str(folder)]) == 0
    assert "(noise)" in capsys.readouterr().out


def facts_of(lines: list[str]) -> set[tuple[str, int, float]]:
    """Arm, prompt and distance of every picture."""
    pictures = [item for item in map(json.loads, lines[1:]) if item["kind"] == "picture"]
    return {(item["arm"], item["prompt"], round(item["psnr"], 1)) for item in pictures}


def test_settings_in_brackets_stay_together() -> None:
    assert split("deepcache(blocks=[2, 8], how=reuse), tgate", ",") == ["deepcache(blocks=[2, 8], how=reuse)", "tgate"]
    assert call("tgate(gate=0.4, how=reuse)") == ("tgate", {"gate": 0.4, "how": "reuse"})
    assert Plan.of("deepcache(interval=3) + guidance") == Plan.of([DeepCache(interval=3), "guidance"])
    for text in ("deepcache(3)", "deepcache(**x)", "deepcache(interval=", "deepcache(interval=x())"):
        with pytest.raises(AccelError, match="write it like"):
            call(text)


def test_bundled_prompts_take_the_difficulties_in_turn() -> None:
    scenes = mixed(7)
    assert [sum(item.count for item in scene.objects) for scene in scenes][:2] == [1, 2] and len(scenes) == 7
    assert mixed(100)[:7] == scenes
    assert SceneJudge(scenes).real().shape == (511, 128)  # in shares of 3, 2 and 2 of 7


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["--plans", "deepcash"], "did you mean deepcache"),
        (["--plans", "deepcache(interval="], "write it like deepcache(interval=3, how=reuse)"),
        (["--plans", "deepcache(pace=3)"], "has no setting pace"),
        (["--prompts", "/nowhere/prompts.txt"], "cannot be read: No such file"),
        (["--solvers", "euler"], "no solver 'euler' for this pipeline: there are own, dpm++"),
        (["--n", "0"], "whole number from 1"),
        (["--n", "5000"], "--n 5000 is too much"),
        (["--size", "60"], "not a multiple of 8"),
        (["--compare", "/nowhere/a", "/nowhere/b"], "holds no results of accel bench"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], hint: str, tmp_path: Path, capsys) -> None:
    assert cli.main(["bench", "--out", str(tmp_path / "out"), *arguments]) == 2
    error = capsys.readouterr().err
    assert hint in error and error.count("\n") == 1

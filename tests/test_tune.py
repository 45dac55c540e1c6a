"""The search for the fastest plan above a floor: on a planted pipeline, and once on the bundled one."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

import accel
from accel import cli
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.errors import AccelError, Refused
from accel.measure.arms import Arm
from accel.measure.floor import Floor
from accel.measure.intervals import Interval, mean
from accel.measure.search import Found, search
from accel.measure.solvers import OWN
from accel.measure.space import candidates, plans, respaced
from accel.measure.tune import Tuned, _fitting, _tuned, tune
from accel.plan import Plan
from accel.schedulers.stages import Stages
from accel.schedulers.steps import Steps

SEARCHED, FRESH = range(16), range(16, 32)

PLAIN = [Arm(steps) for steps in (20, 15, 12, 10, 8, 6, 4)]
PLANS = [Plan((DeepCache(interval=i, warm_up=w),)) for i in (2, 3, 4) for w in (2, 3)]
PLANS += [Plan((GuidanceCache(interval=i),)) for i in (2, 3)]
CANDIDATES = [Arm(steps, "own", plan) for plan in PLANS for steps in (20, 16, 12)]


class Planted:
    """Plain: one second and one dB a step. DeepCache saves much and loses a little, guidance the other way round.

    ``overfitted`` is an arm that is perfect on the prompts it was searched on only.
    """

    def __init__(self, floor: float, overfitted: Arm | None = None, loss: float = 1.0):
        self.floor, self.overfitted, self.loss = floor, overfitted, loss
        self.drawn = 0
        self.hardness = [random.Random(row).gauss(0, 1) for row in range(32)]

    def margins(self, arm: Arm, rows: Sequence[int]) -> list[float]:
        self.drawn += len(rows)
        lost = sum(self._lost(technique) for technique in (arm.plan.techniques if arm.plan else ()))
        found = []
        for row in rows:
            quality = 20 + arm.steps - self.loss * lost + self.hardness[row]
            found.append((99.0 if arm == self.overfitted and row in SEARCHED else quality) - self.floor)
        return found

    @staticmethod
    def _lost(technique: object) -> float:
        if isinstance(technique, DeepCache):
            return {2: 1.0, 3: 4.0, 4: 9.0}[technique.interval] + (technique.warm_up == 2)
        return 6.0

    def expected(self, arm: Arm) -> float:
        saved = 1.0
        for technique in arm.plan.techniques if arm.plan else ():
            saved *= {2: 0.6, 3: 0.5, 4: 0.45}[technique.interval] if isinstance(technique, DeepCache) else 0.9
        return arm.steps * saved

    def ratio(self, arm: Arm, other: Arm) -> Interval:
        value = self.expected(other) / self.expected(arm)
        return Interval(value, 0.99 * value, 1.01 * value)


def run(measure: Planted, left: float = 1.0) -> Found:
    return search(PLAIN, CANDIDATES, measure, SEARCHED, FRESH, left=lambda: left)


def test_the_fastest_plan_above_the_floor_is_found() -> None:
    measure = Planted(floor=33.0)
    found = run(measure)
    assert found.baseline == baseline(measure)
    best = min(
        (arm for arm in CANDIDATES if min(measure.margins(arm, FRESH)) > -3 and sum(measure.margins(arm, FRESH)) > 8),
        key=measure.expected,
    )
    assert (
        found.best == best
        and found.gain
        and found.gain.value == pytest.approx(found.baseline.steps / measure.expected(best))
    )
    names = {arm.name for arm in CANDIDATES} - {best.name}
    assert names <= set(found.rejected) and best.name not in found.rejected


def baseline(measure: Planted) -> Arm:
    """The fewest plain steps, not only of those on the curve, that keep the floor with confidence."""
    return next(Arm(steps) for steps in range(4, 21) if mean(measure.margins(Arm(steps), FRESH)).low >= 0)


def test_the_front_holds_what_nothing_measured_beats() -> None:
    found = run(Planted(floor=33.0))
    front = found.front
    assert len(front) > 2 and {found.best.name, found.baseline.name} <= found.measured.keys()
    for one, other in zip(front, front[1:]):
        assert one.seconds < other.seconds and one.margin.value < other.margin.value
    judged = [each for each in found.measured.values() if each.fresh]
    assert {each.prompts for each in judged} == {len(FRESH)} and len(judged) < len(found.measured)
    for each in judged:
        assert any(f.seconds <= each.seconds and f.margin.value >= each.margin.value for f in front)


def test_halving_spares_most_of_the_work() -> None:
    measure = Planted(floor=33.0)
    run(measure)
    assert measure.drawn < 0.5 * len(CANDIDATES) * (len(SEARCHED) + len(FRESH))


def test_where_fewer_steps_win_they_are_returned() -> None:
    measure = Planted(floor=33.0, loss=20.0)
    found = run(measure)
    assert found.best == found.baseline == baseline(measure) and found.gain is None


def test_an_impossible_floor_returns_the_plain_pipeline() -> None:
    found = run(Planted(floor=90.0))
    assert found.best == Arm(20) and found.baseline is None
    assert "below the floor" in found.rejected["plain, 20 steps"]


def test_what_is_good_on_the_searched_prompts_only_is_rejected() -> None:
    lucky = Arm(16, "own", Plan((DeepCache(interval=3, warm_up=2),)))
    found = run(Planted(floor=33.0, overfitted=lucky))
    assert found.best != lucky and "below the floor on fresh prompts" in found.rejected[lucky.name]


def test_out_of_time_the_verdict_is_still_on_fresh_prompts() -> None:
    measure = Planted(floor=33.0)
    found = run(measure, left=0.0)
    assert found.baseline == baseline(measure) and found.tried == 2
    assert found.best.plan is None or mean(measure.margins(found.best, FRESH)).low >= 0
    assert "time ran out before it was drawn" in found.rejected.values()


def test_a_plan_may_be_the_only_way_to_keep_the_floor() -> None:
    measure = Planted(floor=36.0, loss=-3.0)  # here techniques improve the picture
    found = search(PLAIN[1:], CANDIDATES, measure, SEARCHED, FRESH, left=lambda: 1.0)
    assert found.baseline is None and found.best.plan is not None
    assert mean(measure.margins(found.best, FRESH)).low >= 0


# The finalists' steps


class Spaced(Planted):
    """Karras spacing is worth two dB, the other loses one. A ``lucky`` one is perfect where it is searched."""

    def __init__(self, floor: float, lucky: str | None = None):
        super().__init__(floor)
        self.lucky = lucky

    def margins(self, arm: Arm, rows: Sequence[int]) -> list[float]:
        spacing = spacing_of(arm)
        if spacing == self.lucky and spacing is not None:
            return [60.0 if row in SEARCHED else -60.0 for row in rows]
        return [
            value + {"karras": 2.0, "exponential": -1.0}.get(spacing or "", 0.0) for value in super().margins(arm, rows)
        ]

    @staticmethod
    def _lost(technique: object) -> float:
        return 0.0 if isinstance(technique, Steps) else Planted._lost(technique)

    def expected(self, arm: Arm) -> float:
        return super().expected(bare(arm))


def bare(arm: Arm) -> Arm:
    inner = tuple(t for t in arm.plan.techniques if not isinstance(t, Steps)) if arm.plan else ()
    return Arm(arm.steps, arm.solver, Plan(inner) if inner else None)


def spacing_of(arm: Arm) -> str | None:
    return next((t.spacing for t in arm.plan.techniques if isinstance(t, Steps)), None) if arm.plan else None


def spacings(arm: Arm) -> list[Arm]:
    return [
        Arm(arm.steps, arm.solver, Plan((*arm.plan.techniques, Steps(spacing=spacing))))
        for spacing in ("exponential", "karras")
        if arm.plan and spacing_of(arm) is None
    ]


def refined(measure: Spaced, left: float = 1.0) -> Found:
    return search(PLAIN, CANDIDATES, measure, SEARCHED, FRESH, left=lambda: left, respaced=spacings)


def test_the_finalists_get_the_spacing_and_the_fewest_steps_that_suit_them() -> None:
    """A cache with karras spacing at a number of steps that no candidate has, the fastest of all that there are."""
    measure = Spaced(floor=33.0)
    found, without = refined(measure), run(Spaced(floor=33.0))
    every = [
        each
        for plan in PLANS
        for steps in range(2, 21)
        for each in (Arm(steps, "own", plan), *spacings(Arm(steps, "own", plan)))
    ]
    keeping = [arm for arm in every if all(mean(measure.margins(arm, rows)).low >= 0 for rows in (SEARCHED[:8], FRESH))]
    best = min(keeping, key=measure.expected)
    assert found.best.plan is not None and spacing_of(found.best) == "karras"
    assert found.best.steps not in {arm.steps for arm in CANDIDATES}
    assert measure.expected(found.best) == pytest.approx(measure.expected(best))
    assert measure.expected(found.best) < 0.95 * measure.expected(without.best)
    assert found.measured[found.best.name].fresh


def test_refining_costs_little() -> None:
    plain, refining = Spaced(floor=33.0), Spaced(floor=33.0)
    search(PLAIN, CANDIDATES, plain, SEARCHED, FRESH, left=lambda: 1.0)
    refined(refining)
    assert refining.drawn - plain.drawn < 4 * 8 * (3 + 5) + 4 * len(FRESH)


def test_a_spacing_that_only_looks_good_leaves_the_finalists_as_they_were() -> None:
    measure = Spaced(floor=33.0, lucky="exponential")
    found = refined(measure)
    assert spacing_of(found.best) is None and found.best.plan is not None
    assert found.best == run(Spaced(floor=33.0)).best
    assert any("exponential" in name and "below the floor on fresh" in why for name, why in found.rejected.items())


def test_out_of_time_the_finalists_stay_as_they_are() -> None:
    found = refined(Spaced(floor=33.0), left=0.0)
    assert all("karras" not in name for name in found.measured)


def test_what_was_kept_for_the_finalists_is_spent_on_them() -> None:
    """The field is narrowed until a share of the budget is left; that must not stop the refining as well."""
    measure = Spaced(floor=33.0)
    found = search(
        PLAIN, CANDIDATES, measure, SEARCHED, FRESH, left=lambda: max(0.0, 1 - measure.drawn / 300), respaced=spacings
    )
    assert spacing_of(found.best) == "karras" and found.best.name not in found.rejected


# What is searched


def test_the_space_is_what_the_pipeline_accepts() -> None:
    pipe = accel.load("tiny")
    found = plans(pipe)
    names = [tuple(technique.name for technique in plan.techniques) for plan in found]
    assert {("deepcache",), ("guidance",), ("tgate",), ("deepcache", "guidance"), ("deepcache", "tgate")} <= set(names)
    assert len(found) == len(set(map(str, found)))
    assert all(accel.check(pipe, plan) == [] for plan in found[::7])
    arms = candidates(found, 25, ["own", "dpm++"])
    assert len(arms) == len(found) * 3 * 2 and {arm.steps for arm in arms} == {25, 20, 15}


def test_spacings_are_tried_with_solvers_that_take_them() -> None:
    """The bundled pipeline's own takes none; published tables are of models with other noise."""
    pipe = accel.load("tiny")
    cached = Arm(20, "dpm++", Plan.of("deepcache"))
    assert [spacing_of(arm) for arm in respaced(pipe, cached)] == ["karras", "exponential"]
    assert all(arm.steps == 20 and arm.solver == "dpm++" for arm in respaced(pipe, cached))
    assert respaced(pipe, Arm(20, OWN, Plan.of("deepcache"))) == []
    assert respaced(pipe, Arm(20, "dpm++", Plan.of("steps(spacing=karras)"))) == respaced(pipe, Arm(20, "dpm++")) == []
    assert type(pipe.scheduler).__name__ == "DDIMScheduler"
    with Arm(20, "dpm++").ready(pipe):
        alone = [plan.techniques for plan in plans(pipe) if "schedule" in plan.techniques[0].claims]
    assert {str(each) for each, *_ in alone} >= {"steps(spacing=karras)", "converged(threshold=0.05)"}
    assert all(len(techniques) == 1 for techniques in alone)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("40 dB", "psnr", 40),
        ("1 point", "facts", 1),
        ("2.5points", "facts", 2.5),
        ({"psnr": 30}, "psnr", 30),
        ({"facts": 0.5}, "facts", 0.5),
    ],
)
def test_floors_are_read(text: str | dict[str, float], kind: str, value: float) -> None:
    assert Floor.of(text) == Floor(kind, value)


def test_floors_that_say_nothing_are_refused() -> None:
    for text in ("40", "-1 dB", "good", ""):
        with pytest.raises(AccelError, match="'40 dB' or a loss such as '1 point'"):
            Floor.of(text)
    for given in ({}, {"ssim": 0.9}, {"psnr": 30, "facts": 1}, {"psnr": float("nan")}, {"psnr": "30"}):
        with pytest.raises(AccelError, match="a floor is one of"):
            Floor.of(given)
    pipe = accel.load("tiny")
    with pytest.raises(AccelError, match="7 prompts are too few.*at least 16"):
        tune(pipe, ["a star"] * 7)
    with pytest.raises(AccelError, match="needs a judge"):
        tune(pipe, ["a star"] * 16, "1 point")
    with pytest.raises(
        AccelError, match="cannot tell a loss of 1 point: give 200 prompts in all, or a floor of 4 points"
    ):
        Floor("facts", 1).check(fresh=30)
    with accel.accelerate(pipe, "deepcache"), pytest.raises(AccelError, match="has a plan attached"):
        tune(pipe, ["a star"] * 16)


def test_further_plans_are_tried_where_they_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = accel.load("tiny")
    monkeypatch.setattr("accel.measure.tune.plans", lambda pipe: [Plan.of("deepcache")])
    helped, spaced = Plan.of(Stages((pipe.unet, ""), (500.0,))), Plan.of("steps(spacing=karras)")
    assert _fitting(pipe, "dpm++", [helped, spaced]) == [Plan.of("deepcache"), helped, spaced]
    assert _fitting(pipe, OWN, [helped, spaced]) == [Plan.of("deepcache"), helped]  # whose schedule cannot be edited
    with Arm(4, "dpm++").ready(pipe), pytest.raises(Refused, match="ays_sd15 begins at noise level 14.615"):
        tune(pipe, ["a star"] * 16, more=[Plan.of("steps(spacing=ays_sd15)")])


def test_the_outcome_in_words() -> None:
    gain = Interval(1.5, 1.4, 1.6)
    won = Tuned(Plan.of("deepcache"), 20, "dpm++", "plain, 15 steps", gain, {}, Floor("psnr", 40))
    assert str(won).startswith(
        "deepcache with 20 steps and dpm++: 1.50 (1.40 to 1.60) times as fast as plain, 15 steps (0 of 0"
    )
    lost = Tuned(Plan(), 15, "own", "plain, 15 steps", None, {}, Floor("psnr", 40))
    assert str(lost).startswith("nothing beats fewer steps here: plainly 15 steps keep 40 dB (")
    none = Tuned(Plan(), 25, "own", None, None, {}, Floor("facts", 1))
    assert str(none).startswith("nothing keeps 1 point, not even the plain pipeline")


def test_a_tuned_plan_knows_its_solver_and_its_promise() -> None:
    pipe = accel.load("tiny")
    best = Arm(20, "dpm++", Plan.of("deepcache"))
    found = Found(best, baseline=Arm(15), gain=Interval(1.5, 1.4, 1.6))
    tuned = _tuned(pipe, found, Floor("psnr", 40))
    mark = tuned.plan.fingerprint
    assert mark and mark.scheduler == "DPMSolverMultistepScheduler" and mark.steps == 20
    assert mark.quality == {"frontier_gain": 1.5} and tuned.plan.promise == "same picture"
    assert type(pipe.scheduler).__name__ == "DDIMScheduler"
    assert Plan.from_dict(tuned.plan.to_dict()) == tuned.plan


# On the bundled pipeline


def test_tune_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accel.measure.tune.plans", lambda pipe: [Plan.of("deepcache(warm_up=2)")])
    file = tmp_path / "plan.json"
    small = ["--n", "16", "--steps", "2", "--size", "32", "--minutes", "0", "--out", str(file), "--why"]
    assert cli.main(["tune", "--floor", "200 dB", *small]) == 0
    said = capsys.readouterr().out
    assert "plain, 2 steps: below the floor" in said and "nothing keeps 200 dB, not even the plain pipeline" in said
    assert not file.exists()
    kept = (tmp_path / "plan.jsonl").read_text()
    assert cli.main(["tune", "--floor", "210 dB", *small]) == 0  # with another floor everything is known
    assert "nothing keeps 210 dB" in capsys.readouterr().out and (tmp_path / "plan.jsonl").read_text() == kept
    assert cli.main(["tune", "--floor", "210 dB", *small, "--seed", "1"]) == 2
    assert "(seed: 0, now 1)" in capsys.readouterr().err


def test_mistakes_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, hint in [
        (["--floor", "high"], "'40 dB'"),
        (["--out", str(tmp_path / "no" / "plan.json")], "name a .json file in a folder that is yours"),
        (["--out", str(tmp_path / "plan")], "name a .json file"),
        (["--n", "4"], "4 prompts are too few"),
        (["--floor", "1 point", "--n", "16"], "8 prompts to judge by cannot tell a loss of 1 point"),
    ]:
        assert cli.main(["tune", *arguments]) == 2
        error = capsys.readouterr().err
        assert hint in error and error.count("\n") == 1

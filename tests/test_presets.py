"""Presets on every family: what does not fit is left out and told, and their lossless part keeps every bit."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch

import accel
from accel import Plan, Refused
from accel.caches.deepcache import DeepCache
from accel.caches.lossless.technique import Lossless
from accel.caches.rehash import StepRehash
from accel.caches.tgate import TGate
from accel.plan import presets
from tests.contract.support import bench, draw, may_save_nothing, same
from tests.families import CASES, case

STEPS = 8
"""Long enough for the warm-ups of presets."""


def without(plan: Plan, name: str) -> Plan:
    return replace(
        plan, techniques=tuple(t for t in plan.techniques if t.name != name), optional=plan.optional - {name}
    )


def drawn(name: str, plan: Plan, **kw: Any) -> tuple[torch.Tensor, accel.Report]:
    pipe = bench(name).pipe
    with may_save_nothing(), accel.accelerate(pipe, plan) as handle:
        return draw(name, pipe, **{"steps": STEPS, **kw}), handle.report()


@pytest.mark.parametrize("preset", presets())
@pytest.mark.parametrize("name", CASES)
def test_preset_on_a_family(name: str, preset: str) -> None:
    """It fits, saves with every part that it kept, and its lossless part changes no bit."""
    plan = Plan.of(preset)
    picture, report = drawn(name, plan)
    idle = {"steps"} & report.techniques.keys()  # so short a run is made no shorter
    missing = {"lossless"} if name == "dit" else set()
    assert report.techniques.keys() == {t.name for t in plan.techniques} - missing
    assert {part for part, told in report.techniques.items() if not told.predicted} == idle
    assert len(report.omitted) == len(missing) and all(text.startswith("lossless: ") for text in report.omitted)
    exact, _ = drawn(name, without(plan, "lossless"))
    assert same(picture, exact)


@pytest.mark.parametrize("name", ["sd", "pixart", "wan", "stable-audio"])
def test_lossless_part_of_a_preset_alone_keeps_the_plain_bits(name: str) -> None:
    plan = Plan.of("balanced")
    alone = replace(plan, techniques=tuple(t for t in plan.techniques if t.lossless), optional=frozenset({"lossless"}))
    for batch in (1, 2):
        picture, report = drawn(name, alone, steps=4, batch=batch)
        assert same(picture, draw(name, bench(name).pipe, steps=4, batch=batch)) and report.predicted > 0


def test_fast_takes_fewer_steps_of_a_long_call() -> None:
    _, report = drawn("sd", Plan.of("fast"), steps=25)
    assert report.steps_run == 15 and all(told.predicted for told in report.techniques.values())


def test_presets_have_the_lossless_tier() -> None:
    for preset in presets():
        plan = Plan.of(preset)
        assert Lossless() in plan.techniques
        assert plan.optional == {technique.name for technique in plan.techniques}


def test_what_is_left_out_is_told() -> None:
    pipe = case("dit").build()
    assert accel.check(pipe, "balanced") == []
    with may_save_nothing(), accel.accelerate(pipe, "balanced") as handle:
        assert str(handle.plan) == "balanced = deepcache"
        (reason,) = handle.report().omitted
        assert reason.startswith("lossless: transformer (DiTTransformer2DModel) has nothing that may stay the same")
        draw("dit", pipe, steps=STEPS)
        assert f"\nleft out of the plan: {reason}\n" in str(handle.report())
        assert handle.report().to_dict()["omitted"] == [reason]
        assert reason in handle.report().to_markdown()


@pytest.mark.parametrize("plan", ["lossless", "balanced+lossless", "lossless+balanced", [Lossless(), DeepCache()]])
def test_what_is_asked_for_by_name_is_refused(plan: Any) -> None:
    pipe = bench("dit").pipe
    with pytest.raises(Refused, match="lossless: transformer .* has nothing that may stay the same"):
        accel.accelerate(pipe, plan)
    assert not accel.handles(pipe)


def test_joined_with_something_else_a_preset_stays_lenient() -> None:
    plan = Plan.of(["balanced", StepRehash(warm_up=1)])
    assert plan.optional == {"lossless", "deepcache"}
    assert accel.check(bench("dit").pipe, plan) == []


def test_asked_for_twice_and_optional_once_is_there_once() -> None:
    plan = Plan.of("lossless+balanced+deepcache")
    assert [t.name for t in plan.techniques] == ["lossless", "deepcache"]
    assert plan.optional == frozenset()
    other = Plan.of("balanced+deepcache(interval=3)")
    assert list(map(str, other.techniques)) == ["lossless", "deepcache(interval=3)"]
    (problem,) = accel.check(bench("sd").pipe, "deepcache+deepcache(interval=3)")
    assert problem == "deepcache and deepcache both take over block_outputs: use one of them"


def test_what_is_attached_already_is_left_out_of_a_preset() -> None:
    pipe = bench("sd").pipe
    with accel.accelerate(pipe, "lossless"), accel.accelerate(pipe, "balanced") as second:
        assert [t.name for t in second.plan.techniques] == ["deepcache"]
        assert Plan.from_dict(second.plan.to_dict()) == second.plan
        (reason,) = second.report().omitted
        assert reason.startswith("lossless and lossless both take over")


def test_a_plan_of_which_nothing_fits_is_refused() -> None:
    plan = Plan((TGate(), Lossless()), "content", optional=frozenset({"tgate", "lossless"}))
    problems = accel.check(bench("dit").pipe, plan)
    assert [problem.partition(":")[0] for problem in problems] == ["tgate", "lossless"]
    with pytest.raises(Refused):
        accel.accelerate(bench("dit").pipe, plan)


def test_optional_parts_survive_json() -> None:
    plan = Plan((Lossless(), DeepCache()), optional=frozenset({"lossless"}))
    data = json.loads(json.dumps(plan.to_dict()))
    assert data["optional"] == ["lossless"] and Plan.from_dict(data) == plan
    assert "optional" not in Plan((Lossless(),)).to_dict()


@pytest.mark.parametrize("optional", ["lossless", ["tgate"], [1], {"lossless": True}])
def test_optional_names_what_is_there(optional: Any) -> None:
    with pytest.raises(accel.AccelError, match="optional is a list of names of its techniques"):
        Plan.from_dict({"techniques": [{"name": "lossless"}], "optional": optional})

"""Plans: from text, list and JSON, what they refuse, and fingerprints."""

from __future__ import annotations

import json

import pytest

import accel
from accel import registry
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.tgate import TGate
from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.plan import Plan, presets
from accel.target import Target
from tests.families import case

MARK = {"denoiser": "X", "config": "0", "scheduler": "Y", "steps": 25, "libraries": {}, "quality": {}}


def test_a_plan_comes_from_anything_that_names_techniques(tmp_path):
    expected = (DeepCache(interval=3), GuidanceCache())
    plan = Plan(expected)
    plan.save(tmp_path / "plan.json")
    for what in (
        plan,
        plan.to_dict(),
        list(expected),
        [expected[0], "guidance"],
        tmp_path / "plan.json",
        str(tmp_path / "plan.json"),
    ):
        assert Plan.of(what).techniques == expected
    assert Plan.of(TGate()).techniques == (TGate(),)
    assert Plan.of("deepcache+guidance").techniques == (DeepCache(), GuidanceCache())
    assert Plan.of([]).techniques == ()


@pytest.mark.parametrize("name", presets())
def test_presets_are_plans_with_a_promise(name):
    plan = Plan.of(name)
    assert plan.name == name
    assert plan.promise in ("same picture", "same content")
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan


@pytest.mark.parametrize("name", registry.names())
def test_every_technique_can_be_found_named_and_rebuilt(name):
    cls = registry.find(name)
    technique = cls()
    assert technique.name == name and technique.summary and technique.claims
    assert cls.from_settings(technique.settings()) == technique
    assert technique.settings() == {} and str(technique) == name


@pytest.mark.parametrize(
    "data, message",
    [
        ([], "a plan is a JSON object"),
        ({"techniques": [], "speed": 2}, "unknown key speed"),
        ({"techniques": [], "format": 99}, "format 99 is not 1"),
        ({"techniques": ["deepcache"]}, "an object with a name"),
        ({"techniques": [{"name": "deepcash"}]}, "did you mean deepcache"),
        ({"techniques": [{"name": "deepcache", "intervall": 2}]}, "no setting intervall"),
        ({"techniques": [{"name": "deepcache", "interval": 0}]}, "at least 1, not 0"),
        ({"techniques": [{"name": "tgate", "gate": 1.5}]}, "gate is a number of steps"),
        ({"techniques": [{"name": "tgate", "cutoff": "both"}]}, "cutoff is None, cond or uncond"),
        ({"techniques": [{"name": "deepcache", "blocks": "ab"}]}, "a pair of whole numbers"),
        ({"techniques": [{"name": "deepcache", "blocks": [1, 2.5]}]}, "a pair of whole numbers"),
        ({"techniques": [], "name": 5}, "name is a text or null, not 5"),
        ({"techniques": [], "promise": ["same picture"]}, "promise is a text"),
        ({"techniques": [], "fingerprint": 0}, "exactly the keys"),
        ({"techniques": [], "fingerprint": {"denoiser": "X"}}, "exactly the keys"),
        ({"techniques": [], "fingerprint": {**MARK, "steps": "25"}}, "steps must be int, not '25'"),
    ],
)
def test_a_bad_plan_is_refused_by_name(data, message):
    with pytest.raises(AccelError, match=message):
        Plan.from_dict(data)


def test_a_missing_or_broken_plan_file_is_one_line(tmp_path):
    with pytest.raises(AccelError, match="cannot be read"):
        Plan.load(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{")
    with pytest.raises(AccelError, match="is not a plan"):
        Plan.load(tmp_path / "bad.json")


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(AccelError, match="balanced"):
        Plan.of("quick")
    with pytest.raises(AccelError, match="not 7"):
        Plan.of(7)


def test_a_technique_of_ones_own_can_be_registered_and_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})

    class Mine(DeepCache):
        name = "mine"

    accel.register(Mine)
    assert accel.register(Mine) is Mine and "mine" in registry.names()
    Plan((Mine(interval=4),)).save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json").techniques == (Mine(interval=4),)
    with pytest.raises(AccelError, match="'deepcache' already"):
        accel.register(type("Other", (DeepCache,), {}))


def test_joined_plans_keep_what_they_were_tuned_for():
    mark = Fingerprint.of(Target.of(case("sd").build()), 25, {"psnr": 44.0})
    tuned = Plan((DeepCache(),), fingerprint=mark)
    assert Plan.of([tuned, "guidance"]).fingerprint == mark
    other = Plan((GuidanceCache(),), fingerprint=Fingerprint(**{**mark.to_dict(), "denoiser": "Other"}))
    with pytest.raises(AccelError, match="Other and UNet2DConditionModel cannot be joined"):
        Plan.of([tuned, other])


def test_a_fingerprint_refuses_another_model_and_warns_of_another_solver():
    pipe = case("sd").build()
    mark = Fingerprint.of(Target.of(pipe), 25, {"psnr": 44.0})
    plan = Plan((DeepCache(),), fingerprint=mark)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan
    assert accel.check(pipe, plan) == []
    assert any("tuned for UNet2DConditionModel" in problem for problem in accel.check(case("pixart").build(), plan))
    elsewhere = Plan((DeepCache(),), fingerprint=Fingerprint(**{**mark.to_dict(), "scheduler": "Other"}))
    with pytest.warns(accel.AccelWarning, match="tuned with Other"):
        accel.accelerate(pipe, elsewhere).remove()
    older = Plan((DeepCache(),), fingerprint=Fingerprint(**{**mark.to_dict(), "libraries": {"torch": "1.0"}}))
    with pytest.warns(accel.AccelWarning, match="tuned with torch 1.0, this is"):
        accel.accelerate(pipe, older).remove()

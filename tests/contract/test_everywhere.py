"""Every technique on every family: finite, counted right, repeatable, batchable, removed without a trace."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import accel
from accel import AccelWarning, Plan, Refused, registry
from accel.contract import runs
from accel.contract.trace import differences, trace
from tests.contract.plans import CHIEF, EXACT, IDLE, PLANS, SETTINGS, decides_for_the_batch, idle_parts, refused
from tests.contract.support import bench, draw, may_save_nothing, same
from tests.families import CASES, case

FITTING = [
    pytest.param(name, plan, id=f"{name}-{text}")
    for name in CASES
    for text, plan in PLANS.items()
    if not refused(plan, name)
]
REFUSED = [
    pytest.param(name, plan, id=f"{name}-{text}")
    for name in CASES
    for text, plan in PLANS.items()
    if refused(plan, name)
]
ROUNDING = 1e-3
"""Matrix products of another batch size are summed in another order, which moves a plain picture (of spread 1 to 10) by
up to 1e-4. Extrapolating over one interval multiplies such an error by up to three, guidance by its scale."""


def test_every_technique_has_settings_here() -> None:
    assert set(SETTINGS) == set(IDLE) == set(registry.names())
    for name, settings in SETTINGS.items():
        assert settings and all(technique.name == name for technique in (*settings, IDLE[name]))


@pytest.mark.parametrize(("name", "plan"), FITTING)
def test_run(name: str, plan: Plan) -> None:
    """One run is finite, predicts something in every part, and its report is what plain hooks count."""
    with may_save_nothing():
        subject = bench(name).under(plan)
        idle = [problem for problem in runs.hits(subject) if problem.split(" saved")[0] not in idle_parts(plan, name)]
        assert idle == []
        assert [*runs.finite(subject), *runs.counts(subject)] == []
        assert subject.report.cache_bytes == 0
        if all(technique.lossless for technique in plan.techniques):
            torch.testing.assert_close(subject.fast, subject.plain, atol=ROUNDING, rtol=0)
        else:
            assert subject.report.predicted > 0 or idle_parts(plan, name)
            guessed = sum(part.predicted for key, part in subject.report.techniques.items() if key not in EXACT)
            assert torch.equal(subject.fast, subject.plain) == (guessed == 0)


@pytest.mark.parametrize(("name", "plan"), [each for each in FITTING if str(each.values[1]) in CHIEF])
def test_repeat_batch_and_removal(name: str, plan: Plan) -> None:
    subject = bench(name)
    plain, before = subject.plain, trace(subject.pipe)
    with may_save_nothing(), subject.attached(plan) as handle:
        one = draw(name, subject.pipe)
        both = draw(name, subject.pipe, batch=2)
        other = draw(name, subject.pipe, seed=1)
        assert same(draw(name, subject.pipe), one)
        assert handle.report().cache_bytes == 0
    wanted = draw(name, subject.pipe, batch=2) if decides_for_the_batch(plan) else torch.cat([one, other])
    torch.testing.assert_close(both, wanted, atol=ROUNDING, rtol=0)
    assert differences(before, trace(subject.pipe)) == []
    assert same(draw(name, subject.pipe), plain)


@pytest.mark.parametrize("technique", IDLE)
@pytest.mark.parametrize("name", CASES)
def test_strength_zero_is_the_plain_picture(name: str, technique: str) -> None:
    plan = Plan.of(IDLE[technique])
    if refused(plan, name):
        return  # `test_refusal_says_why` has these
    subject = bench(name)
    nothing_saved = pytest.warns(AccelWarning, match=f"{technique}.* saved nothing in this run")
    with subject.attached(plan), nullcontext() if technique in EXACT else nothing_saved:
        assert same(draw(name, subject.pipe), subject.plain)


REASONS = {
    "lossless": ("leave it out",),
    "native": ("takes none of diffusers' caches", "works there"),
    "tgate": ("no cross-attention", "deepcache works"),
}


@pytest.mark.parametrize(("name", "plan"), REFUSED)
def test_refusal_says_why(name: str, plan: Plan) -> None:
    """Pipeline, technique, component, reason and way out; and nothing was touched."""
    pipe = bench(name).pipe
    before = trace(pipe)
    with pytest.raises(Refused) as refusal:
        accel.accelerate(pipe, plan)
    text = str(refusal.value)
    who = next(technique.name for technique in plan.techniques if refused(Plan.of(technique), name))
    parts = (type(pipe).__name__, type(getattr(pipe, case(name).denoisers[0])).__name__, f"{who}:", *REASONS[who])
    assert [part for part in parts if part not in text] == []
    assert list(refusal.value.problems) == accel.check(pipe, plan)
    assert differences(before, trace(pipe)) == []

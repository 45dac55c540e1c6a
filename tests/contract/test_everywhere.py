"""Every technique on every family: finite, counted right, repeatable, batchable, removed without a trace.

What a technique gets wrong on a family, it gets wrong under most of its settings there; and what a setting gets wrong,
on most families. So each technique meets each family once (``CHOSEN``), its settings taking turns over the families it
fits, of both kinds; each family also meets two of the combinations. Within a meeting nothing is left out: a run that is
counted by hooks, a batch, another seed, the first run again, and the plain one after removal. An idle technique is
tried on every family, and every refusal too, one per reason.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

import accel
from accel import AccelWarning, Plan, Refused, registry
from accel.contract import runs
from accel.contract.bench import Bench
from accel.contract.trace import differences, trace
from tests.contract.plans import APART, COMBINATIONS, EXACT, IDLE, SETTINGS, decides_for_the_batch, idle_parts, refused
from tests.contract.support import bench, draw, may_save_nothing, same
from tests.families import CASES, case

ROUNDING = 1e-3
"""Matrix products of another batch size are summed in another order, which moves a plain picture (of spread 1 to 10) by
up to 1e-4. Extrapolating over one interval multiplies such an error by up to three, guidance by its scale."""


def _choose(refusals: bool = False) -> list[tuple[str, Plan]]:
    """Of every technique one setting per family that it fits (or is refused on), and of the combinations two."""
    chosen = []
    for settings in SETTINGS.values():
        names = [name for name in CASES if refused(Plan.of(settings[0]), name) == refusals]
        chosen += [(name, Plan.of(settings[i % len(settings)])) for i, name in enumerate(names)]
    for i, name in enumerate(CASES):
        fitting = [plan for plan in map(Plan.of, COMBINATIONS) if refused(plan, name) == refusals]
        chosen += [(name, fitting[(2 * i + k) % len(fitting)]) for k in range(min(len(fitting), 1 if refusals else 2))]
    return sorted(chosen, key=lambda each: list(CASES).index(each[0]))


def _parameters(chosen: list[tuple[str, Plan]]) -> list[Any]:
    return [pytest.param(name, plan, id=f"{name}-{plan}") for name, plan in chosen]


CHOSEN, REFUSED = _choose(), _choose(refusals=True)


def test_every_technique_has_settings_here() -> None:
    assert set(SETTINGS) == set(IDLE) == set(registry.names()) - set(APART)
    for name, settings in SETTINGS.items():
        assert settings and all(technique.name == name for technique in (*settings, IDLE[name]))


def test_the_choice_covers_what_it_promises() -> None:
    for technique, settings in SETTINGS.items():
        alone = [(n, plan) for n, plan in [*CHOSEN, *REFUSED] if [t.name for t in plan.techniques] == [technique]]
        assert sorted(n for n, _ in alone) == sorted(CASES)
        fitting = {n for n in CASES if not refused(Plan.of(settings[0]), n)}
        for setting in settings:
            names = {n for n, plan in CHOSEN if plan == Plan.of(setting)}
            assert {case(n).family for n in names} == {case(n).family for n in fitting} and len(names) >= 2
    for combination in COMBINATIONS:
        assert {case(n).family for n, plan in CHOSEN if plan == Plan.of(combination)} == {"unet", "dit"}


@pytest.mark.parametrize(("name", "plan"), _parameters(CHOSEN))
def test_technique_on_a_family(name: str, plan: Plan) -> None:
    subject = bench(name).under(plan)
    plain, before = subject.plain, trace(subject.pipe)
    with may_save_nothing():
        _check_first_run(subject, name)
        with subject.attached() as handle:
            both = draw(name, subject.pipe, batch=2)
            other = draw(name, subject.pipe, seed=1)
            assert same(draw(name, subject.pipe), subject.fast)
            assert handle.report().cache_bytes == 0
    singles = torch.cat([subject.fast, other])
    wanted = draw(name, subject.pipe, batch=2) if decides_for_the_batch(plan) else singles
    torch.testing.assert_close(both, wanted, atol=ROUNDING, rtol=0)
    assert differences(before, trace(subject.pipe)) == []
    assert same(draw(name, subject.pipe), plain)


def _check_first_run(subject: Bench, name: str) -> None:
    """It is finite, predicts something in every part, and its report is what plain hooks count."""
    plan, report = subject.plan, subject.report
    idle = [problem for problem in runs.hits(subject) if problem.split(" saved")[0] not in idle_parts(plan, name)]
    assert idle == []
    assert [*runs.finite(subject), *runs.counts(subject)] == []
    assert report.cache_bytes == 0
    if all(technique.lossless for technique in plan.techniques):
        torch.testing.assert_close(subject.fast, subject.plain, atol=ROUNDING, rtol=0)
    else:
        assert report.predicted > 0 or idle_parts(plan, name)
        guessed = sum(part.predicted for key, part in report.techniques.items() if key not in EXACT)
        assert torch.equal(subject.fast, subject.plain) == (guessed == 0)


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
    "converged": ("the tail of the schedule cannot be changed",),
    "native": ("takes none of diffusers' caches", "works there"),
    "tgate": ("no cross-attention", "deepcache works"),
}


@pytest.mark.parametrize(("name", "plan"), _parameters(REFUSED))
def test_refusal_says_why(name: str, plan: Plan) -> None:
    """Pipeline, technique, component, reason and way out; and nothing was touched."""
    pipe = bench(name).pipe
    before = trace(pipe)
    with pytest.raises(Refused) as refusal:
        accel.accelerate(pipe, plan)
    text = str(refusal.value)
    who = next(technique.name for technique in plan.techniques if refused(Plan.of(technique), name))
    component = pipe.scheduler if who == "converged" else getattr(pipe, case(name).denoisers[0])
    parts = (type(pipe).__name__, type(component).__name__, f"{who}:", *REASONS[who])
    assert [part for part in parts if part not in text] == []
    assert list(refusal.value.problems) == accel.check(pipe, plan)
    assert differences(before, trace(pipe)) == []

"""Attaching is all or nothing, and two takers of one thing are refused whichever comes first."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from diffusers.hooks import FirstBlockCacheConfig

import accel
from accel import AccelError, AccelWarning, Plan, Refused
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.tgate import TGate
from accel.clock import Clock
from accel.contract import run_contract
from accel.contract.trace import differences, trace
from accel.handle import handles
from accel.report import Recorder
from accel.target import Target
from tests.contract.plans import SETTINGS, refused
from tests.contract.support import bench, draw, same
from tests.families import case

FITTING = [t for settings in SETTINGS.values() for t in settings if not refused(Plan.of(t), "pixart")]
CLAIMING = list({(technique.name, technique.claims): technique for technique in FITTING}.values())
"""Of each technique one setting for each set of things it takes over: nothing else decides who gets along."""


class Failing(DeepCache):
    """Hooks everything, and then fails."""

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Callable[[], None]:
        undo = super().attach(target, clock, recorder)
        try:
            raise RuntimeError("this technique cannot attach")
        finally:
            undo()


@pytest.mark.parametrize("name", ["pixart", "sd-plain", "flux-cfg"])
def test_failing_attach_leaves_no_trace(name: str) -> None:
    """What was attached before it is rolled back, the clock included."""
    subject = bench(name)
    plain, before = subject.plain, trace(subject.pipe)
    with pytest.raises(RuntimeError, match="this technique cannot attach"):
        accel.accelerate(subject.pipe, [GuidanceCache(), Failing()])
    assert handles(subject.pipe) == []
    assert differences(before, trace(subject.pipe)) == []
    assert same(draw(name, subject.pipe), plain)


PAIRS = [(a, b) for a, b in itertools.product(CLAIMING, repeat=2) if a.claims & b.claims]


@pytest.mark.parametrize(("first", "second"), PAIRS, ids=lambda technique: str(technique))
def test_claims_are_refused_in_one_plan_and_in_two(first: Any, second: Any) -> None:
    pipe = bench("pixart").pipe
    shared = ", ".join(sorted(first.claims & second.claims))
    message = f"{first.name} and {second.name} both take over {shared}: use one of them"
    assert accel.check(pipe, [first, second]) == [message]
    with accel.accelerate(pipe, first):
        attached = trace(pipe)
        with pytest.raises(Refused) as refusal:
            accel.accelerate(pipe, second)
        assert refusal.value.problems == (message,)
        assert differences(attached, trace(pipe)) == []


COMPATIBLE = list(itertools.combinations([DeepCache(), GuidanceCache(), TGate()], 2))


@pytest.mark.parametrize("pair", COMPATIBLE, ids=str)
def test_what_shares_no_claim_goes_together(pair: tuple[Any, Any]) -> None:
    assert accel.check(bench("pixart").pipe, list(pair)) == []
    assert accel.check(bench("pixart").pipe, list(reversed(pair))) == []


def test_diffusers_own_cache_is_refused_with_the_way_out() -> None:
    pipe = case("wan").build()
    pipe.transformer.enable_cache(FirstBlockCacheConfig())
    problems = accel.check(pipe, DeepCache())
    assert problems == ["transformer has diffusers' own cache enabled: call transformer.disable_cache() first"]
    pipe.transformer.disable_cache()
    assert accel.check(pipe, DeepCache()) == []


def test_region_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match=r"deepcache: transformer .*4 blocks, and none of them lies between 4 and -1"):
        accel.accelerate(bench("pixart").pipe, DeepCache(blocks=(4, -1)))
    with pytest.raises(Refused, match=r"deepcache: unet .*3 levels, so the deep part starts at 1 to 2, not 3"):
        accel.accelerate(bench("sd-plain").pipe, DeepCache(level=3))


def test_contract_finds_what_is_wrong() -> None:
    """The package's checks can fail: a draw that is not seeded, a technique that leaks, a plan that does nothing."""
    pipe = case("pixart").build()
    numbers = itertools.count()
    unseeded = run_contract(pipe, DeepCache(), lambda p, steps: draw("pixart", p, seed=next(numbers)), 4)
    assert [(c.name, c.passed) for c in unseeded] == [("deterministic", False)]
    assert "draw` must fix every seed" in unseeded[0].detail
    found = run_contract(pipe, Leaking(warm_up=9), lambda p, steps: draw("pixart", p, steps=steps), 4)
    wrong = {c.name: c.detail for c in found if not c.passed}
    assert wrong.keys() == {"hits", "removal", "removal_after_abort", "json_round_trip"}
    assert wrong["removal"] == "hooks of transformer changed"
    assert wrong["hits"].startswith("deepcache saved nothing in 4 steps")
    with accel.accelerate(pipe, DeepCache()), pytest.raises(AccelError, match="already carries a plan: remove it"):
        run_contract(pipe, DeepCache(), lambda p, steps: draw("pixart", p, steps=steps), 4)


class Leaking(DeepCache):
    """Leaves a hook on the denoiser."""

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Callable[[], None]:
        target.denoisers[0].module.register_forward_pre_hook(lambda *_: None)
        return super().attach(target, clock, recorder)


def test_replaced_denoiser_is_noticed() -> None:
    """The plan is on the old one: the run is plain, and says why."""
    pipe = case("pixart").build()
    with accel.accelerate(pipe, DeepCache(warm_up=2)):
        pipe.transformer = case("pixart").build().transformer
        with pytest.warns(AccelWarning, match="transformer was replaced after the plan was attached: remove the plan"):
            assert same(draw("pixart", pipe), bench("pixart").plain)

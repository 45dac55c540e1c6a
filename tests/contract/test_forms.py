"""Pipelines that start elsewhere, end earlier, or carry adapters, put on before or after the plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module
from diffusers.hooks import HookRegistry
from diffusers.hooks import ModelHook as DiffusersHook

import accel
from accel import Plan
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.tgate import TGate
from accel.contract.trace import differences, trace
from tests.contract.support import draw, may_save_nothing, same
from tests.families import case
from tests.families.unet_forms import load_ip_adapter, load_lora
from tests.families.unets import sd

PLAN = Plan((TGate(gate=3, self_interval=2, warm_up=1), DeepCache(warm_up=2), GuidanceCache(warm_up=2)))


def test_lora_loaded_after_accelerating() -> None:
    """The same bits as when it was there before; and unloading it gives the bits of the bare pipeline."""
    before, after = case("sd-lora").build(), sd()
    with accel.accelerate(before, PLAN):
        wanted = draw("sd-lora", before)
    with accel.accelerate(after, PLAN) as handle:
        bare = draw("sd-lora", after)
        load_lora(after)
        assert same(draw("sd-lora", after), wanted)
        assert handle.report().predicted > 0
        after.unload_lora_weights()
        assert same(draw("sd-lora", after), bare) and not torch.equal(bare, wanted)


def test_ip_adapter_loaded_after_accelerating() -> None:
    before, after = case("sd-ip-adapter").build(), sd(image_encoder=lambda: None)
    plain = draw("sd-ip-adapter", before)
    with accel.accelerate(before, PLAN):
        wanted = draw("sd-ip-adapter", before)
    with accel.accelerate(after, PLAN):
        load_ip_adapter(after)
        assert same(draw("sd-ip-adapter", after), wanted)
    assert same(draw("sd-ip-adapter", after), plain) and not torch.equal(plain, wanted)


SWITCHES: dict[str, tuple[str, Any]] = {
    "scaled": ("sd-lora", lambda pipe: pipe.set_adapters(["tiny"], [0.2])),
    "disabled": ("sd-lora", lambda pipe: pipe.disable_lora()),
    "removed": ("sd-lora", lambda pipe: pipe.unload_lora_weights()),
    "fused": ("sd-lora", lambda pipe: pipe.fuse_lora(lora_scale=0.5)),
    "loaded": ("sd-plain", load_lora),
    "image scaled": ("sd-ip-adapter", lambda pipe: pipe.set_ip_adapter_scale(0.0)),
}


@pytest.mark.parametrize("what", SWITCHES)
def test_adapter_switched_in_mid_run(what: str) -> None:
    """Nothing from before the switch is used after it: what follows is computed until there is enough to predict from.

    Guided, the batch is that of ``sd`` whatever the case.
    """
    name, switch = SWITCHES[what]
    inputs = "sd-ip-adapter" if name == "sd-ip-adapter" else "sd"

    def callback(pipe: Any, step: int, *_: object) -> dict[str, Any]:
        if step == 3:
            switch(pipe)
        return {}

    pipe = case(name).build()
    with accel.accelerate(pipe, [DeepCache(warm_up=2), GuidanceCache(warm_up=2)]) as handle:
        draw(inputs, pipe, steps=8, callback_on_step_end=callback)
        for part in handle.report().techniques.values():
            assert part.strip == "##.###.#"  # without the switch, step 4 is predicted
            assert part.declined["an adapter was switched or scaled"] == 1


def test_adapter_switched_between_runs() -> None:
    """Each run is that of a fresh pipeline in the same state; an unchanged adapter costs no prediction."""

    def fresh(scale: float) -> torch.Tensor:
        pipe = case("sd-lora").build()
        pipe.set_adapters(["tiny"], [scale])
        with accel.accelerate(pipe, PLAN):
            return draw("sd-lora", pipe)

    pipe = case("sd-lora").build()
    with accel.accelerate(pipe, PLAN) as handle:
        for scale in (1.0, 0.3, 1.0):
            pipe.set_adapters(["tiny"], [scale])
            assert same(draw("sd-lora", pipe), fresh(scale))
            assert not any("adapter" in reason for t in handle.report().techniques.values() for reason in t.declined)


@pytest.mark.parametrize("end", [0.4, 0.8])
def test_sdxl_that_ends_early(end: float) -> None:
    """``denoising_end`` leaves the rest to a refiner: the clock counts the steps that are really taken."""
    pipe = case("sdxl").build()
    plain = draw("sdxl", pipe, steps=10, denoising_end=end)
    with may_save_nothing(), accel.accelerate(pipe, PLAN) as handle:
        fast = draw("sdxl", pipe, steps=10, denoising_end=end)
        report = handle.report()
        assert report.steps_run == report.steps_planned == round(10 * end)
        assert report.cache_bytes == 0 and report.predicted > 0
        assert same(draw("sdxl", pipe, steps=10, denoising_end=end), fast)
    assert not torch.equal(fast, plain)


@pytest.mark.parametrize("strength", [0.3, 1.0])
@pytest.mark.parametrize("name", ["sd3-img2img", "flux-img2img", "sd-inpaint"])
def test_strength(name: str, strength: float) -> None:
    pipe = case(name).build()
    with may_save_nothing(), accel.accelerate(pipe, DeepCache(warm_up=1, how="reuse")) as handle:
        fast = draw(name, pipe, steps=10, strength=strength)
        report = handle.report()
        assert report.steps_run == report.steps_planned == round(10 * strength)
        assert report.techniques["deepcache"].strip == "#.#.#.#.#."[: report.steps_run]
        assert same(draw(name, pipe, steps=10, strength=strength), fast)


class Noted(ModelHook):
    """Stands for an offloading hook: counts the calls that pass through it."""

    def __init__(self) -> None:
        self.calls = 0

    def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return args, kwargs


@pytest.mark.parametrize("offloaded_first", [True, False])
def test_offloading_comes_and_goes(offloaded_first: bool) -> None:
    """Model offloading takes its wrapper off and puts it on again after every run; neither may take the other along."""
    pipe, hook = case("pixart").build(), Noted()
    with accel.accelerate(pipe, DeepCache(warm_up=2)):
        wanted = draw("pixart", pipe)
    plain = draw("pixart", pipe)
    if offloaded_first:
        add_hook_to_module(pipe.transformer, hook)
    with accel.accelerate(pipe, DeepCache(warm_up=2)) as handle:
        for _ in range(2):
            remove_hook_from_module(pipe.transformer, recurse=True)
            add_hook_to_module(pipe.transformer, hook)
            hook.calls = 0
            assert same(draw("pixart", pipe), wanted)
            assert hook.calls == 4 and handle.report().predicted == 1
    hook.calls = 0
    assert same(draw("pixart", pipe), plain)
    assert hook.calls == 4
    remove_hook_from_module(pipe.transformer)
    assert same(draw("pixart", pipe), plain)


def test_diffusers_hooks_of_the_user_stay() -> None:
    """Group offloading and layerwise casting are diffusers hooks: those that were there before stay where they were."""

    class Counting(DiffusersHook):
        calls = 0

        def pre_forward(self, module: Any, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return args, kwargs

    pipe, below, above = case("pixart").build(), Counting(), Counting()
    registry = HookRegistry.check_if_exists_or_initialize(pipe.transformer)
    registry.register_hook(below, "below")
    plain, before = draw("pixart", pipe), trace(pipe)
    handle = accel.accelerate(pipe, DeepCache(warm_up=2))
    registry.register_hook(above, "above")
    below.calls = 0
    draw("pixart", pipe)
    assert (below.calls, above.calls, handle.report().predicted) == (4, 4, 1)
    handle.remove()
    assert same(draw("pixart", pipe), plain) and (below.calls, above.calls) == (8, 8)
    registry.remove_hook("above")
    assert differences(before, trace(pipe)) == []

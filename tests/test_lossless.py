"""The lossless tier: what is remembered, when it is not, and that no bit depends on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from diffusers import ControlNetModel, MultiControlNetModel
from torch import nn
from torch.overrides import TorchFunctionMode

import accel
from accel import AccelError, AccelWarning, Refused
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.lossless.places import networks
from accel.caches.lossless.technique import Lossless
from accel.caches.tgate import TGate
from accel.hooks import labels
from accel.target import Target
from tests.contract.support import draw, may_save_nothing, same
from tests.families import CASES, case, with_scheduler

ACCEPTED = [name for name in CASES if name != "dit"]
CROSSED = ["sd", "sdxl", "sd-lora", "sd-ip-adapter", "pixart", "sana", "wan", "ltx", "stable-audio", "lumina"]

# --- on pipelines ----------------------------------------------------------------------------------------------------


class Projections(TorchFunctionMode):
    """Counts the matrix products with each weight, wherever they are asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[int] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            self.products[id(args[1])] += 1
        return func(*args, **(kwargs or {}))


def weights(pipe: Any) -> list[int]:
    """The key and value projections of cross-attention, also those of an image prompt."""
    attentions = [site.module for site in Target.of(pipe).of_kind("cross_attn")]
    layers = [getattr(attention, name) for attention in attentions for name in ("to_k", "to_v")]
    for name in ("to_k_ip", "to_v_ip"):
        layers += [layer for attention in attentions for layer in getattr(attention.processor, name, ())]
    return [id(getattr(layer, "base_layer", layer).weight) for layer in layers]


@contextmanager
def lossless(pipe: Any, *more: Any, **settings: Any) -> Iterator[Any]:
    with accel.accelerate(pipe, [Lossless(**settings), *more]) as handle:
        yield handle


@pytest.mark.parametrize("name", ACCEPTED)
def test_every_family_keeps_its_bits(name):
    pipe = case(name).build()
    plain = draw(name, pipe)
    with lossless(pipe) as handle:
        for _ in range(2):
            assert same(draw(name, pipe), plain)
            part = handle.report().techniques["lossless"]
            assert part.predicted > 0 and handle.report().cache_bytes == 0 < handle.report().cache_bytes_peak
        assert same(draw(name, pipe, batch=2, guidance=False), draw_plainly(name, batch=2, guidance=False))


def draw_plainly(name: str, **kw: Any) -> torch.Tensor:
    return draw(name, case(name).build(), **kw)


@pytest.mark.parametrize("name", CROSSED)
def test_keys_and_values_are_projected_once_per_run_and_branch(name):
    pipe = case(name).build()
    branches = 2 if case(name).guidance == "sequential" else 1
    with Projections() as plain:
        draw(name, pipe)
    with lossless(pipe), Projections() as fast:
        draw(name, pipe)
    assert {plain.products[weight] for weight in weights(pipe)} == {4 * branches}
    assert {fast.products[weight] for weight in weights(pipe)} == {branches}


def test_text_projections_above_them_are_remembered_too():
    """Only then do the keys and values see the same memory again."""
    pipe = case("wan").build()
    weight = id(pipe.transformer.condition_embedder.text_embedder.linear_1.weight)
    with lossless(pipe), Projections() as fast:
        draw("wan", pipe)
    assert fast.products[weight] == 2


def test_two_calls_of_a_step_share_their_modulation():
    pipe = case("wan").build()
    embedder = pipe.transformer.condition_embedder
    layers = [embedder.time_embedder.linear_1, embedder.time_embedder.linear_2, embedder.time_proj]
    for on, count in ((False, 8), (True, 4)):
        with lossless(pipe, modulation=on), Projections() as fast:
            draw("wan", pipe)
        assert [fast.products[id(layer.weight)] for layer in layers] == [count] * 3


def test_an_evaluation_at_the_same_timestep_shares_it_as_well():
    """Heun's method asks for every noise level but the ends twice."""
    pipe = with_scheduler(case("sd-plain").build(), "heun")
    plain = draw("sd-plain", pipe)
    with lossless(pipe, text_kv=False, positions=False) as handle:
        assert same(draw("sd-plain", pipe), plain)
        assert handle.report().techniques["lossless"].predicted == 2 * 3


@pytest.mark.parametrize("name", ["wan", "ltx", "flux"])
def test_position_tables_are_made_once(name):
    pipe = case(name).build()
    plain = draw(name, pipe)
    with lossless(pipe, text_kv=False, modulation=False) as handle:
        assert same(draw(name, pipe), plain)
        part = handle.report().techniques["lossless"]
        calls = sum(handle.report().calls.values())
        assert (part.sites, part.computed, part.predicted) == (1, 1, calls - 1)


def test_position_tables_follow_the_resolution():
    pipe = case("wan").build()
    with lossless(pipe):
        for size in (64, 96, 64):
            assert same(draw("wan", pipe, size=size), draw_plainly("wan", size=size))


# --- changes in mid-run ----------------------------------------------------------------------------------------------


def changed(name: str, pipe: Any, change: Any, **kw: Any) -> torch.Tensor:
    """A run of six steps in which ``change(pipe, inputs)`` happens after the third."""

    def callback(pipe: Any, step: int, _time: Any, inputs: dict[str, Any]) -> dict[str, Any]:
        return (change(pipe, inputs) or {}) if step == 2 else {}

    wanted = {"callback_on_step_end": callback, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}
    return draw(name, pipe, steps=6, **wanted, **kw)


def write(pipe: Any, inputs: dict[str, Any]) -> None:
    inputs["prompt_embeds"].mul_(0.5)


def write_through_a_view(pipe: Any, inputs: dict[str, Any]) -> None:
    inputs["prompt_embeds"][-1].view(-1)[3:].neg_()


def replace(pipe: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    return {"prompt_embeds": inputs["prompt_embeds"] * 0.5}


@pytest.mark.parametrize("change", [write, write_through_a_view, replace])
@pytest.mark.parametrize("name", ["sd", "wan", "ltx", "flux"])
def test_text_that_changes_in_mid_run(name, change):
    plain = changed(name, case(name).build(), change)
    pipe = case(name).build()
    assert not same(plain, draw(name, pipe, steps=6))
    with lossless(pipe) as handle:
        assert same(changed(name, pipe, change), plain)
        assert handle.report().techniques["lossless"].predicted > 0


def cut_off(pipe: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    pipe._guidance_scale = 1.0
    return {"prompt_embeds": inputs["prompt_embeds"].chunk(2)[-1]}


def test_guidance_that_ends_in_mid_run():
    plain = changed("sd", case("sd").build(), cut_off)
    pipe = case("sd").build()
    with lossless(pipe), Projections() as fast:
        assert same(changed("sd", pipe, cut_off), plain)
    assert {fast.products[weight] for weight in weights(pipe)} == {2}  # once for the whole batch, once for its half


SWITCHES: dict[str, tuple[str, Any]] = {
    "scaled": ("sd-lora", lambda pipe, _: pipe.set_adapters(["tiny"], [0.2])),
    "disabled": ("sd-lora", lambda pipe, _: pipe.disable_lora()),
    "removed": ("sd-lora", lambda pipe, _: pipe.unload_lora_weights()),
    "fused": ("sd-lora", lambda pipe, _: pipe.fuse_lora(lora_scale=0.5)),
    "image scaled": ("sd-ip-adapter", lambda pipe, _: pipe.set_ip_adapter_scale(0.1)),
}


@pytest.mark.parametrize("what", SWITCHES)
def test_adapter_that_is_switched_in_mid_run(what):
    name, switch = SWITCHES[what]
    plain = changed(name, case(name).build(), switch)
    pipe = case(name).build()
    assert not same(plain, draw(name, pipe, steps=6))
    with lossless(pipe) as handle:
        assert same(changed(name, pipe, switch), plain)
        part = handle.report().techniques["lossless"]
        assert part.declined["an adapter was switched or scaled"] == 1 and part.predicted > 0


def test_adapters_that_come_and_go_between_runs():
    """The projection below the LoRA is remembered, which is the same one with and without it."""
    pipe = case("sd-lora").build()
    with lossless(pipe) as handle:
        assert same(draw("sd-lora", pipe), draw_plainly("sd-lora"))
        predicted = handle.report().techniques["lossless"].predicted
        pipe.unload_lora_weights()
        draw("sd-lora", pipe)
        assert handle.report().techniques["lossless"].predicted == predicted > 0


class Stop(Exception):
    """Raised by a step callback."""


def test_an_error_frees_what_was_kept():
    def stop(*_: Any) -> None:
        raise Stop

    pipe = case("wan").build()
    with lossless(pipe) as handle:
        with pytest.raises(Stop):
            changed("wan", pipe, stop)
        assert handle.report().cache_bytes == 0 < handle.report().cache_bytes_peak
        assert same(draw("wan", pipe), draw_plainly("wan"))


# --- with others -----------------------------------------------------------------------------------------------------

OTHERS = [
    [DeepCache(warm_up=2)],
    [GuidanceCache(warm_up=2)],
    [TGate(gate=3, self_interval=2, warm_up=1, cutoff="cond")],
    [TGate(gate=3), DeepCache(warm_up=2), GuidanceCache(warm_up=2)],
]


@pytest.mark.parametrize("others", OTHERS, ids=lambda others: " + ".join(map(str, others)))
@pytest.mark.parametrize("name", ["sd", "pixart", "wan", "lumina"])
def test_other_caches_give_the_bits_they_give_alone(name, others):
    """Half batches included: a half is computed as a half, and never cut out of the whole."""
    pipe = case(name).build()
    with accel.accelerate(pipe, others) as handle:
        alone, cells = draw(name, pipe, steps=6), handle.report().techniques
    for plan in ([Lossless(), *others], [*others, Lossless()]):
        with accel.accelerate(pipe, plan) as handle:
            assert same(draw(name, pipe, steps=6), alone)
            together = handle.report().techniques
            assert together.pop("lossless").predicted > 0
            assert {key: part.strip for key, part in together.items()} == {k: p.strip for k, p in cells.items()}


def test_half_batches_are_projected_apart_from_whole_ones():
    pipe = case("sd").build()
    with lossless(pipe, GuidanceCache(warm_up=2)), Projections() as fast:
        draw("sd", pipe, steps=8)
    assert {fast.products[weight] for weight in weights(pipe)} == {2}


def test_it_shares_no_claim_with_other_caches():
    pipe = case("pixart").build()
    assert accel.check(pipe, [TGate(), Lossless(), DeepCache(), GuidanceCache()]) == []
    assert accel.check(pipe, [Lossless(), Lossless(positions=False)]) == [
        "lossless and lossless both take over constants: use one of them"
    ]


# --- ControlNet ------------------------------------------------------------------------------------------------------


def convolutions(controlnet: Any) -> list[int]:
    """Fills with an entry for every time the picture to follow is embedded."""
    seen: list[int] = []
    controlnet.controlnet_cond_embedding.conv_in.register_forward_hook(lambda *_: seen.append(1))
    return seen


def test_controlnet_embeds_its_picture_before_the_run_and_once_in_it():
    """The run begins with the first call of the denoiser, and the ControlNet is called before that."""
    pipe = case("sd-controlnet").build()
    plain, seen = draw("sd-controlnet", pipe), convolutions(pipe.controlnet)
    with lossless(pipe), Projections() as fast:
        assert same(draw("sd-controlnet", pipe), plain)
    assert len(seen) == 2
    crossing = [m for name, m in pipe.controlnet.named_modules() if name.endswith(("attn2.to_k", "attn2.to_v"))]
    assert crossing and {fast.products[id(layer.weight)] for layer in crossing} == {2}
    seen.clear()
    with lossless(pipe, controlnet_halves=False):
        assert same(draw("sd-controlnet", pipe), plain)
    assert len(seen) == 4


def test_controlnet_of_another_pipeline_is_not_counted():
    pipe = case("sd-controlnet").build()
    other = type(pipe)(**pipe.components, requires_safety_checker=False)
    other.set_progress_bar_config(disable=True)
    with lossless(pipe) as handle:
        draw("sd-controlnet", other)
        assert handle.report().steps_planned == 0
        cells = []

        def beside(*_: Any) -> dict[str, Any]:
            cells.append(handle.report().techniques["lossless"].computed)
            draw("sd-controlnet", other, steps=2)
            cells.append(handle.report().techniques["lossless"].computed)
            return {}

        draw("sd-controlnet", pipe, steps=3, callback_on_step_end=beside)
        assert cells[0] == cells[1] and cells[2] == cells[3]


def test_several_controlnets():
    pipe = case("sd-controlnet").build()
    second = ControlNetModel.from_config(pipe.controlnet.config).eval()
    second.load_state_dict({k: v * 0.9 for k, v in pipe.controlnet.state_dict().items()})
    pipe.controlnet = pipe.components["controlnet"] = MultiControlNetModel([pipe.controlnet, second])
    inputs = {**case("sd-controlnet").inputs(steps=4), "controlnet_conditioning_scale": [1.0, 0.5]}
    inputs["image"] = [inputs["image"], inputs["image"].flip(-1)]

    def again() -> dict[str, Any]:
        return {**inputs, "generator": torch.Generator().manual_seed(0)}

    plain = pipe(**again()).images
    names = [network.name for network in networks(Target.of(pipe))]
    assert names == ["unet", "controlnet.nets.0", "controlnet.nets.1"]
    seen = convolutions(second)
    with lossless(pipe):
        assert same(pipe(**again()).images, plain) and len(seen) == 2


# --- refusals and settings -------------------------------------------------------------------------------------------


def test_a_model_without_constants_is_refused():
    pipe = case("dit").build()
    with pytest.raises(
        Refused, match=r"lossless: transformer \(DiTTransformer2DModel\) has nothing that may stay the same"
    ):
        accel.accelerate(pipe, Lossless())
    unet = case("sd-plain").build()
    assert accel.check(unet, Lossless(text_kv=False, modulation=False))  # a UNet has no position tables
    assert accel.check(unet, Lossless(text_kv=False)) == []


def test_inference_mode_is_declined_with_the_way_out():
    pipe = case("pixart").build()
    plain = draw("pixart", pipe)
    with lossless(pipe), torch.inference_mode(), pytest.warns(AccelWarning, match="use torch.no_grad"):
        assert same(draw("pixart", pipe), plain)


def compiled(module: nn.Module) -> None:
    """Marked as `module.compile()` does it, and run as it is."""
    module._compiled_call_impl = module._call_impl


@pytest.mark.parametrize("which", ["transformer", "transformer.transformer_blocks.0"])
def test_a_compiled_denoiser_is_left_whole_and_the_report_says_so(which):
    pipe = case("pixart").build()
    network = pipe.transformer
    compiled(network.get_submodule(which.partition(".")[2]))
    with lossless(pipe) as handle:
        assert not any(labels(module) for module in network.modules() if module is not network)
        assert same(draw("pixart", pipe), draw_plainly("pixart"))
        assert "transformer is compiled" in str(handle.report())


def test_a_denoiser_that_is_compiled_afterwards_is_computed():
    pipe = case("pixart").build()
    with lossless(pipe) as handle:
        compiled(pipe.transformer)
        with pytest.warns(AccelWarning, match="saved nothing in this run .transformer is compiled"):
            assert same(draw("pixart", pipe), draw_plainly("pixart"))
        del pipe.transformer._compiled_call_impl
        assert same(draw("pixart", pipe), draw_plainly("pixart"))
        assert handle.report().techniques["lossless"].predicted > 0
        wrapped = pipe.transformer = torch.compile(pipe.transformer, backend="eager")
        assert networks(Target.of(pipe))[0].compiled and isinstance(wrapped, nn.Module)


def test_a_budget_that_is_used_up_costs_hits_and_no_bits():
    """A position table of 2 x 3072 rows of 32 sines and as many cosines takes 1.5 MiB."""
    pipe = case("ltx").build()
    plain = draw("ltx", pipe, size=128, steps=2)
    with lossless(pipe, budget=1) as handle:
        assert same(draw("ltx", pipe, size=128, steps=2), plain)
        assert 0 < handle.report().cache_bytes_peak <= 1 << 20
        part = handle.report().techniques["lossless"]
        assert part.predicted > 0 and part.declined == {"more than 1 MiB would be kept: raise `budget`": 1}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"text_kv": 1}, "text_kv is true or false, not 1"),
        ({"budget": 0}, "budget must be a whole number of at least 1"),
        (dict.fromkeys(("text_kv", "modulation", "positions", "controlnet_halves"), False), "all switched off"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(AccelError, match=message):
        Lossless(**settings)


def test_it_is_spelled_like_any_technique():
    plan = accel.Plan.of("lossless(text_kv=False, budget=64) + deepcache")
    assert plan.techniques == (Lossless(text_kv=False, budget=64), DeepCache())
    assert accel.Plan.from_dict(plan.to_dict()) == plan


def test_a_run_of_one_step_has_nothing_to_repeat():
    pipe = case("sd-plain").build()
    with lossless(pipe) as handle, may_save_nothing():
        assert same(draw("sd-plain", pipe, steps=1), draw_plainly("sd-plain", steps=1))
        assert handle.report().techniques["lossless"].predicted == 0

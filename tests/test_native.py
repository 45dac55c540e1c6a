"""diffusers' own caches through the adapter: the same bits where they are sound, and what comes of them where not."""

from __future__ import annotations

import copy
import gc
import itertools
import json
from collections.abc import Callable
from typing import Any

import diffusers
import pytest
import torch
from diffusers.hooks import HookRegistry, ModelHook
from torch import nn

import accel
from accel import AccelError, AccelWarning, Plan, Refused
from accel.caches.native.lifting import lift
from accel.caches.native.technique import NativeCache
from accel.contract.bench import Bench
from accel.contract.isolation import second_pipeline
from accel.contract.runs import counts
from accel.contract.trace import differences, trace
from tests.contract.support import draw, may_save_nothing, same, steps_of
from tests.families import case, with_scheduler

pytestmark = pytest.mark.filterwarnings("ignore:torch.meshgrid")  # diffusers' own FasterCache

RATIOS = {"mag_ratios": [1.0, 1.0, 1.0, 1.0], "threshold": 9.0, "retention_ratio": 0.3}
EARLY = {"disable_cache_before_step": 2, "cache_interval": 3, "taylor_factors_dtype": "float32"}
FIRST_BLOCK = NativeCache(options={"threshold": 9.0})
MAG = NativeCache("mag", RATIOS)
TAYLOR = NativeCache("taylor", {**EARLY, "cache_identifiers": [r".*attn\d?"]})
LITE = NativeCache("taylor", {**EARLY, "use_lite_mode": True})
PAB = NativeCache("pab", {"spatial_attention_timestep_skip_range": [-1, 1001]})
FASTER = NativeCache("faster", {"tensor_format": "BFCHW"})
SEA = NativeCache("sea", {"threshold": 9.0})


def _fast(name: str, technique: NativeCache, **kw: Any) -> tuple[torch.Tensor, Any]:
    """Output and report of a fresh pipeline's run."""
    pipe = case(name).build()
    with may_save_nothing(), accel.accelerate(pipe, technique) as handle:
        return draw(name, pipe, **kw), handle.report()


def _plain(name: str, **kw: Any) -> torch.Tensor:
    return draw(name, case(name).build(), **kw)


# --- where diffusers is right, it is diffusers ---------------------------------------------------------------------

SOUND = [
    *[("flux", technique) for technique in (FIRST_BLOCK, MAG, TAYLOR, LITE, PAB)],
    *[("wan", technique) for technique in (FIRST_BLOCK, MAG, LITE, SEA)],
    *[("ltx", technique) for technique in (FIRST_BLOCK, PAB)],
    *[("cogvideox", technique) for technique in (FIRST_BLOCK, TAYLOR, FASTER)],
]


@pytest.mark.parametrize(("name", "technique"), SOUND, ids=str)
def test_same_bits_as_diffusers_by_itself(name: str, technique: NativeCache) -> None:
    pipe = case(name).build()
    pipe.transformer.enable_cache(technique.config(lambda: pipe.current_timestep, steps=4))
    fast, report = _fast(name, technique)
    assert same(fast, draw(name, pipe))
    assert report.techniques["native"].predicted > 0 and report.techniques["native"].declined == {}
    assert report.cache_bytes == 0 < report.cache_bytes_peak


@pytest.mark.parametrize(("name", "technique"), [pair for pair in SOUND if pair[1] is not LITE], ids=str)
def test_counts_are_what_plain_hooks_count(name: str, technique: NativeCache) -> None:
    """All but lite's: it predicts the output of a layer without an inside, where hooks see nothing."""
    bench = Bench(case(name).build(), Plan.of(technique), lambda pipe, steps: draw(name, pipe, steps=steps), 4)
    assert list(counts(bench)) == []


def test_faster_leaves_out_the_unconditional_half() -> None:
    """Rows are counted, and the attention that is skipped is counted apart."""
    _, report = _fast("cogvideox", FASTER)
    assert (report.rows, report.rows_computed) == (8, 6)
    assert report.techniques["native guidance"].strip == "##.."
    assert report.techniques["native"].strip == "###."


# --- what diffusers gets wrong -------------------------------------------------------------------------------------


def _apart(name: str, technique: NativeCache) -> torch.Tensor:
    """The run in which each guidance branch has a denoiser and a cache of its own, so that nothing can be mixed up."""
    pipe = case(name).build()
    now: list[float] = []
    copies = [copy.deepcopy(pipe.transformer) for _ in range(2)]
    for each in copies:
        each.enable_cache(technique.config(lambda: now[-1], steps=steps_of(name)))
    turns = itertools.cycle(copies)

    def forward(*args: Any, **kwargs: Any) -> Any:
        now.append(float(pipe.scheduler.timesteps[getattr(pipe.scheduler, "step_index", None) or 0]))
        each = next(turns)
        with each.cache_context("its only one"):
            return each(*args, **kwargs)

    pipe.transformer.forward = forward
    return draw(name, pipe)


@pytest.mark.parametrize("name", ["wan", "flux-cfg"])
def test_pab_keeps_two_guidance_calls_apart(name: str) -> None:
    """By itself it answers the unconditional call with the conditional one's attention."""
    ranges = dict.fromkeys(("spatial_attention_block_skip_range", "cross_attention_block_skip_range"), 2)
    both = NativeCache("pab", {**dict(PAB.options), **ranges, "cross_attention_timestep_skip_range": [-1, 1001]})
    fast, report = _fast(name, both)
    assert same(fast, _apart(name, both))
    assert report.techniques["native"].strip == "#.#."


@pytest.mark.parametrize("technique", [FIRST_BLOCK, LITE, TAYLOR, PAB], ids=str)
def test_pipeline_that_enters_no_cache_context(technique: NativeCache) -> None:
    """By itself it raises, or takes both branches for one; here the clock tells them apart."""
    fast, report = _fast("flux-img2img", technique)
    assert same(fast, _apart("flux-img2img", technique))
    assert report.techniques["native"].predicted > 0


def test_faster_needs_both_halves_in_one_batch() -> None:
    """By itself it fails on one picture, and takes two pictures for two halves."""
    with pytest.raises(Refused, match="once per guidance branch, and there is no half of a batch .*deepcache works"):
        accel.accelerate(case("wan").build(), NativeCache("faster"))
    distilled = NativeCache("faster", {"is_guidance_distilled": True})
    fast, report = _fast("wan", distilled)
    assert same(fast, _apart("wan", distilled)) and report.techniques["native"].predicted > 0


@pytest.mark.parametrize(
    ("name", "kw", "reason"),
    [
        ("flux-img2img", {}, "not an unconditional half followed by"),
        ("flux-img2img", {"batch": 2}, "the latents are not BFCHW"),
        ("cogvideox", {"guidance": False}, "not an unconditional half followed by"),
        ("ltx", {}, "the latents are not BFCHW"),
    ],
    ids=str,
)
def test_faster_declines_what_only_a_run_shows(name: str, kw: dict[str, Any], reason: str) -> None:
    fast, report = _fast(name, FASTER, **kw)
    assert same(fast, _plain(name, **kw))
    assert reason in str(report.techniques["native"].declined)
    assert report.techniques["native"].predicted == 0 and report.cache_bytes_peak >= report.cache_bytes == 0


@pytest.mark.parametrize("name", ["wan", "ltx", "cogvideox"])
def test_taylor_that_would_hook_nothing_is_refused_with_names_that_work(name: str) -> None:
    """By itself it is enabled, silent and without effect: its patterns are held against whole names."""
    pipe = case(name).build()
    (problem,) = accel.check(pipe, NativeCache("taylor"))
    assert "of its modules would be hooked: name them with options={'cache_identifiers': ['.*\\\\.attn1'" in problem
    named = NativeCache("taylor", {**EARLY, "cache_identifiers": [r".*\.attn1"]})
    _, report = _fast(name, named)
    assert report.techniques["native"].strip == "##.#"
    assert accel.check(case("flux").build(), NativeCache("taylor")) == []


def _kandinsky() -> nn.Module:
    sizes = {"in_text_dim": 16, "in_text_dim2": 16, "time_dim": 16, "model_dim": 16, "ff_dim": 32}
    return diffusers.Kandinsky5Transformer3DModel(
        in_visual_dim=4, out_visual_dim=4, num_text_blocks=1, num_visual_blocks=3, axes_dims=(2, 2, 4), **sizes
    )


def _flux2() -> nn.Module:
    sizes = {"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32}
    return diffusers.Flux2Transformer2DModel(
        in_channels=4, num_layers=2, num_single_layers=2, axes_dims_rope=(4, 4, 4, 4), **sizes
    )


def _bria() -> nn.Module:
    sizes = {"attention_head_dim": 16, "num_attention_heads": 2, "joint_attention_dim": 32}
    return diffusers.BriaTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=2, num_single_layers=2, axes_dims_rope=[0, 4, 12], **sizes
    )


def _latte() -> nn.Module:
    sizes = {"attention_head_dim": 8, "num_attention_heads": 2, "caption_channels": 16, "cross_attention_dim": 16}
    return diffusers.LatteTransformer3DModel(
        sample_size=8, num_layers=2, patch_size=2, in_channels=4, out_channels=8, video_length=2, **sizes
    )


@pytest.mark.parametrize(
    ("denoiser", "technique", "reason"),
    [
        (_kandinsky, LITE, "the modules it skips hand on zeros, and nothing behind them is predicted"),
        (_kandinsky, FIRST_BLOCK, "its blocks call their input visual_embed, and it looks for hidden_states"),
        (_flux2, FIRST_BLOCK, "its first and its last block return different things"),
        (_bria, FIRST_BLOCK, "diffusers cannot install it (Model class <class '"),
        (_bria, MAG, "diffusers cannot install it (Model class <class '"),
        (_latte, FIRST_BLOCK, "the blocks of temporal_transformer_blocks and transformer_blocks take turns"),
        (_latte, MAG, "the blocks of temporal_transformer_blocks and transformer_blocks take turns"),
        (_flux2, SEA, "diffusers does not know how to read its latents, so every step would be computed"),
    ],
)
def test_structures_on_which_a_cache_is_wrong(
    denoiser: Callable[[], nn.Module], technique: NativeCache, reason: str
) -> None:
    """All told before a run, and nothing stays on the denoiser, not even of what was installed half."""
    pipe = case("wan").build()
    pipe.transformer = denoiser()
    before = trace(pipe)
    (problem,) = accel.check(pipe, technique)
    who = f"native: {technique.kind} on transformer ({type(pipe.transformer).__name__}): "
    assert problem.startswith(who + reason) and problem.endswith(" works there")
    assert differences(before, trace(pipe)) == []


@pytest.mark.parametrize("denoiser", [_flux2, _bria])
def test_lifting_leaves_the_denoiser_as_it_was(denoiser: Callable[[], nn.Module]) -> None:
    """Whether or not enabling succeeds; the hooks that were there stay where they were."""
    pipe = case("wan").build()
    pipe.transformer = module = denoiser()
    HookRegistry.check_if_exists_or_initialize(module).register_hook(ModelHook(), "mine")
    before = trace(pipe)
    for technique in (FIRST_BLOCK, MAG, LITE, PAB):
        try:
            assert {each.path for each in lift(module, technique.config())} < {n for n, _ in module.named_modules()}
        except ValueError as error:
            assert denoiser is _bria and "not registered" in str(error)
        assert differences(before, trace(pipe)) == []
        assert module._diffusers_hook._hook_order == ["mine"] and not module.is_cache_enabled


class Stop(Exception):
    """Raised by a step callback."""


@pytest.mark.parametrize("technique", [FIRST_BLOCK, LITE, PAB], ids=str)
def test_aborted_run_leaves_nothing_to_the_next(technique: NativeCache) -> None:
    """By itself the next run, at another resolution, fails, and so do all after it; at the same one it is wrong."""

    def stop(pipe: object, step: int, *_: object) -> dict:
        if step == 2:
            raise Stop
        return {}

    pipe = case("wan").build()
    with accel.accelerate(pipe, technique) as handle:
        for kw in ({"size": case("wan").sizes[-1]}, {"seed": 1}):
            with pytest.raises(Stop):
                draw("wan", pipe, callback_on_step_end=stop)
            assert handle.report().cache_bytes == 0 < handle.report().cache_bytes_peak
            assert same(draw("wan", pipe, **kw), _fast("wan", technique, **kw)[0])


def _tensors_alive() -> int:
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


@pytest.mark.parametrize("technique", [FIRST_BLOCK, MAG, LITE, PAB, SEA], ids=str)
def test_no_tensor_outlives_its_run(technique: NativeCache) -> None:
    """Counted by the garbage collector, which knows nothing of reports."""
    pipe = case("wan").build()
    draw("wan", pipe)
    with accel.accelerate(pipe, technique):
        draw("wan", pipe)
        before = _tensors_alive()
        draw("wan", pipe)
        assert _tensors_alive() == before
    draw("wan", pipe)
    assert _tensors_alive() <= before  # mag's ratios are one


def test_sea_is_told_the_step_and_the_noise() -> None:
    """It acts only where it knows both, which the pipeline need not say."""
    pipe = case("wan").build()
    asked = pipe.transformer.cache_context
    pipe.transformer.cache_context = lambda name, **_: asked(name)
    with accel.accelerate(pipe, SEA) as handle:
        fast = draw("wan", pipe)
        assert handle.report().techniques["native"].strip == "#..#"
    assert same(fast, _fast("wan", SEA)[0])


def test_sea_declines_sigmas_that_are_no_shares() -> None:
    pipe = case("wan").build()
    pipe.scheduler = diffusers.EulerDiscreteScheduler()
    plain = draw("wan", pipe)
    with may_save_nothing(), accel.accelerate(pipe, SEA) as handle:
        assert same(draw("wan", pipe), plain)
        assert "sigmas are not shares of noise" in str(handle.report().techniques["native"].declined)


@pytest.mark.parametrize("technique", [FIRST_BLOCK, SEA], ids=str)
def test_one_decision_for_a_batch_is_declined(technique: NativeCache) -> None:
    """By itself a picture depends on those it is drawn with. Two halves of one picture are not two pictures."""
    both, report = _fast("wan", technique, batch=2)
    assert same(both, _plain("wan", batch=2))
    assert "draw them singly" in str(report.techniques["native"].declined)
    assert _fast("ltx", FIRST_BLOCK)[1].techniques["native"].predicted > 0


@pytest.mark.parametrize(("name", "solver"), [("wan", "heun"), ("wan-two-experts", "unipc")])
def test_mag_follows_the_steps_of_the_run(name: str, solver: str) -> None:
    """By itself it counts calls, and starts anew in the middle of a run that has more of them than it was told."""
    ones = NativeCache("mag", {"mag_ratios": [1.0] * 6 + [9.0] * 2, "threshold": 1.0, "retention_ratio": 0.0})
    pipe = with_scheduler(case(name).build(), solver)
    with accel.accelerate(pipe, ones) as handle:
        draw(name, pipe, steps=8)
        strip, calls = handle.report().techniques["native"].strip, handle.report().calls
    last_quarter = len(strip) * 3 // 4
    assert set(strip[last_quarter + 1 :]) == {"#"}  # where the ratios say that the residual jumps
    second = calls["transformer/cond"] if len(calls) > 2 else len(strip)
    assert all(strip[start + 1] == "." for start in {0, second} if start + 1 < last_quarter)


def test_mag_prints_the_ratios_of_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """Of each branch, one for every step, whatever step count diffusers was told."""
    fast, _ = _fast("wan", NativeCache("mag", {"calibrate": True}), steps=6)
    assert same(fast, _plain("wan", steps=6))
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("[1.0")]
    assert [len(ratios) for ratios in printed] == [6, 6]
    NativeCache("mag", {"mag_ratios": printed[0]})


# --- whose calls, and with which settings --------------------------------------------------------------------------


def test_sibling_pipeline_in_the_middle_of_a_run() -> None:
    """diffusers resets caches at the end of every pipeline's run, and its hooks act on everybody's calls."""
    pipe = case("wan").build()
    other = second_pipeline(pipe)
    other.scheduler = copy.deepcopy(pipe.scheduler)
    plain, seen = draw("wan", other, seed=1), []

    def draw_another(_: object, step: int, *__: object) -> dict:
        if step == 1:
            seen.append(draw("wan", other, seed=1))
        return {}

    with accel.accelerate(pipe, FIRST_BLOCK):
        fast = draw("wan", pipe, callback_on_step_end=draw_another)
    assert same(seen[0], plain)
    assert same(fast, _fast("wan", FIRST_BLOCK)[0])


def test_sample_changed_by_a_callback() -> None:
    """What was kept is dropped when the latents change their shape in the middle of a run."""

    def grow(pipe: object, step: int, t: object, now: dict) -> dict:
        return {"latents": now["latents"].repeat(1, 1, 2, 1, 1)} if step == 1 else {}

    pipe = with_scheduler(case("wan").build(), "euler")
    with accel.accelerate(pipe, LITE) as handle:
        fast = draw("wan", pipe, steps=6, callback_on_step_end=grow)
        assert fast.isfinite().all() and handle.report().predicted > 0
        assert "changed its shape" in str(handle.report().techniques["native"].declined)


def test_users_own_cache_is_refused_as_everywhere() -> None:
    pipe = case("wan").build()
    pipe.transformer.enable_cache(FIRST_BLOCK.config())
    (problem,) = accel.check(pipe, FIRST_BLOCK)
    assert problem.endswith("call transformer.disable_cache() first")


def test_denoisers_without_caches_are_refused_with_what_works() -> None:
    (problem,) = accel.check(case("sd").build(), NativeCache())
    who, why = "first_block on unet (UNet2DConditionModel)", "it takes none of diffusers' caches"
    assert problem == f"native: {who}: {why}; deepcache works there"


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("first", {}, "kind is one of first_block, mag, taylor, pab, faster, sea, not 'first'"),
        ("first_block", {"treshold": 1.0}, "first_block has no option treshold: it has threshold"),
        ("first_block", {"threshold": "much"}, "threshold is like 0.05, not 'much'"),
        ("first_block", {"threshold": True}, "threshold is like 0.05, not True"),
        ("first_block", 3, "options are names with values, not 3"),
        ("pab", {"current_timestep_callback": 3}, "current_timestep_callback comes from the run, leave it out"),
        ("mag", {"num_inference_steps": 28}, "num_inference_steps comes from the run, leave it out"),
        ("mag", {}, "mag needs mag_ratios"),
        ("faster", {"attention_weight_callback": float}, "faster has no option attention_weight_callback"),
        ("taylor", {"taylor_factors_dtype": "float"}, None),
        ("taylor", {"taylor_factors_dtype": "tensor"}, "torch has no data type 'tensor'"),
        ("taylor", {"taylor_factors_dtype": 16}, "taylor_factors_dtype is like torch.bfloat16, not 16"),
        ("taylor", {"cache_identifiers": {"attn"}}, "cache_identifiers is like None, not {'attn'}"),
        ("sea", {"residual_order": 2}, "sea does not take these options: `residual_order` must be 0 or 1"),
    ],
)
def test_options_are_checked_by_name(kind: str, options: Any, reason: str | None) -> None:
    if reason is None:
        assert NativeCache(kind, options).config().taylor_factors_dtype is torch.float32
        return
    with pytest.raises(AccelError, match="native: ") as error:
        NativeCache(kind, options)
    assert reason in str(error.value)


@pytest.mark.parametrize("technique", [NativeCache(), FIRST_BLOCK, MAG, TAYLOR, PAB], ids=str)
def test_plans_with_options_survive_json_and_text(technique: NativeCache) -> None:
    plan = Plan.of(technique)
    assert Plan.from_dict(json.loads(json.dumps(plan.to_dict()))) == plan == Plan.of(str(plan))
    assert hash(technique) == hash(NativeCache(technique.kind, dict(technique.options)))


def test_a_run_with_nothing_to_skip_says_so() -> None:
    pipe = case("wan").build()
    plain = draw("wan", pipe)
    with accel.accelerate(pipe, NativeCache(options={"threshold": 0.0})):
        with pytest.warns(AccelWarning, match="native saved nothing in this run"):
            assert same(draw("wan", pipe), plain)

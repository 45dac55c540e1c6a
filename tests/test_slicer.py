"""Slicing: what is cut and what is not, that the values stay, and that the peak of memory falls."""

from __future__ import annotations

import copy
from functools import cache
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.models.attention import BasicTransformerBlock, FeedForward, TemporalBasicTransformerBlock
from diffusers.models.attention_processor import PAGCFGIdentitySelfAttnProcessor2_0
from diffusers.models.resnet import ResnetBlock2D, SpatioTemporalResBlock, TemporalConvLayer
from torch import nn

import accel
from accel import AccelError, AccelWarning
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.rehash import StepRehash
from accel.caches.slicer import Slicer, groups
from accel.caches.slices import Cut, Uncut, bind, in_pieces, mixes_rows, rule
from accel.caches.tgate import TGate
from accel.contract.isolation import second_pipeline
from accel.measure.live import Live, live_peak
from accel.target import Denoiser, Target
from accel.technique import Technique
from tests.contract.support import may_save_nothing
from tests.families import case, run
from tests.families.video_unets import FRAMES, SIZE, VIDEO_UNETS, animatediff, inputs, video_unet

ROUNDING = {"atol": 1e-4, "rtol": 0.0}
"""A smaller matrix product may be summed in another order: a few units in the last place of values around ten."""
EXACT = {"atol": 1e-11, "rtol": 0.0}
"""The same in double precision: what is left when the arithmetic is the same."""

# What is counted


def test_live_bytes_are_those_of_tensors_alive_at_once() -> None:
    before = torch.zeros(1000)

    def work() -> torch.Tensor:
        first = before + 1
        second = first * 2
        del first
        third = second.view(10, 100).add_(1) + 1  # a view and a write in place need nothing
        return third[:1]  # which keeps the whole storage

    assert live_peak(work) == 2 * 4000
    with Live() as live:
        kept = work()
        assert live.now == 4000
        del kept
        assert (live.now, live.peak) == (0, 2 * 4000)


# Values and memory


@cache
def _pipe(name: str) -> DiffusionPipeline:
    return video_unet(name)


@torch.no_grad()
def _call(pipe: DiffusionPipeline, name: str, batch: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """One denoiser call in a run of one step."""
    pipe.scheduler.set_timesteps(1)
    return pipe.unet(timestep=torch.tensor(500), **inputs(name, batch, dtype), return_dict=False)[0]


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("name", VIDEO_UNETS)
def test_slices_give_the_same_values(name: str, batch: int) -> None:
    """In double precision up to one part in 10^11, and in single precision up to the order of summation."""
    pipe = _pipe(name)
    plain = _call(pipe, name, batch)
    double = copy.deepcopy(pipe)
    double.unet.double()
    exact = _call(double, name, batch, torch.float64)
    for slices in (2, 5):
        with accel.accelerate(pipe, Slicer(slices)):
            torch.testing.assert_close(_call(pipe, name, batch), plain, **ROUNDING)
        with accel.accelerate(double, Slicer(slices)):
            torch.testing.assert_close(_call(double, name, batch, torch.float64), exact, **EXACT)
    assert torch.equal(_call(pipe, name, batch), plain)


@pytest.mark.parametrize(
    ("name", "batch", "least"),
    [
        ("spatio-temporal", 1, {2: 1.3, 4: 1.6}),
        ("spatio-temporal", 2, {2: 1.5, 4: 1.9}),
        ("motion", 1, {2: 1.4, 4: 1.9}),
        ("motion", 2, {2: 1.4, 4: 1.9}),
        ("three-dimensional", 1, {2: 1.6, 4: 2.4}),
        ("three-dimensional", 2, {2: 1.7, 4: 2.6}),
    ],
)
def test_peak_memory_of_a_denoiser_call_falls(name: str, batch: int, least: dict[int, float]) -> None:
    pipe = _pipe(name)
    plain = live_peak(lambda: _call(pipe, name, batch))
    for slices, factor in {1: 1.0, **least}.items():
        with accel.accelerate(pipe, Slicer(slices)):
            sliced = live_peak(lambda: _call(pipe, name, batch))
        assert plain / sliced >= factor, (slices, plain / sliced)
        assert slices > 1 or plain == sliced


def test_a_video_pipeline_draws_the_same_and_says_what_it_cut() -> None:
    pipe = animatediff()

    def draw() -> torch.Tensor:
        text = inputs("motion", 1)["encoder_hidden_states"][:1]
        random = torch.Generator().manual_seed(0)
        size: dict[str, Any] = {"height": 8 * SIZE, "width": 8 * SIZE, "num_frames": FRAMES}
        prompts = {"prompt_embeds": text, "negative_prompt_embeds": -text}
        return pipe(**prompts, **size, num_inference_steps=2, generator=random, output_type="latent").frames

    plain = draw()
    with accel.accelerate(pipe, Slicer(4)) as handle:
        torch.testing.assert_close(draw(), plain, **ROUNDING)
        part = handle.report().techniques["slicer"]
        assert part.strip == "==" and part.sites > 50
        assert (part.computed, part.lighter, part.predicted) == (2 * part.sites, 2 * part.sites, 0)
        assert "slicer" in str(handle.report())
    assert torch.equal(draw(), plain)


def test_cells_are_those_that_run_in_pieces() -> None:
    """Counted by plain hooks: a residual block called with 2 rows runs its first layer twice, one row at a time."""
    pipe, rows = case("sd").build(), []
    block = next(module for module in pipe.unet.modules() if isinstance(module, ResnetBlock2D))
    hook = block.conv1.register_forward_pre_hook(lambda module, args: rows.append(len(args[0])))
    with accel.accelerate(pipe, Slicer(8)) as handle:
        run(case("sd"), pipe, steps=2)
        part = handle.report().techniques["slicer"]
        assert (part.computed, part.lighter) == (2 * part.sites, 2 * part.sites)
    hook.remove()
    assert rows == [1, 1, 1, 1]


def test_one_slice_is_the_plain_picture_and_says_so() -> None:
    one = case("sd-plain")
    pipe = one.build()
    plain = run(one, pipe, steps=2)
    with accel.accelerate(pipe, Slicer(1)):
        with pytest.warns(AccelWarning, match="slicer saved nothing.*asked for one slice"):
            assert torch.equal(run(one, pipe, steps=2), plain)


# Beside other techniques

COMPANIONS = [
    (DeepCache(warm_up=2), "pixart"),
    (DeepCache(warm_up=2), "sd"),
    (GuidanceCache(warm_up=2), "pixart"),
    (TGate(gate=2), "sd"),
    (TGate(gate=2), "pixart"),
    (StepRehash(warm_up=2), "wan"),
]


@pytest.mark.parametrize("slicer_first", [True, False])
@pytest.mark.parametrize(("other", "name"), COMPANIONS, ids=str)
def test_other_techniques_do_not_feel_it(other: Technique, name: str, slicer_first: bool) -> None:
    """What they hook inside of a group is not cut: the picture and the counts are those of the other one alone."""
    one = case(name)
    pipe = one.build()
    with accel.accelerate(pipe, other) as handle:
        alone, counts = run(one, pipe, steps=4), handle.report().techniques[other.name]
    plan = [Slicer(2), other] if slicer_first else [other, Slicer(2)]
    with accel.accelerate(pipe, plan) as handle:
        torch.testing.assert_close(run(one, pipe, steps=4), alone, atol=1e-3, rtol=0)
        report = handle.report()
    assert report.techniques[other.name] == counts
    assert report.techniques["slicer"].lighter > 0


def test_another_pipeline_over_the_same_denoiser_may_have_it_as_well() -> None:
    """Its hooks stand beneath those of this one's block cache: the blocks are cut in neither."""
    one = case("pixart")
    pipe = one.build()
    other = second_pipeline(pipe)
    with accel.accelerate(pipe, DeepCache(warm_up=2)):
        alone = run(one, pipe, steps=4)
    with accel.accelerate(other, Slicer()), accel.accelerate(pipe, [DeepCache(warm_up=2), Slicer()]) as handle:
        torch.testing.assert_close(run(one, pipe, steps=4), alone, atol=1e-3, rtol=0)
        assert handle.report().techniques["deepcache"].strip == "##.#"
        assert handle.report().techniques["slicer"].lighter > 0


def test_what_others_hook_is_named_as_the_reason() -> None:
    one = case("sd")
    pipe = one.build()
    with accel.accelerate(pipe, [TGate(gate=2), Slicer()]) as handle:
        run(one, pipe, steps=4)
        reasons = handle.report().techniques["slicer"].declined
    assert [reason.partition(",")[0] for reason in reasons] == ["tgate looks at the inside of a group"]


class LooksAcross:
    """An attention processor of somebody's own, in which every row sees the first one."""

    def __call__(self, attn: Any, hidden_states: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        return hidden_states + hidden_states[:1]


def test_attention_that_may_look_across_rows_is_not_cut() -> None:
    one = case("sd")
    pipe = one.build()
    pipe.unet.set_attn_processor(LooksAcross())
    plain = run(one, pipe, steps=2)
    with accel.accelerate(pipe, Slicer()) as handle:
        torch.testing.assert_close(run(one, pipe, steps=2), plain, **ROUNDING)
        part = handle.report().techniques["slicer"]
    assert part.lighter > 0
    assert list(part.declined) == ["an attention processor may look across rows"]


def test_an_error_inside_of_a_slice_leaves_nothing_behind() -> None:
    """The next run is cut as the one before it: every residual block into two pieces."""
    one = case("sd")
    pipe = one.build()
    plain = run(one, pipe, steps=2)
    blocks = [module for module in pipe.unet.modules() if isinstance(module, ResnetBlock2D)]
    calls: list[nn.Module] = []

    def fail(*_: object) -> None:
        raise KeyError("inside")

    with accel.accelerate(pipe, Slicer()):
        hook = blocks[-1].conv1.register_forward_pre_hook(fail)
        with pytest.raises(KeyError, match="inside"):
            run(one, pipe, steps=2)
        hook.remove()
        for block in blocks:
            block.conv1.register_forward_pre_hook(lambda module, args: calls.append(module))
        torch.testing.assert_close(run(one, pipe, steps=2), plain, **ROUNDING)
    assert len(calls) == 2 * 2 * len(blocks)


# Rules


def _cut(module: nn.Module, *args: Any, **kwargs: Any) -> Cut:
    how = rule(module)
    assert how is not None
    return how(bind(module, args, kwargs))


@pytest.mark.parametrize("pieces", [2, 3, 6])
def test_pieces_are_shares_of_all_arguments(pieces: int) -> None:
    block = ResnetBlock2D(in_channels=4, out_channels=8, temb_channels=16, groups=2)
    hidden, temb = torch.randn(6, 4, 8, 8), torch.randn(6, 16)
    cut = _cut(block, hidden, temb=temb)
    assert (cut.units, cut.dim) == (6, 0)
    with torch.no_grad():
        torch.testing.assert_close(in_pieces(cut, pieces, block.forward), block(hidden, temb))
    part = cut.part(1, 3)
    assert torch.equal(part.arguments["input_tensor"], hidden[1:3])
    assert torch.equal(part.arguments["temb"], temb[1:3])


def test_pieces_keep_the_layout_of_channels_last() -> None:
    block = nn.Conv2d(4, 8, 3).to(memory_format=torch.channels_last)
    hidden = torch.randn(4, 4, 8, 8).to(memory_format=torch.channels_last)
    plain = block(hidden)
    cut = Cut(4, lambda start, stop: bind(block, (hidden[start:stop],), {}))
    assert in_pieces(cut, 2, block.forward).stride() == plain.stride()


def test_layers_that_see_all_frames_are_cut_between_videos_only() -> None:
    """And they must be: with another last frame the first one comes out differently."""
    layer = TemporalConvLayer(32, 32).eval()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    video = torch.randn(2 * 4, 32, 4, 4)
    assert _cut(layer, video, num_frames=4).units == 2
    changed = video.clone()
    changed[3] += 1
    with torch.no_grad():
        before, after = layer(video, num_frames=4), layer(changed, num_frames=4)
    assert not torch.equal(before[0], after[0]) and torch.equal(before[4:], after[4:])


def test_indicators_of_a_video_go_with_its_frames() -> None:
    block = SpatioTemporalResBlock(in_channels=32, temb_channels=8)
    indicator = torch.tensor([[0.0] * 4, [1.0] * 4])
    cut = _cut(block, torch.randn(8, 32, 2, 2), torch.randn(8, 8), image_only_indicator=indicator)
    part = cut.part(1, 2).arguments
    assert cut.units == 2
    assert part["image_only_indicator"].tolist() == [[1.0] * 4]
    assert part["hidden_states"].shape == (4, 32, 2, 2) and part["temb"].shape == (4, 8)


def test_temporal_block_is_cut_between_pixels() -> None:
    block = TemporalBasicTransformerBlock(16, 16, 2, 8, cross_attention_dim=16).eval()
    frames, pixels = 3, 10
    hidden = torch.randn(2 * frames, pixels, 16)
    text = torch.randn(2 * pixels, 5, 16)  # one for every pixel of every video
    cut = _cut(block, hidden, num_frames=frames, encoder_hidden_states=text)
    assert (cut.units, cut.dim) == (pixels, 1)
    with torch.no_grad():
        whole = block(hidden, num_frames=frames, encoder_hidden_states=text)
        torch.testing.assert_close(in_pieces(cut, 4, block.forward), whole)
    with pytest.raises(Uncut, match="encoder_hidden_states has 6 rows for 20 pixels"):
        _cut(block, hidden, num_frames=frames, encoder_hidden_states=torch.randn(6, 5, 16))


def test_feed_forward_is_cut_along_its_longest_dimension() -> None:
    layer = FeedForward(8).eval()
    for shape, dim in [((2, 30, 8), 1), ((30, 2, 8), 0), ((7, 8), 0)]:
        tokens = torch.randn(shape)
        cut = _cut(layer, tokens)
        assert (cut.units, cut.dim) == (max(shape[:-1]), dim)
        torch.testing.assert_close(in_pieces(cut, 4, layer.forward), layer(tokens))


def test_arguments_of_unknown_rows_stop_the_cutting() -> None:
    """Also when their first dimension happens to be as long as the batch."""
    block = BasicTransformerBlock(16, 2, 8, cross_attention_dim=16)
    hidden, text = torch.randn(4, 6, 16), torch.randn(4, 5, 16)
    assert _cut(block, hidden, encoder_hidden_states=text, cross_attention_kwargs={"scale": None}).units == 4
    with pytest.raises(Uncut, match="cross_attention_kwargs is a tensor, and it is not known which rows"):
        _cut(block, hidden, encoder_hidden_states=text, cross_attention_kwargs={"masks": [torch.ones(4, 2)]})
    with pytest.raises(Uncut, match="encoder_hidden_states has 3 rows for 4"):
        _cut(block, hidden, encoder_hidden_states=text[:3])


def test_a_single_row_is_meant_for_all() -> None:
    block = BasicTransformerBlock(16, 2, 8, cross_attention_dim=16)
    one, pictures = torch.randn(1, 5, 16), (torch.randn(4, 5, 16), [torch.randn(4, 1, 3, 16)])
    cut = _cut(block, torch.randn(4, 6, 16), encoder_hidden_states=pictures, encoder_attention_mask=one)
    part = cut.part(2, 4).arguments
    assert part["encoder_attention_mask"].shape == (1, 5, 16)
    assert part["encoder_hidden_states"][1][0].shape == (2, 1, 3, 16)


def test_other_classes_are_not_cut_unless_they_are_feed_forward_layers() -> None:
    class Mine(ResnetBlock2D):
        """May do anything."""

    assert rule(Mine(in_channels=32)) is None
    assert rule(nn.Linear(2, 2)) is None
    layer = nn.Conv1d(3, 3, 1)
    how = rule(layer, is_feed_forward=True)
    assert how is not None and how(bind(layer, (torch.randn(5, 3, 2),), {})).units == 5
    with pytest.raises(Uncut, match="something else than one tensor"):
        how(bind(layer, (torch.randn(5, 3),), {}))


def test_perturbed_attention_mixes_the_thirds_of_a_batch() -> None:
    block = BasicTransformerBlock(16, 2, 8)
    assert not mixes_rows(block)
    block.attn1.set_processor(PAGCFGIdentitySelfAttnProcessor2_0())
    assert mixes_rows(block)


def test_large_groups_come_before_the_small_ones_inside_of_them() -> None:
    denoiser = Target.of(_pipe("spatio-temporal")).denoisers[0]
    names = [group.name for group in groups(denoiser)]
    assert names == [name for name in names if name.startswith("unet.")]
    outer = "unet.down_blocks.0.attentions.0"
    inner = f"{outer}.temporal_transformer_blocks.0"
    assert names.index(outer) < names.index(inner) < names.index(f"{inner}.ff")


# Settings


@pytest.mark.parametrize("slices", [0, -1, 2.0, True])
def test_slices_is_a_number_of_pieces(slices: Any) -> None:
    with pytest.raises(AccelError, match="slicer: slices must be a whole number of at least 1"):
        Slicer(slices)


def test_a_denoiser_without_groups_is_refused_by_name() -> None:
    target = Target(None, (Denoiser("unet", nn.Linear(2, 2), "unet", ()),))
    (problem,) = Slicer().problems(target)
    assert problem.startswith("slicer: unet (Linear) has no residual, transformer or feed-forward block")


def test_single_rows_are_said_to_be_so() -> None:
    """Without guidance a picture's convolutions have one row: only its feed-forward layers are cut."""
    one = case("sd-plain")
    pipe = one.build()
    with may_save_nothing(), accel.accelerate(pipe, Slicer()) as handle:
        run(one, pipe, steps=2)
        part = handle.report().techniques["slicer"]
    assert part.strip == "++" and 0 < part.lighter < part.computed
    assert list(part.declined) == ["a group has a single row; only smaller ones inside of it are cut"]

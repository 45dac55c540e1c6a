"""Reading pipelines by structure: families, sites, regions, refusals."""

from __future__ import annotations

import re
from collections import Counter

import pytest
import torch
from diffusers import DDIMScheduler, DiffusionPipeline, UNet1DModel
from torch import nn

import accel
from accel.caches.deepcache import DeepCache
from accel.errors import AccelWarning, Refused
from accel.sites import Unreadable
from accel.target import Target
from tests.families import CASES, case, run


@pytest.mark.parametrize("name", sorted(CASES))
def test_every_family_is_read(name):
    subject = case(name)
    target = Target.of(subject.build())
    assert target.family == subject.family
    assert tuple(d.name for d in target.denoisers) == subject.denoisers
    for denoiser in target.denoisers:
        assert all(site.denoiser == denoiser.name for site in denoiser.sites)
        assert len({site.name for site in denoiser.sites}) == len(denoiser.sites)
        assert all(0 <= site.depth < denoiser.depth for site in denoiser.sites)
        assert denoiser.of_kind("self_attn", "joint_attn")


ATTENTION = {
    "sd": {"self_attn", "cross_attn"},
    "sdxl": {"self_attn", "cross_attn"},
    "pixart": {"self_attn", "cross_attn"},
    "sana": {"self_attn", "cross_attn"},
    "wan": {"self_attn", "cross_attn"},
    "ltx": {"self_attn", "cross_attn"},
    "stable-audio": {"self_attn", "cross_attn"},
    "audioldm2": {"self_attn", "cross_attn"},
    "dit": {"self_attn"},
    "sd3": {"joint_attn", "self_attn"},  # SD3.5 adds self-attention to some blocks, and calls it attn2
    "flux": {"joint_attn"},
    "cogvideox": {"joint_attn"},
}


@pytest.mark.parametrize("name", sorted(ATTENTION))
def test_attention_is_told_apart_by_structure(name):
    target = Target.of(case(name).build())
    kinds = Counter(site.kind for site in target.of_kind("self_attn", "cross_attn", "joint_attn"))
    assert set(kinds) == ATTENTION[name]
    if "cross_attn" in kinds and name != "audioldm2":  # AudioLDM2 has self-only blocks beside the cross ones
        assert kinds["cross_attn"] == kinds["self_attn"]


def test_a_unet_region_is_everything_below_a_level():
    denoiser = Target.of(case("sd").build()).denoisers[0]
    region = denoiser.region(1)
    unet = denoiser.module
    assert region.module is unet.up_blocks[-2]
    inside = dict(region.interior)
    assert unet.mid_block in inside.values() and unet.down_blocks[1] in inside.values()
    assert unet.down_blocks[0].downsamplers[0] in inside.values()
    assert unet.down_blocks[0] not in inside.values() and unet.up_blocks[-1] not in inside.values()
    with pytest.raises(Unreadable, match="levels"):
        denoiser.region(denoiser.depth)


def test_a_transformer_region_is_a_stretch_of_blocks():
    denoiser = Target.of(case("pixart").build()).denoisers[0]
    region = denoiser.region(1, -1)
    blocks = denoiser.module.transformer_blocks
    assert region.module is blocks[-2]
    assert [module for _, module in region.interior] == list(blocks[1:-2])
    with pytest.raises(Unreadable, match="none of them"):
        denoiser.region(5, 2)


class LongSkip(nn.Module):
    """A transformer whose blocks listen to earlier ones."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attn1 = nn.Module()
            self.attn1.to_q = nn.Linear(4, 4)

        def forward(self, hidden_states: torch.Tensor, skip: torch.Tensor | None = None) -> torch.Tensor:
            return hidden_states

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(self.Block() for _ in range(3))

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return hidden_states


class Pipeline:
    """The little of a pipeline that a target looks at."""

    def __init__(self, **components: object):
        self.components = components
        self.scheduler = DDIMScheduler()


def test_long_skip_connections_are_seen():
    denoiser = Target.of(Pipeline(transformer=LongSkip())).denoisers[0]
    with pytest.raises(Unreadable, match="long skip"):
        denoiser.region(0, 2)


class Odd(nn.Module):
    """Takes a timestep, and has nothing else of a denoiser."""

    def forward(self, sample: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        return sample


def test_what_cannot_be_read_is_refused_with_the_reason():
    with pytest.raises(Refused, match="not a diffusers pipeline"):
        Target.of(nn.Linear(2, 2))
    with pytest.raises(Refused, match="no denoiser"):
        Target.of(Pipeline(vae=nn.Linear(2, 2)))

    with pytest.raises(Refused, match="neither down/up blocks nor a list of blocks"):
        Target.of(Pipeline(unet=Odd()))


def test_one_of_two_denoisers_cannot_be_read():
    """It is named when checking, when attaching and in the report, with the reason."""
    pipe = case("wan-two-experts").build()
    pipe.transformer_2 = Odd()
    note = "transformer_2 (Odd) cannot be read: it has neither down/up blocks nor a list of blocks"
    assert [text.startswith(note) for text in Target.of(pipe).unread] == [True]
    warned = re.escape(note) + ".*; it runs without the plan"
    with pytest.warns(AccelWarning, match=warned):
        assert accel.check(pipe, DeepCache()) == []
    with pytest.warns(AccelWarning, match=warned), accel.accelerate(pipe, DeepCache()) as handle:
        assert handle.report().notes == list(Target.of(pipe).unread)
        pipe.transformer_2 = pipe.transformer
        with pytest.warns(AccelWarning):  # it has four steps at most
            run(case("wan-two-experts"), pipe, steps=2)
        assert f"without the plan: {note}" in str(handle.report())


def test_every_denoiser_without_a_deep_part_is_named():
    pipe = Pipeline(transformer=LongSkip(), transformer_2=LongSkip())
    problems = accel.check(pipe, DeepCache(blocks=(0, 2)))
    assert [text.split(" has no")[0] for text in problems] == ["deepcache: transformer", "deepcache: transformer_2"]


def test_a_pipeline_that_does_not_drive_its_own_scheduler_is_refused():
    class Combined(DiffusionPipeline):
        def __init__(self, unet: nn.Module):
            super().__init__()
            self.register_modules(unet=unet)
            self.decoder_pipe = inner

    inner = case("sd").build()
    with pytest.raises(Refused, match="accelerate pipe.decoder_pipe"):
        Target.of(Combined(inner.unet))
    pipe = Pipeline(unet=inner.unet)
    del pipe.scheduler
    with pytest.raises(Refused, match="no `scheduler`"):
        Target.of(pipe)


def test_levels_without_downsamplers_have_no_deep_part():
    down, up = ("DownBlock1D", "AttnDownBlock1D"), ("AttnUpBlock1D", "UpBlock1D")
    shape = {"sample_size": 64, "block_out_channels": (8, 16), "extra_in_channels": 16}
    denoiser = Target.of(Pipeline(unet=UNet1DModel(**shape, down_block_types=down, up_block_types=up))).denoisers[0]
    with pytest.raises(Unreadable, match="DownBlock1D"):
        denoiser.region(1)

"""UNets that make video: Stable Video Diffusion, AnimateDiff and the three-dimensional one, each in a bare pipeline.

They are called by a hand-written loop. ``VIDEO_UNETS`` names them; ``video_unet(name)`` builds one and ``inputs(name)``
what it is called with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from diffusers import (
    AnimateDiffPipeline,
    DDIMScheduler,
    DiffusionPipeline,
    EulerDiscreteScheduler,
    UNet3DConditionModel,
    UNetMotionModel,
    UNetSpatioTemporalConditionModel,
)
from torch import nn

from tests.families.core import quiet
from tests.families.seeding import TOKENS, normal, seed_weights
from tests.families.unets import BETAS

TEXT_DIM = 32
CHANNELS = (32, 64)
FRAMES = 8
SIZE = 8


class VideoLoop(DiffusionPipeline):
    """Only a denoiser and a scheduler: the loop is written by hand."""

    def __init__(self, unet: nn.Module, scheduler: Any):
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)


def _spatio_temporal() -> nn.Module:
    return UNetSpatioTemporalConditionModel(
        sample_size=SIZE,
        block_out_channels=CHANNELS,
        num_attention_heads=(2, 4),
        cross_attention_dim=TEXT_DIM,
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=24,
        down_block_types=("CrossAttnDownBlockSpatioTemporal", "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", "CrossAttnUpBlockSpatioTemporal"),
    )


def _motion() -> nn.Module:
    return UNetMotionModel(
        sample_size=SIZE,
        block_out_channels=CHANNELS,
        norm_num_groups=8,
        cross_attention_dim=TEXT_DIM,
        num_attention_heads=4,
        motion_num_attention_heads=4,
        down_block_types=("CrossAttnDownBlockMotion", "DownBlockMotion"),
        up_block_types=("UpBlockMotion", "CrossAttnUpBlockMotion"),
    )


def _three_dimensional() -> nn.Module:
    return UNet3DConditionModel(
        sample_size=SIZE,
        block_out_channels=CHANNELS,
        norm_num_groups=8,
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=8,
        down_block_types=("CrossAttnDownBlock3D", "DownBlock3D"),
        up_block_types=("UpBlock3D", "CrossAttnUpBlock3D"),
    )


VIDEO_UNETS: dict[str, Callable[[], nn.Module]] = {
    "spatio-temporal": _spatio_temporal,
    "motion": _motion,
    "three-dimensional": _three_dimensional,
}


def video_unet(name: str) -> DiffusionPipeline:
    """A bare pipeline around the UNet of that name."""
    return quiet(VideoLoop(seed_weights(VIDEO_UNETS[name](), 51), EulerDiscreteScheduler(**BETAS)))


def inputs(name: str, batch: int, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """What the UNet of that name is called with for ``batch`` videos, all but the timestep."""
    text = normal("video text", 0, batch, TOKENS, TEXT_DIM).to(dtype)
    if name == "spatio-temporal":
        sample = normal("video", 0, batch, FRAMES, 8, SIZE, SIZE)
        added = normal("ids", 0, batch, 3).to(dtype)
        return {"sample": sample.to(dtype), "encoder_hidden_states": text[:, :1], "added_time_ids": added}
    sample = normal("video", 0, batch, 4, FRAMES, SIZE, SIZE).to(dtype)
    if name == "motion":  # its pipelines hand it a text for every frame
        text = text.repeat_interleave(FRAMES, dim=0)
    return {"sample": sample, "encoder_hidden_states": text}


def animatediff() -> DiffusionPipeline:
    """The motion UNet in its own pipeline, which takes prompt embeddings only and draws latents."""
    pipe = AnimateDiffPipeline(
        vae=None,
        text_encoder=None,
        tokenizer=None,
        unet=seed_weights(_motion(), 52),
        motion_adapter=None,
        scheduler=DDIMScheduler(**BETAS, clip_sample=False, steps_offset=1),
    )
    return quiet(pipe)

"""Half a guided batch of a motion UNet, which is given its text once for every frame."""

from __future__ import annotations

from typing import Any

import torch

import accel
from accel.caches.guidance import GuidanceCache
from tests.families.video_unets import FRAMES, SIZE, animatediff, inputs


def draw(pipe: Any, *videos: int) -> torch.Tensor:
    """The videos of these numbers, together."""
    text = inputs("motion", 2)["encoder_hidden_states"][::FRAMES][list(videos)]
    return pipe(
        prompt_embeds=text,
        negative_prompt_embeds=-text,
        height=8 * SIZE,
        width=8 * SIZE,
        num_frames=FRAMES,
        num_inference_steps=4,
        generator=[torch.Generator().manual_seed(i) for i in videos],
        output_type="latent",
    ).frames


def test_the_kept_half_gets_the_texts_of_its_own_frames():
    pipe = animatediff()
    with accel.accelerate(pipe, GuidanceCache(warm_up=2)) as handle:
        both = draw(pipe, 0, 1)
        report = handle.report()
        singles = [draw(pipe, video) for video in (0, 1)]
    assert report.techniques["guidance"].predicted == 1 and report.rows_computed == report.rows - 2
    torch.testing.assert_close(both, torch.cat(singles), atol=1e-3, rtol=1e-3)
    assert not torch.allclose(both[:1], both[1:], atol=1.0)

"""What slicing saves in memory and costs in time, on one denoiser call of a video UNet with random weights.

    python benchmarks/memory_slicer.py

Memory is the most bytes of tensors alive at once during the call, weights and inputs not counted: it is counted
operator by operator and comes out the same every time. Time is the processor time of this process on one thread, with
and without the plan in turns; concluded is the median of their ratio over the rounds.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable
from typing import Any

import torch
from common import write
from diffusers import DiffusionPipeline, EulerDiscreteScheduler, UNetSpatioTemporalConditionModel

import accel
from accel.caches.slicer import Slicer
from accel.measure.live import Live
from accel.measure.timing import ratio, turn

SLICES = (1, 2, 4, 8)
TEXT = 64


class VideoLoop(DiffusionPipeline):
    """Only a denoiser and a scheduler."""

    def __init__(self, unet: torch.nn.Module, scheduler: Any):
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)


def main() -> None:
    """Measure, print, write ``results/memory_slicer.json``."""
    options = _options()
    torch.set_num_threads(1)
    once = _subject(options)
    plans = {"plain": None, **{f"slices={slices}": Slicer(slices) for slices in SLICES}}
    outputs, peaks = {}, {}
    for name, plan in plans.items():
        outputs[name], peaks[name], _ = once(plan, True)
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    for number in range(options.rounds):
        for name in turn(list(plans), number):
            seconds[name].append(once(plans[name], False)[2])
    measured = {}
    for name in list(plans)[1:]:
        time_ratio = ratio(seconds[name], seconds["plain"])
        error = (outputs[name] - outputs["plain"]).abs().max().item()
        measured[name] = {"memory": peaks["plain"] / peaks[name], "time": vars(time_ratio), "largest_error": error}
        print(f"{name}: memory / {measured[name]['memory']:.2f}, time x {time_ratio.value:.3f}, error {error:.2g}")
    result = {**vars(options), "spread": outputs["plain"].std().item(), "peak_bytes": peaks, "plans": measured}
    print(write("memory_slicer", {**result, "seconds": seconds}))


def _subject(options: argparse.Namespace) -> Callable[[Slicer | None, bool], tuple[torch.Tensor, int, float]]:
    """One denoiser call on a guided video of the size asked for: its output, peak (where counted) and seconds."""
    torch.manual_seed(0)
    pipe = VideoLoop(_unet(options.channels).eval(), EulerDiscreteScheduler())
    given = {
        "sample": torch.randn(2, options.frames, 8, options.size, options.size),
        "encoder_hidden_states": torch.randn(2, 1, TEXT),
        "added_time_ids": torch.randn(2, 3),
    }

    @torch.no_grad()
    def once(plan: Slicer | None, counted: bool) -> tuple[torch.Tensor, int, float]:
        attached = accel.accelerate(pipe, plan) if plan else contextlib.nullcontext()
        with attached, Live() if counted else contextlib.nullcontext(Live()) as live:
            pipe.scheduler.set_timesteps(1)
            began = time.process_time()
            output = pipe.unet(timestep=pipe.scheduler.timesteps[0], **given, return_dict=False)[0]
            return output, live.peak, time.process_time() - began

    return once


def _unet(channels: int) -> UNetSpatioTemporalConditionModel:
    """Stable Video Diffusion's architecture, narrower and one level shallower."""
    return UNetSpatioTemporalConditionModel(
        block_out_channels=(channels, 2 * channels, 4 * channels),
        num_attention_heads=(2, 4, 8),
        cross_attention_dim=TEXT,
        addition_time_embed_dim=32,
        projection_class_embeddings_input_dim=96,
        down_block_types=(*("CrossAttnDownBlockSpatioTemporal",) * 2, "DownBlockSpatioTemporal"),
        up_block_types=("UpBlockSpatioTemporal", *("CrossAttnUpBlockSpatioTemporal",) * 2),
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--channels", type=int, default=64, help="of the outermost level; a multiple of 32 (default: 64)"
    )
    parser.add_argument("--frames", type=int, default=14)
    parser.add_argument("--size", type=int, default=32, help="of a frame's latents (default: 32)")
    parser.add_argument("--rounds", type=int, default=10)
    return parser.parse_args()


if __name__ == "__main__":
    main()

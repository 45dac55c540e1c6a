"""What the benchmark scripts share: the subject, its prompts, drawing, and where results go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers import DiffusionPipeline

import accel
from accel.measure.timing import machine
from accel.tiny.scenes import make_scene

RESULTS = Path(__file__).parent / "results"
GUIDANCE = 4.0


def subject(model: str) -> DiffusionPipeline:
    """The pipeline to measure (a bundled name, a folder or a hub id), without a progress bar."""
    pipe = accel.load(model)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def prompts(count: int, first_seed: int = 1000) -> list[str]:
    """Captions of held-out compositions."""
    return [make_scene(seed, held_out=True).caption for seed in range(first_seed, first_seed + count)]


def draw(pipe: DiffusionPipeline, texts: list[str], steps: int) -> torch.Tensor:
    """Pictures ``(batch, 3, height, width)`` in 0 … 1; picture ``i`` starts from the noise of seed ``i``."""
    noise = [torch.Generator().manual_seed(i) for i in range(len(texts))]
    run = pipe(texts, num_inference_steps=steps, guidance_scale=GUIDANCE, generator=noise, output_type="pt")
    return run.images


def write(name: str, result: dict[str, Any]) -> Path:
    """Write ``results/<name>.json`` with the machine beside the numbers."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n", encoding="utf-8")
    return path

"""What the benchmark scripts share: the subject, its prompts, and where results go."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from diffusers import DiffusionPipeline

import accel
from accel.measure.timing import machine
from accel.tiny.scenes import make_scene

RESULTS = Path(__file__).parent / "results"


def subject(model: str) -> DiffusionPipeline:
    """The pipeline to measure (a bundled name, a folder or a hub id), without a progress bar."""
    pipe = accel.load(model)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def prompts(count: int, first_seed: int = 1000) -> list[str]:
    """Captions of held-out compositions."""
    return [make_scene(seed, held_out=True).caption for seed in range(first_seed, first_seed + count)]


def write(name: str, result: dict[str, Any]) -> Path:
    """Write ``results/<name>.json`` with the machine beside the numbers."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=2) + "\n", encoding="utf-8")
    return path

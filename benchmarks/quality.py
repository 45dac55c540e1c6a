"""How good a bundled pipeline's pictures are after so many steps of so many solvers: what steps are worth on it.

    python benchmarks/quality.py --model tiny

Held-out prompts of every difficulty with fixed seeds, guidance 4. Two measures: the share of pictures in which the
reader finds every stated fact, and PSNR to the same solver's longest run. Results go to ``results/quality-MODEL.json``
after every arm; broken off, it goes on when it is repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from common import RESULTS, subject, write
from torchmetrics.functional.image import peak_signal_noise_ratio

from accel.measure.arms import Arm, draw
from accel.measure.solvers import solvers
from accel.tiny.prompts import DIFFICULTIES, prompts
from accel.tiny.reader import Reader
from accel.tiny.reader import load as load_reader
from accel.tiny.scenes import Scene
from accel.tiny.training.evaluate import summary

STEPS = (50, 35, 25, 18, 12, 8, 5, 3, 2, 1)
"""The longest first: the others are compared with it."""

_BATCH = 16


def main() -> None:
    """Measure what is missing of the table, print and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="bundled name (default: tiny)")
    parser.add_argument("--count", type=int, default=32, help="prompts of each difficulty")
    parser.add_argument("--guidance", type=float, default=4.0)
    options = parser.parse_args()
    pipe, judge = subject(options.model), load_reader()
    asked = {"model": options.model, "count": options.count, "guidance": options.guidance}
    sets = {name: prompts(name, options.count) for name in DIFFICULTIES}
    table = _kept(asked)
    for solver in solvers(pipe):
        missing = [arm for arm in (Arm(steps, solver) for steps in STEPS) if arm.name not in table]
        longest = _drawn(pipe, Arm(STEPS[0], solver), sets, options.guidance) if missing else {}
        for arm in missing:
            drawn = longest if arm.steps == STEPS[0] else _drawn(pipe, arm, sets, options.guidance)
            table[arm.name] = {name: _row(judge, drawn[name], longest[name], sets[name]) for name in sets}
            print(arm.name, {name: row["all_right"] for name, row in table[arm.name].items()}, flush=True)
            write(f"quality-{options.model}", {**asked, "arms": table})


def _kept(asked: dict[str, Any]) -> dict[str, Any]:
    """The rows of an earlier, broken off run of the same kind."""
    path = RESULTS / f"quality-{asked['model']}.json"
    kept = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return kept["arms"] if {name: kept.get(name) for name in asked} == asked else {}


def _drawn(pipe: Any, arm: Arm, sets: dict[str, list[Scene]], guidance: float) -> dict[str, torch.Tensor]:
    """Pictures ``(count, 3, 64, 64)`` of every set; picture ``i`` of a set starts from seed ``i``."""
    with arm.ready(pipe):
        return {name: _pictures(pipe, arm.steps, scenes, guidance) for name, scenes in sets.items()}


def _pictures(pipe: Any, steps: int, scenes: Sequence[Scene], guidance: float) -> torch.Tensor:
    chunks = [chunk.tolist() for chunk in torch.arange(len(scenes)).split(_BATCH)]
    call = {"guidance_scale": guidance}
    return torch.cat([draw(pipe, [scenes[i].caption for i in rows], rows, steps, call) for rows in chunks])


def _row(judge: Reader, pictures: torch.Tensor, longest: torch.Tensor, scenes: Sequence[Scene]) -> dict[str, Any]:
    """Shares of right pictures and facts, and mean PSNR to the longest run (none of itself)."""
    found = asdict(summary(judge.judge(pictures, scenes)))
    if torch.equal(pictures, longest):
        return found
    psnr = peak_signal_noise_ratio(pictures, longest, data_range=1.0, reduction="none", dim=(1, 2, 3))
    return {**found, "psnr": round(float(psnr.mean()), 2)}


if __name__ == "__main__":
    main()

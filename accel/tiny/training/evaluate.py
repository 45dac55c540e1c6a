"""Score a pipeline: draw the fixed prompts of every difficulty and let the reader judge the pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from accel.tiny import reader
from accel.tiny.prompts import DIFFICULTIES, prompts
from accel.tiny.scenes import Scene
from accel.tiny.verdict import Verdict


@dataclass(frozen=True)
class Score:
    """Shares of right pictures at one difficulty, 0 to 1.

    Attributes:
        count: Pictures judged.
        all_right: Share in which every stated fact holds.
        facts: Kind of fact to its share, over the pictures whose caption states one of the kind.
    """

    count: int
    all_right: float
    facts: dict[str, float]


@dataclass(frozen=True)
class Scores:
    """A `Score` per difficulty; ``str()`` is a table in percent."""

    by_difficulty: dict[str, Score]

    def __str__(self) -> str:
        kinds = sorted({kind for score in self.by_difficulty.values() for kind in score.facts})
        lines = ["  ".join([f"{'':6}", "pictures", "all right", *(f"{kind:>10}" for kind in kinds)])]
        for name, score in self.by_difficulty.items():
            shares = (f"{score.facts[kind]:10.0%}" if kind in score.facts else f"{'-':>10}" for kind in kinds)
            lines.append("  ".join([f"{name:6}", f"{score.count:8}", f"{score.all_right:9.0%}", *shares]))
        return "\n".join(lines)


def score(
    pipe: Any, *, count: int = 64, steps: int = 25, guidance: float = 4.0, seed: int = 0, batch: int = 16
) -> Scores:
    """Draw ``count`` prompts of each difficulty, one picture each, and judge them.

    Args:
        pipe: A text-to-image pipeline that draws 64 by 64 pixels.
        count: Prompts per difficulty.
        steps: Denoising steps.
        guidance: Guidance scale.
        seed: Seed of the first picture of each difficulty; the next pictures count up from it.
        batch: Prompts per call of the pipeline.
    """
    judge = reader.load()
    found = {}
    for difficulty in DIFFICULTIES:
        verdicts: list[Verdict] = []
        scenes = prompts(difficulty, count)
        for start in range(0, count, batch):
            asked = scenes[start : start + batch]
            verdicts += judge.judge(_draw(pipe, asked, steps, guidance, seed + start), asked)
        found[difficulty] = summary(verdicts)
    return Scores(found)


def _draw(pipe: Any, scenes: Sequence[Scene], steps: int, guidance: float, seed: int) -> torch.Tensor:
    generators = [torch.Generator().manual_seed(seed + i) for i in range(len(scenes))]
    pictures = pipe(
        [scene.caption for scene in scenes],
        num_inference_steps=steps,
        guidance_scale=guidance,
        generator=generators,
        output_type="pt",
    ).images
    return pictures.float().cpu()


def summary(verdicts: Sequence[Verdict]) -> Score:
    """Shares over at least one verdict."""
    facts: dict[str, list[bool]] = {}
    for verdict in verdicts:
        for kind, holds in verdict.facts.items():
            facts.setdefault(kind, []).append(holds)
    right = sum(verdict.all_right for verdict in verdicts)
    return Score(len(verdicts), right / len(verdicts), {kind: sum(held) / len(held) for kind, held in facts.items()})

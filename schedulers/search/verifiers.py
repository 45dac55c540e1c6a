"""Who says which picture is better."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from accel.errors import AccelError

if TYPE_CHECKING:
    from accel.tiny.scenes import Scene

Verifier = Callable[[Tensor, str], Tensor]
"""``verifier(pictures, prompt)``: scores ``(batch,)``, the higher the better, of pictures ``(batch, 3, height, width)``
in 0 … 1 on the CPU. Each score must be a picture's own, whatever stands beside it."""


class Facts:
    """Share of a scene's stated facts that the bundled reader finds in a picture.

    For prompts of the bundled grammar only: give it the scene whose caption the prompt is.
    """

    def __init__(self, scene: Scene) -> None:
        from accel.tiny import reader

        self.scene, self._reader = scene, reader.load()

    def __call__(self, pictures: Tensor, prompt: str) -> Tensor:
        """Scores ``(batch,)`` in 0 … 1."""
        if prompt != self.scene.caption:
            raise AccelError(
                f"this verifier is for {self.scene.caption!r}, which is not the prompt: give its own scene"
            )
        verdicts = self._reader.judge(pictures.clamp(0, 1), [self.scene] * len(pictures))
        return torch.tensor([sum(each.facts.values()) / len(each.facts) for each in verdicts])


class Clip:
    """CLIPScore by a CLIP model that you have, see `accel.measure.clip.ClipScore` for ``source``."""

    def __init__(self, source: str | Path, device: str | torch.device = "cpu") -> None:
        from accel.measure.clip import ClipScore

        self._score = ClipScore(source, device)

    def __call__(self, pictures: Tensor, prompt: str) -> Tensor:
        """Scores ``(batch,)``, about 20 to 40 for pictures that fit their prompt."""
        return self._score(pictures, pictures, [prompt] * len(pictures))


def scored(verifier: Verifier, pictures: Tensor, prompt: str) -> list[float]:
    """The verifier's scores, checked."""
    scores = torch.as_tensor(verifier(pictures, prompt)).detach().float().cpu()
    if scores.shape != (len(pictures),):
        raise AccelError(f"the verifier gave {tuple(scores.shape)} for {len(pictures)} pictures: it must score each")
    if not scores.isfinite().all():
        raise AccelError("the verifier gave a score that is not finite: nothing can be chosen by it")
    found: list[float] = scores.tolist()
    return found

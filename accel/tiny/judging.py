"""The bundled pipelines' prompts and their judge, in the form that `accel.measure.bench` asks for."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from accel.tiny import reader
from accel.tiny.prompts import DIFFICULTIES, prompts
from accel.tiny.render import render
from accel.tiny.scenes import Scene, make_scene

_REAL = 512
_REAL_SEED = 3_000_000_000


def mixed(count: int) -> list[Scene]:
    """``count`` scenes, the difficulties in turn; a shorter list is the beginning of a longer one."""
    each = -(-count // len(DIFFICULTIES))
    by_difficulty = [prompts(name, each) for name in DIFFICULTIES]
    return [scene for together in zip(*by_difficulty, strict=True) for scene in together][:count]


class SceneJudge:
    """Judges pictures of scenes by the trained reader.

    Args:
        scenes: What is asked for, in the order of the prompts.
    """

    def __init__(self, scenes: Sequence[Scene]) -> None:
        self.scenes, self._reader = scenes, reader.load()

    def facts(self, pictures: torch.Tensor, rows: Sequence[int]) -> list[dict[str, bool]]:
        """Which stated facts hold, by kind, in pictures ``(batch, 3, 64, 64)`` of the scenes in ``rows``."""
        verdicts = self._reader.judge(pictures.clamp(0, 1), [self.scenes[row] for row in rows])
        return [verdict.facts for verdict in verdicts]

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """The reader's features ``(batch, 128)``."""
        return self._reader.features(pictures.clamp(0, 1))

    def real(self) -> torch.Tensor:
        """Features of `_REAL` rendered scenes of the same mixture of difficulties."""
        share = {name: sum(name == _difficulty(scene) for scene in self.scenes) for name in DIFFICULTIES}
        wanted = {name: round(_REAL * n / len(self.scenes)) for name, n in share.items()}
        return self.features(_pictures(wanted))


def _difficulty(scene: Scene) -> str:
    count = sum(item.count for item in scene.objects)
    return next(name for name, counts in DIFFICULTIES.items() if count in counts)


def _pictures(wanted: dict[str, int]) -> torch.Tensor:
    """Renders of held-out scenes, so many of each difficulty."""
    left, pictures, seed = dict(wanted), [], _REAL_SEED
    while any(left.values()):
        scene = make_scene(seed, held_out=True)
        seed += 1
        if left[_difficulty(scene)]:
            left[_difficulty(scene)] -= 1
            pictures.append(render(scene))
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 255

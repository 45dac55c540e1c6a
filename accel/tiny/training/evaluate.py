"""Score a pipeline on single objects by matching what it draws against the known sprites.

No learnt judge is involved: the renderer knows every object exactly, so the object that explains
most of a picture's difference from its background is what was drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from accel.tiny.render import sprite
from accel.tiny.world import BACKGROUNDS, NAMES, split_name, visible

SIZES = tuple(range(28, 43, 2))


@dataclass(frozen=True)
class Score:
    """Shares of right answers over all single-object pictures, 0 to 1.

    Attributes:
        name: Object right (shape and colour, or emoji).
        noun: Shape or emoji right.
        colour: Colour right, over coloured shapes only.
        background: Background right.
        explained: Mean share of the picture's squared difference from its background that the
            best sprite explains; 1 is a flawless sprite.
        misses: ``(asked, seen)`` of every wrong object.
    """

    name: float
    noun: float
    colour: float
    background: float
    explained: float
    misses: tuple[tuple[str, str], ...]


def single_prompts() -> list[tuple[str, str, str]]:
    """``(prompt, object, background)`` for every object of the world, backgrounds in turn."""
    found = []
    for index, name in enumerate(NAMES):
        fitting = [background for background in BACKGROUNDS if visible(name, background)]
        background = fitting[index % len(fitting)]
        article = "an" if name.startswith("o") else "a"
        found.append((f"{article} {name} on a {background} background", name, background))
    return found


def recognise(image: NDArray[np.float32]) -> tuple[str, str, float]:
    """Name the object and the background of one picture.

    Args:
        image: ``(64, 64, 3)`` in [0, 1].

    Returns:
        Object, background and the share of the picture that the object explains.
    """
    border = np.concatenate([image[:2].reshape(-1, 3), image[-2:].reshape(-1, 3)])
    ground = np.median(border, axis=0)
    names = list(BACKGROUNDS)
    distances = [np.linalg.norm(ground - np.asarray(BACKGROUNDS[name]) / 255) for name in names]
    difference = torch.from_numpy(image - ground).float().permute(2, 0, 1)[None]
    gains = torch.stack([_gain(difference, ground, size) for size in SIZES]).amax(0)
    best = int(gains.argmax())
    share = float(gains[best] / difference.square().sum().clamp(min=1e-6))
    return NAMES[best], names[int(np.argmin(distances))], share


def _gain(difference: Tensor, ground: NDArray[np.float64], size: int) -> Tensor:
    """Squared error that each object at its best place would remove, ``(objects,)``."""
    sprites = torch.from_numpy(np.stack([sprite(name, size) for name in NAMES])) / 255
    alpha = sprites[..., 3:]
    delta = (sprites[..., :3] - alpha * torch.from_numpy(ground).float()).permute(0, 3, 1, 2)
    overlap = F.conv2d(difference, delta).flatten(2).amax(2)[0]
    return 2 * overlap - delta.square().sum((1, 2, 3))


def score(pipe: Any, *, steps: int = 20, guidance: float = 4.0, seed: int = 0, batch: int = 19) -> Score:
    """Draw every object once and compare."""
    asked = single_prompts()
    seen = []
    for start in range(0, len(asked), batch):
        chunk = asked[start : start + batch]
        generators = [torch.Generator().manual_seed(seed + start + i) for i in range(len(chunk))]
        images = pipe(
            [prompt for prompt, _, _ in chunk],
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=generators,
            output_type="np",
        ).images
        seen += [recognise(image) for image in images]
    return _summary([(name, background) for _, name, background in asked], seen)


def _summary(asked: Sequence[tuple[str, str]], seen: Sequence[tuple[str, str, float]]) -> Score:
    pairs = list(zip(asked, seen, strict=True))
    parts = [(split_name(a[0]), split_name(s[0])) for a, s in pairs]
    coloured = [(a[0], s[0]) for a, s in parts if a[0]]
    return Score(
        name=float(np.mean([a[0] == s[0] for a, s in pairs])),
        noun=float(np.mean([a[1] == s[1] for a, s in parts])),
        colour=float(np.mean([a == s for a, s in coloured])),
        background=float(np.mean([a[1] == s[1] for a, s in pairs])),
        explained=float(np.mean([s[2] for s in seen])),
        misses=tuple((a[0], s[0]) for a, s in pairs if a[0] != s[0]),
    )

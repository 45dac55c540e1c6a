"""The judge of the bundled pipelines: a small network that reads pictures back into objects.

``load()`` gives the trained `Reader`; `Reader.judge` says which stated facts of scenes hold in
pictures, `Reader.read` what is seen in them, and the reader itself is a feature extractor for KID.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from accel.tiny.scenes import Scene
from accel.tiny.verdict import Found, Reading, Verdict, judge
from accel.tiny.world import BACKGROUNDS, COLOURS, LANDSCAPES, SHAPES, SIZE, SPRITES

GRID = 16
"""Edge of the grid on which objects are read; a cell is 4 by 4 pixels."""

CELL = SIZE // GRID
NOUNS: tuple[str | None, ...] = (*SHAPES, *SPRITES, None)
"""What a cell can hold; ``None`` is an object that is none of the world's."""

OBJECT_COLOURS: tuple[str | None, ...] = (*COLOURS, None)
GROUNDS = (*BACKGROUNDS, *LANDSCAPES)

_CENTRE, _BOX = 1, 3
_PARTS = (_CENTRE, len(NOUNS), len(OBJECT_COLOURS), _BOX)
TYPICAL_SIZE = 28.0
"""Edges are read relative to this many pixels."""

_SEEN = 0.4
_CHUNK = 64
_FOLDER = Path(__file__).with_name("weights") / "reader"


class _Block(nn.Module):
    """Residual block of two convolutions, ``(B, C, H, W)`` to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.GroupNorm(8, width) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = conv(F.silu(norm(y)))
        return x + y


class Reader(nn.Module):
    """Reads pictures of the bundled world.

    As a module it maps pictures to features: ``KernelInceptionDistance(feature=load())`` of
    torchmetrics takes pictures in [0, 1] then.

    Args:
        width: Channels at 16 by 16; twice as many at 8 by 8 and in the features.

    Attributes:
        num_features: Width of the features, 128 for the trained reader.
    """

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.width, self.num_features = width, 2 * width
        half = width // 2
        self.stem = nn.Sequential(
            nn.PixelUnshuffle(2),
            nn.Conv2d(12, half, 3, padding=1),
            nn.GroupNorm(8, half),
            nn.SiLU(),
            nn.Conv2d(half, width, 3, stride=2, padding=1),
        )
        self.fine = nn.Sequential(_Block(width), _Block(width))
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.coarse = nn.Sequential(_Block(2 * width), _Block(2 * width), nn.Conv2d(2 * width, width, 1))
        self.join = nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 2 * width, 3, padding=1))
        self.last = nn.Sequential(nn.GroupNorm(8, 2 * width), nn.SiLU())
        self.cells = nn.Conv2d(2 * width, sum(_PARTS), 1)
        self.ground = nn.Linear(2 * width, len(GROUNDS))

    def _map(self, pictures: Tensor) -> Tensor:
        """The last feature map, ``(B, 128, 16, 16)``."""
        fine = self.fine(self.stem(2 * pictures - 1))
        coarse = self.coarse(self.down(fine))
        return self.last(self.join(fine + F.interpolate(coarse, scale_factor=2.0, mode="nearest")))

    def dense(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Raw outputs, for training.

        Args:
            pictures: ``(B, 3, 64, 64)`` in [0, 1], not checked.

        Returns:
            Scores of centre ``(B, 1, 16, 16)``, noun ``(B, 21, 16, 16)`` and colour
            ``(B, 9, 16, 16)``; box ``(B, 3, 16, 16)``: offset of the centre from the cell's in
            cells, logarithm of the edge over 28 pixels; scores of the background ``(B, 9)``.
        """
        features = self._map(pictures)
        centre, noun, colour, box = self.cells(features).split(_PARTS, dim=1)
        return centre, noun, colour, box, self.ground(features.mean((2, 3)))

    @torch.no_grad()
    def features(self, pictures: Tensor) -> Tensor:
        """Pooled last layer, ``(B, 3, 64, 64)`` in [0, 1] to ``(B, 128)`` float32 on the reader's device.

        Raises:
            ValueError: as `read`.
        """
        chunks = [self._map(chunk).mean((2, 3)).float() for chunk in self._chunks(pictures)]
        return torch.cat(chunks)

    def forward(self, pictures: Tensor) -> Tensor:
        """The same as `features`."""
        return self.features(pictures)

    @torch.no_grad()
    def read(self, pictures: Tensor) -> list[Reading]:
        """Say what is in pictures.

        Args:
            pictures: ``(B, 3, 64, 64)`` in [0, 1], B at least 1, any floating type and device.

        Returns:
            One `Reading` per picture: the background and the objects, best seen first.

        Raises:
            ValueError: if the pictures have another shape or type, NaN, or values outside [0, 1].
        """
        found: list[Reading] = []
        for chunk in self._chunks(pictures):
            outputs = [part.float().cpu() for part in self.dense(chunk)]
            found += [_decode(*rows) for rows in zip(*outputs, strict=True)]
        return found

    def judge(self, pictures: Tensor, scenes: Sequence[Scene]) -> list[Verdict]:
        """Say which stated facts of each scene hold in its picture.

        Args:
            pictures: As for `read`.
            scenes: What was asked for, one scene per picture.

        Raises:
            ValueError: as `read`, or if there is not one scene per picture.
        """
        if len(scenes) != len(pictures):
            raise ValueError(f"{len(pictures)} pictures but {len(scenes)} scenes: give one scene per picture")
        return [judge(reading, scene) for reading, scene in zip(self.read(pictures), scenes, strict=True)]

    def _chunks(self, pictures: Tensor) -> tuple[Tensor, ...]:
        _check(pictures)
        weight = self.ground.weight
        return pictures.to(weight.device, weight.dtype).split(_CHUNK)


def _check(pictures: Tensor) -> None:
    shape = tuple(pictures.shape)
    if len(shape) != 4 or shape[1:] != (3, SIZE, SIZE) or not shape[0]:
        raise ValueError(
            f"pictures have shape {shape}: the reader knows (B, 3, {SIZE}, {SIZE}) only, "
            "so give a batch, channels first, and resize other sizes yourself"
        )
    if not pictures.is_floating_point():
        raise ValueError(f"pictures are {pictures.dtype}: give floating point in [0, 1], for bytes pictures / 255")
    if not bool(torch.isfinite(pictures).all()):
        raise ValueError("pictures hold NaN or infinity: look for the step of the pipeline that produced it")
    low, high = float(pictures.min()), float(pictures.max())
    if low < 0 or high > 1:
        raise ValueError(f"pictures lie in [{low:.3g}, {high:.3g}]: bring them to [0, 1] and clamp them")


def _decode(centre: Tensor, noun: Tensor, colour: Tensor, box: Tensor, ground: Tensor) -> Reading:
    """Peaks of one picture's grid as objects; a peak inside a clearer object is part of that object."""
    heat = centre[0].sigmoid()
    peaks = (heat == F.max_pool2d(heat[None], 3, stride=1, padding=1)[0]) & (heat > _SEEN)
    cells = peaks.nonzero().tolist()
    objects: list[Found] = []
    for row, column in sorted(cells, key=lambda cell: -float(heat[cell[0], cell[1]])):
        across, down, edge = box[:, row, column].tolist()
        candidate = Found(
            noun=NOUNS[int(noun[:, row, column].argmax())],
            colour=OBJECT_COLOURS[int(colour[:, row, column].argmax())],
            x=CELL * (column + 0.5 + across),
            y=CELL * (row + 0.5 + down),
            size=TYPICAL_SIZE * 2.0**edge,
            confidence=float(heat[row, column]),
        )
        if not any(candidate.overlaps(other) for other in objects):
            objects.append(candidate)
    return Reading(tuple(objects), GROUNDS[int(ground.argmax())])


def load(folder: Path | None = None) -> Reader:
    """The trained reader, in float32 on the CPU, ready to read.

    Args:
        folder: Where ``config.json`` and ``model.safetensors`` are; the shipped reader by default.

    Raises:
        FileNotFoundError: if the files are not there.
        ValueError: if the reader was trained for other words than the world has now.
    """
    folder = folder or _FOLDER
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"no reader in {folder}: reinstall the package with its data, or train one with "
            "'python -m accel.tiny.train reader'"
        )
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if config != describe(config["width"]):
        raise ValueError(f"the reader in {folder} knows other words than accel.tiny.world: train it again")
    reader = Reader(config["width"])
    reader.load_state_dict({name: value.float() for name, value in load_file(folder / "model.safetensors").items()})
    return reader.eval().requires_grad_(False)


def describe(width: int) -> dict[str, object]:
    """What ``config.json`` holds: the size of a reader and the order of the words it knows."""
    return {"width": width, "nouns": [*NOUNS], "colours": [*OBJECT_COLOURS], "backgrounds": [*GROUNDS]}

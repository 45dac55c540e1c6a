"""The reader, trained on scenes that are damaged the way a pipeline damages them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor, nn

from accel.tiny.reader import CELL, GRID, GROUNDS, NOUNS, OBJECT_COLOURS, TYPICAL_SIZE, Reader, describe
from accel.tiny.render import render
from accel.tiny.scenes import Scene, make_scene
from accel.tiny.training.augment import weather
from accel.tiny.training.loop import load_average
from accel.tiny.world import COLOURS, NAMES, SIZE, split_name, visible

_UNCLEAR = 0.12
"""Share of the scenes with a half-and-half object, and with a blob: objects that are none of the world's."""


@dataclass(frozen=True)
class Truth:
    """One object of a training picture; ``noun`` and ``colour`` as in `accel.tiny.verdict.Found`."""

    noun: str | None
    colour: str | None
    x: float
    y: float
    size: float


def sample(seed: int) -> tuple[NDArray[np.uint8], list[Truth], str]:
    """A training picture ``(64, 64, 3)``, its objects and its background."""
    rng = random.Random(seed)
    scene = make_scene(seed)
    if _is_plain(scene) and rng.random() < 0.7:
        scene = make_scene(seed + 1)
    picture = render(scene)
    truths = [Truth(item.noun, item.colour, *_centre(box), box[2]) for item in scene.objects for box in item.boxes]
    if rng.random() < _UNCLEAR:
        picture, truths = _blend(scene, picture, truths, rng)
    if rng.random() < _UNCLEAR:
        picture, truths = _blob(scene, picture, truths, rng)
    return picture, truths, scene.background


def _is_plain(scene: Scene) -> bool:
    """Whether it is one object of the usual size: the commonest scenes, and they teach least."""
    first = scene.objects[0]
    return len(scene.objects) == first.count == 1 and first.scale is None


def _centre(box: tuple[int, int, int]) -> tuple[float, float]:
    """Middle of the pixels that `render` covers."""
    x, y, size = box
    return x - size // 2 + size / 2, y - size // 2 + size / 2


def _blend(
    scene: Scene, picture: NDArray[np.uint8], truths: list[Truth], rng: random.Random
) -> tuple[NDArray[np.uint8], list[Truth]]:
    """The first mention's objects halfway to another noun of the same colour: neither may be read."""
    item, *rest = scene.objects
    others = [
        name
        for name in NAMES
        if split_name(name)[0] == item.colour and name != item.name and visible(name, scene.background)
    ]
    other = render(replace(scene, objects=(replace(item, name=rng.choice(others)), *rest)))
    share = rng.uniform(0.4, 0.6)
    mixed = picture + share * (other.astype(np.float32) - picture)
    unclear = [replace(truth, noun=None) for truth in truths[: item.count]]
    return (mixed + 0.5).astype(np.uint8), unclear + truths[item.count :]


def _blob(
    scene: Scene, picture: NDArray[np.uint8], truths: list[Truth], rng: random.Random
) -> tuple[NDArray[np.uint8], list[Truth]]:
    """An irregular patch in one of the colours at a free spot, if there is one."""
    colours = [colour for colour in COLOURS if visible(f"{colour} circle", scene.background)]
    for _ in range(10):
        radius = rng.uniform(7, 12)
        x, y = (rng.uniform(radius, SIZE - radius) for _ in range(2))
        if all(max(abs(x - t.x), abs(y - t.y)) > radius + 0.5 * t.size for t in truths):
            colour = rng.choice(colours)
            cover = _patch(x, y, radius, rng)[..., None]
            mixed = picture * (1 - cover) + np.asarray(COLOURS[colour], np.float32) * cover
            return (mixed + 0.5).astype(np.uint8), [*truths, Truth(None, colour, x, y, 2 * radius)]
    return picture, truths


def _patch(x: float, y: float, radius: float, rng: random.Random) -> NDArray[np.float32]:
    """Coverage ``(64, 64)`` of a bumpy disc."""
    rows, columns = np.mgrid[:SIZE, :SIZE] + 0.5
    angle = np.arctan2(rows - y, columns - x)
    edge = np.ones_like(angle)
    for waves in (1, 2, 3, 4, 5):
        edge += rng.uniform(0.08, 0.22) * np.cos(waves * angle + rng.uniform(0, 2 * math.pi))
    distance = np.hypot(rows - y, columns - x)
    return np.clip(radius * 0.85 * edge - distance + 0.5, 0, 1).astype(np.float32)


class ReaderTask:
    """Trains a reader on fresh pictures."""

    def __init__(self, reader: Reader) -> None:
        self.reader = reader

    def modules(self) -> Iterable[nn.Module]:
        """The reader."""
        return (self.reader,)

    def loss(self, batch: int, seed: int) -> Tensor:
        """Sum of the losses of centres, nouns, colours, boxes and backgrounds of ``batch`` pictures."""
        samples = [sample(seed * 4096 + 2 * i) for i in range(batch)]
        clean = torch.from_numpy(np.stack([picture for picture, _, _ in samples]))
        pictures = clean.permute(0, 3, 1, 2).float() / 255
        pictures = weather(pictures, torch.Generator().manual_seed(seed))
        weight = self.reader.ground.weight
        outputs = self.reader.dense(pictures.to(weight.device, weight.dtype))
        centre, noun, colour, box, ground = (part.float() for part in outputs)
        grounds = torch.tensor([GROUNDS.index(name) for _, _, name in samples])
        losses = object_losses(centre, noun, colour, box, [truths for _, truths, _ in samples])
        return losses + F.cross_entropy(ground, grounds.to(ground.device))


def object_losses(centre: Tensor, noun: Tensor, colour: Tensor, box: Tensor, truths: list[list[Truth]]) -> Tensor:
    """Loss of the grid's outputs (see `Reader.dense`) given the objects of each picture."""
    flat = [(row, truth) for row, objects in enumerate(truths) for truth in objects]
    near = _nearness([truth for _, truth in flat])
    heat = torch.zeros(len(truths), GRID, GRID)
    for (row, _), each in zip(flat, near, strict=True):
        heat[row] = torch.maximum(heat[row], each)
    at, ys, xs = (near > 0.5).nonzero().unbind(1)
    rows = torch.tensor([row for row, _ in flat])[at]
    nouns = torch.tensor([NOUNS.index(truth.noun) for _, truth in flat])[at]
    colours = torch.tensor([OBJECT_COLOURS.index(truth.colour) for _, truth in flat])[at]
    spots = torch.tensor([(t.x / CELL - 0.5, t.y / CELL - 0.5, math.log2(t.size / TYPICAL_SIZE)) for _, t in flat])[at]
    boxes = spots - torch.stack([xs, ys, torch.zeros_like(xs)], dim=1)
    device = centre.device
    rows, ys, xs = rows.to(device), ys.to(device), xs.to(device)
    return (
        _centre_loss(centre[:, 0], heat.to(device)) / len(flat)
        + F.cross_entropy(noun[rows, :, ys, xs], nouns.to(device))
        + F.cross_entropy(colour[rows, :, ys, xs], colours.to(device))
        + F.l1_loss(box[rows, :, ys, xs], boxes.to(device))
    )


def _nearness(truths: list[Truth]) -> Tensor:
    """How near each cell is to each object's centre, ``(N, 16, 16)``, exactly 1 in the nearest cell."""
    cells = (torch.arange(GRID) + 0.5) * CELL
    x, y = (torch.tensor([[value] for value in values]) for values in zip(*[(t.x, t.y) for t in truths], strict=True))
    distance = (cells - x).square()[:, None, :] + (cells - y).square()[:, :, None]
    near = torch.exp(-distance / (2 * CELL**2))
    return near / near.amax((1, 2), keepdim=True)


def _centre_loss(scores: Tensor, heat: Tensor) -> Tensor:
    """CenterNet's focal loss, summed: cells near a centre are forgiven for being taken for it."""
    seen = scores.sigmoid()
    hit = (heat == 1) * (1 - seen).square() * F.logsigmoid(scores)
    miss = (heat < 1) * (1 - heat) ** 4 * seen.square() * F.logsigmoid(-scores)
    return -(hit + miss).sum()


def make_task() -> ReaderTask:
    """The task of a run, with fresh weights."""
    return ReaderTask(Reader())


def save(task: ReaderTask, checkpoint: Path, folder: Path) -> Path:
    """Write the moving average of a checkpoint to ``folder``, in float16, for `accel.tiny.reader.load`."""
    load_average(task.modules(), checkpoint)
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: value.detach().half().contiguous() for name, value in task.reader.state_dict().items()}
    save_file(tensors, folder / "model.safetensors")
    config = json.dumps(describe(task.reader.width), indent=2)
    (folder / "config.json").write_text(config + "\n", encoding="utf-8")
    return folder


def accuracy(reader: Reader, count: int = 1000) -> float:
    """Share of held-out scenes, as drawn, in which the reader finds every stated fact."""
    scenes = [make_scene(i, held_out=True) for i in range(count)]
    drawn = torch.from_numpy(np.stack([render(scene) for scene in scenes])).permute(0, 3, 1, 2).float() / 255
    return sum(verdict.all_right for verdict in reader.judge(drawn, scenes)) / count

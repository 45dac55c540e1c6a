"""Paint scenes: emoji from the atlas, shapes drawn from formulas, plain or landscape backgrounds.

Everything is composited with premultiplied alpha; resizing straight alpha would leave a white
halo round every object.
"""

from __future__ import annotations

import math
import random
from functools import cache, lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from accel.tiny.scenes import Scene
from accel.tiny.world import BACKGROUNDS, COLOURS, SIZE, SPRITES, split_name

Pixels = NDArray[np.uint8]

ATLAS = Path(__file__).with_name("atlas.png")
"""Emoji side by side in the order of `accel.tiny.world.SPRITES`, RGBA."""

_MASTER = 256


def render(scene: Scene) -> Pixels:
    """Paint a scene.

    Returns:
        ``(64, 64, 3)`` uint8, RGB.
    """
    canvas = _backdrop(scene.background, scene.seed).astype(np.float32)
    for item in scene.objects:
        for x, y, size in item.boxes:
            _paste(canvas, sprite(item.name, size), x - size // 2, y - size // 2)
    return np.clip(canvas + 0.5, 0, 255).astype(np.uint8)


def _paste(canvas: NDArray[np.float32], sprite: NDArray[np.float32], left: int, top: int) -> None:
    size = sprite.shape[0]
    window = canvas[top : top + size, left : left + size]
    window *= 1 - sprite[..., 3:] / 255
    window += sprite[..., :3]


@lru_cache(maxsize=8192)
def sprite(name: str, size: int) -> NDArray[np.float32]:
    """Object ``name`` at ``size`` pixels: ``(size, size, 4)``, premultiplied RGBA, 0 to 255."""
    colour, noun = split_name(name)
    if colour is None:
        image = _emoji(noun)
    else:
        image = Image.new("RGB", (_MASTER, _MASTER), COLOURS[colour])
        image.putalpha(_mask(noun))
        image = image.convert("RGBa")
    small = image.resize((size, size), Image.Resampling.BOX, reducing_gap=None)
    return np.asarray(small, dtype=np.uint8).astype(np.float32)


@cache
def _emoji(noun: str) -> Image.Image:
    with Image.open(ATLAS) as atlas:
        edge = atlas.height
        left = list(SPRITES).index(noun) * edge
        sprite = atlas.convert("RGBA").crop((left, 0, left + edge, edge)).convert("RGBa")
    return sprite.resize((_MASTER, _MASTER), Image.Resampling.BICUBIC)


def _polar(steps: int, radius: float, inner: float | None = None, cy: float = 0.5) -> list[tuple[float, float]]:
    """Corners of a regular polygon, or of a star when ``inner`` is given, first corner on top."""
    radii = [radius] if inner is None else [radius, inner]
    count = steps * len(radii)
    corners = []
    for i in range(count):
        angle, r = 2 * math.pi * i / count, radii[i % len(radii)]
        corners.append((_MASTER * (0.5 + r * math.sin(angle)), _MASTER * (cy - r * math.cos(angle))))
    return corners


def _heart() -> list[tuple[float, float]]:
    corners = []
    for i in range(90):
        t = 2 * math.pi * i / 90
        x = 16 * math.sin(t) ** 3
        y = 13 * math.cos(t) - 5 * math.cos(2 * t) - 2 * math.cos(3 * t) - math.cos(4 * t)
        corners.append((_MASTER * (0.5 + x / 34), _MASTER * (0.46 - y / 32)))
    return corners


@cache
def _mask(shape: str) -> Image.Image:
    """Coverage of a shape, ``(256, 256)``, 0 or 255; smoothed when it is made smaller."""
    mask = Image.new("L", (_MASTER, _MASTER), 0)
    draw = ImageDraw.Draw(mask)
    edge = _MASTER - 1
    if shape in ("circle", "ring", "moon"):
        draw.ellipse((4, 4, edge - 4, edge - 4), fill=255)
        if shape == "ring":
            draw.ellipse((76, 76, edge - 76, edge - 76), fill=0)
        elif shape == "moon":
            draw.ellipse((84, -20, edge + 44, edge - 68), fill=0)
    elif shape == "square":
        draw.rectangle((18, 18, edge - 18, edge - 18), fill=255)
    elif shape == "cross":
        draw.rectangle((88, 6, edge - 88, edge - 6), fill=255)
        draw.rectangle((6, 88, edge - 6, edge - 88), fill=255)
    elif shape == "triangle":
        draw.polygon([(edge / 2, 8), (edge - 2, edge - 20), (2, edge - 20)], fill=255)
    elif shape == "star":
        draw.polygon(_polar(5, 0.54, 0.23, cy=0.54), fill=255)
    elif shape == "heart":
        draw.polygon(_heart(), fill=255)
    else:
        raise ValueError(f"unknown shape {shape!r}: use one of accel.tiny.world.SHAPES")
    return mask


def _backdrop(background: str, seed: int) -> Pixels:
    if background in BACKGROUNDS:
        return np.broadcast_to(np.asarray(BACKGROUNDS[background], np.uint8), (SIZE, SIZE, 3))
    rng = random.Random(seed)
    bands: tuple[tuple[int, tuple[int, int, int]], ...]  # first row and colour of each, from the top
    if background == "meadow":
        bands = ((0, (150, 208, 252)), (rng.randint(34, 42), (112, 196, 84)))
    elif background == "night":
        bands = ((0, (24, 28, 78)), (rng.randint(44, 52), (38, 56, 60)))
    else:
        bands = ((0, (176, 222, 250)), (rng.randint(24, 28), (40, 150, 208)), (rng.randint(38, 44), (240, 216, 154)))
    canvas = np.empty((SIZE, SIZE, 3), np.uint8)
    for top, colour in bands:
        canvas[top:] = colour
    if background == "meadow":
        _hill(canvas, rng, bands[1])
    if background == "night":
        for _ in range(6):
            x, y = rng.randint(1, SIZE - 3), rng.randint(1, 40)
            canvas[y : y + 2, x : x + 2] = (236, 236, 200)
    return canvas


def _hill(canvas: Pixels, rng: random.Random, ground: tuple[int, tuple[int, int, int]]) -> None:
    """One soft hill on the horizon."""
    horizon, colour = ground
    middle, height = rng.randint(8, SIZE - 8), rng.randint(4, 9)
    for x in range(SIZE):
        rise = height * math.exp(-(((x - middle) / 18) ** 2))
        canvas[horizon - round(rise) : horizon, x] = colour

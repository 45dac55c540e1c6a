"""Pictures as tensors ``(batch, 3, height, width)`` in 0..1: to PNG, and side by side with captions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

_COLUMN = 384
"""Smallest width of a column of a side-by-side sheet: a caption must be readable under a 64-pixel picture."""

_MARGIN = 12
_FONT_SIZE = 15


def decibels(value: float) -> str:
    """``43.94`` → ``"43.9 dB"``, ``inf`` → ``"identical"``."""
    return "identical" if math.isinf(value) else f"{value:.1f} dB"


def to_image(picture: Tensor) -> Image.Image:
    """One picture ``(3, height, width)`` as an 8-bit image."""
    from PIL import Image

    return Image.fromarray((picture.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().numpy())


def save(pictures: Tensor, folder: Path, stem: str) -> list[str]:
    """Write ``stem.png``, or ``stem-1.png``, ``stem-2.png`` … for several; returns the names of the files."""
    many = len(pictures) > 1
    names = [f"{stem}-{index + 1}.png" if many else f"{stem}.png" for index in range(len(pictures))]
    for name, picture in zip(names, pictures, strict=True):
        to_image(picture).save(folder / name)
    return names


def side_by_side(columns: Sequence[tuple[str, Tensor]]) -> Image.Image:
    """One column per ``(caption, pictures)``, one row per picture of the batch, the captions below."""
    from PIL import Image, ImageDraw, ImageFont

    height, width = columns[0][1].shape[-2:]
    scale = max(1, math.ceil(_COLUMN / width))  # whole: pixels stay pixels
    width, height, rows = width * scale, height * scale, len(columns[0][1])
    font = ImageFont.load_default(_FONT_SIZE)
    captions = [wrap(text, width, font.getlength) for text, _ in columns]
    line = int(_FONT_SIZE * 1.4)
    foot = max(len(lines) for lines in captions) * line
    sheet = Image.new(
        "RGB",
        (_MARGIN + len(columns) * (width + _MARGIN), _MARGIN + rows * (height + _MARGIN) + foot + _MARGIN),
        "#e6e6e6",
    )
    pen = ImageDraw.Draw(sheet)
    for column, (_, pictures) in enumerate(columns):
        left = _MARGIN + column * (width + _MARGIN)
        for row, picture in enumerate(pictures):
            image = to_image(picture).resize((width, height), Image.Resampling.NEAREST)
            sheet.paste(image, (left, _MARGIN + row * (height + _MARGIN)))
        for index, text in enumerate(captions[column]):
            pen.text((left, _MARGIN + rows * (height + _MARGIN) + index * line), text, fill="black", font=font)
    return sheet


def wrap(text: str, width: float, length: Callable[[str], float]) -> list[str]:
    """Break ``text`` at spaces into lines of at most ``width``, as measured by ``length(line)``."""
    lines = [""]
    for word in text.split():
        longer = f"{lines[-1]} {word}".strip()
        if lines[-1] and length(longer) > width:
            lines.append(word)
        else:
            lines[-1] = longer
    return lines

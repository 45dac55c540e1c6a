"""Contact sheets of the bundled pipelines in ``docs/images``: nothing chosen, the reader's verdict under each picture.

    python docs/contact_sheet.py

The first held-out prompts of every difficulty, 25 steps, guidance 4; picture ``i`` of a row starts from seed ``i``.
"""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont

import accel
import accel.tiny
from accel.measure.arms import draw
from accel.tiny import reader
from accel.tiny.prompts import DIFFICULTIES, prompts
from accel.tiny.verdict import Verdict

IMAGES = Path(__file__).with_name("images")
ROWS_EACH, COLUMNS = 2, 8
EDGE, CAPTION, GAP = 128, 62, 10
INK, GOOD, BAD = "#222222", "#1a7f37", "#b3261e"


def main() -> None:
    """Draw one sheet per pipeline."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(accel.tiny.names()), help="bundled names (default: all)")
    for name in parser.parse_args().model:
        pipe = accel.load(name)
        pipe.set_progress_bar_config(disable=True)
        path = IMAGES / f"contact-{name}.png"
        sheet(pipe).save(path, optimize=True)
        print(path)


def sheet(pipe: Any) -> Image.Image:
    """The sheet of a pipeline."""
    judge = reader.load()
    rows = ROWS_EACH * len(DIFFICULTIES)
    size = (COLUMNS * (EDGE + GAP) + GAP, rows * (EDGE + CAPTION) + GAP)
    canvas = Image.new("RGB", size, "white")
    for number, difficulty in enumerate(DIFFICULTIES):
        scenes = prompts(difficulty, ROWS_EACH * COLUMNS)
        captions = [scene.caption for scene in scenes]
        pictures = draw(pipe, captions, range(len(captions)), 25, {"guidance_scale": 4.0})
        verdicts = judge.judge(pictures, scenes)
        for i, (picture, caption, verdict) in enumerate(zip(pictures, captions, verdicts, strict=True)):
            row, column = divmod(i, COLUMNS)
            corner = (GAP + column * (EDGE + GAP), GAP + (number * ROWS_EACH + row) * (EDGE + CAPTION))
            _cell(canvas, corner, picture, caption, verdict)
    return canvas


def _cell(canvas: Image.Image, corner: tuple[int, int], picture: torch.Tensor, caption: str, verdict: Verdict) -> None:
    """A picture, its caption, and which stated facts the reader misses."""
    pixels = (picture.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    canvas.paste(Image.fromarray(np.ascontiguousarray(pixels)).resize((EDGE, EDGE), Image.Resampling.NEAREST), corner)
    pen, font = ImageDraw.Draw(canvas), ImageFont.load_default(10)
    left, top = corner[0], corner[1] + EDGE + 2
    lines = textwrap.wrap(caption, 25)[:4]
    pen.multiline_text((left, top), "\n".join(lines), INK, font, spacing=1)
    missed = ", ".join(kind for kind, holds in verdict.facts.items() if not holds)
    below = top + 11 * len(lines) + 2
    pen.text((left, below), f"misses: {missed}" if missed else "all right", BAD if missed else GOOD, font)


if __name__ == "__main__":
    main()

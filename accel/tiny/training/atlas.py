"""Rasterise the emoji once into the committed atlas.

Needs the ``icons.json`` of the npm package ``@iconify-json/fluent-emoji-flat`` and ``resvg-py``;
neither is needed for anything else. See ``accel/tiny/ATTRIBUTION.md``.
"""

from __future__ import annotations

import io
import json
from pathlib import Path

from PIL import Image

from accel.tiny.render import ATLAS
from accel.tiny.world import SPRITES

EDGE = 96

_ICONS = {
    "car": "automobile",
    "tree": "deciduous-tree",
    "pumpkin": "jack-o-lantern",
}


def build_atlas(icons: Path, out: Path = ATLAS) -> Path:
    """Draw every emoji of the world into one row of 96 pixel tiles.

    Args:
        icons: The package's ``icons.json``.
        out: PNG file to write, RGBA.
    """
    import resvg_py

    bodies = json.loads(icons.read_text(encoding="utf-8"))["icons"]
    atlas = Image.new("RGBA", (EDGE * len(SPRITES), EDGE))
    for index, name in enumerate(SPRITES):
        body = bodies[_ICONS.get(name, name)]["body"]
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="1 1 30 30" width="{EDGE}" height="{EDGE}">{body}</svg>'
        tile = Image.open(io.BytesIO(bytes(resvg_py.svg_to_bytes(svg_string=svg)))).convert("RGBA")
        atlas.paste(tile, (EDGE * index, 0))
    atlas.save(out, optimize=True)
    return out

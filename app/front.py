"""The front that tuning measures, as a picture: seconds to the right, quality upwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

Scale = Callable[[float], float]
"""From a value to its place in the picture."""

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _EDGE = 640, 320, 52, 40, 16


@dataclass(frozen=True)
class Point:
    """A way to draw: its name, expected seconds, its distance above the floor, and what kind of point it is."""

    name: str
    seconds: float
    above: float
    plain: bool
    sure: bool
    """Measured on the prompts to judge by, not only on those searched on."""
    best: bool = False
    """On the front: nothing else is both faster and closer."""


def svg(points: Sequence[Point], unit: str) -> str:
    """All points, the front joined by a line, the floor at 0; every point says what it is, and a table follows."""
    if not points:
        return '<p class="quiet">Nothing measured yet.</p>'
    x, y = _scales(points)
    front = sorted((p for p in points if p.best), key=lambda p: p.seconds)
    line = " ".join(f"{x(p.seconds):.1f},{y(p.above):.1f}" for p in front)
    dots = "".join(_dot(p, x(p.seconds), y(p.above), unit) for p in sorted(points, key=lambda p: p.best))
    label = f"{len(points)} ways to draw by seconds and quality; {len(front)} on the front"
    return (
        f'<figure class="front"><svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">'
        f'<line class="floor" x1="{_LEFT}" x2="{_WIDTH - _EDGE}" y1="{y(0):.1f}" y2="{y(0):.1f}"/>'
        f'<text x="{_WIDTH - _EDGE}" y="{y(0) - 6:.1f}" text-anchor="end">the floor</text>'
        f'<polyline points="{line}"/>{dots}{_axes(points, x, y, unit)}</svg>{_table(front, unit)}</figure>'
    )


def _scales(points: Sequence[Point]) -> tuple[Scale, Scale]:
    slow = max(p.seconds for p in points) or 1.0
    low, high = min(0.0, *(p.above for p in points)), max(0.0, *(p.above for p in points))
    span = (high - low) or 1.0

    def x(seconds: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _EDGE) * seconds / slow

    def y(above: float) -> float:
        return _EDGE + (_HEIGHT - _EDGE - _BOTTOM) * (high - above) / span

    return x, y


def _dot(point: Point, x: float, y: float, unit: str) -> str:
    kinds = ("plain" if point.plain else "plan", "sure" if point.sure else "rough", "best" if point.best else "beaten")
    text = escape(f"{point.name}: {point.seconds:.2f} s, {point.above:+.1f} {unit} from the floor")
    shape = (
        f'<rect x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10">'
        if point.plain
        else f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5.5">'
    )
    return f'<g class="{" ".join(kinds)}">{shape}<title>{text}</title></{"rect" if point.plain else "circle"}></g>'


def _axes(points: Sequence[Point], x: Scale, y: Scale, unit: str) -> str:
    slow = max(p.seconds for p in points)
    marks = "".join(
        f'<text x="{x(share * slow):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{share * slow:.2f} s</text>'
        for share in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    low, high = min(0.0, *(p.above for p in points)), max(0.0, *(p.above for p in points))
    sides = "".join(
        f'<text x="{_LEFT - 8}" y="{y(value) + 4:.1f}" text-anchor="end">{value:+.0f}</text>'
        for value in {low, high, 0.0}
    )
    legend = f"expected seconds per picture · {escape(unit)} above the floor · squares plain, circles plans"
    return f'{marks}{sides}<text x="{_LEFT}" y="{_HEIGHT - 4}" class="legend">{legend}</text>'


def _table(front: Sequence[Point], unit: str) -> str:
    rows = "".join(f"<tr><td>{escape(p.name)}</td><td>{p.seconds:.2f}</td><td>{p.above:+.1f}</td></tr>" for p in front)
    head = f"<tr><th>on the front</th><th>seconds</th><th>{escape(unit)} above the floor</th></tr>"
    return f"<details><summary>The front as a table</summary><table>{head}{rows}</table></details>" if rows else ""

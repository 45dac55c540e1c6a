"""The report drawn: steps from left to right, a row per technique and site, a mark per step, and the time of each step.

Sites that did the same in every step share a row, and a technique has a few rows at most: what is left out is said.

The drawing is an ARIA grid: every cell has its explanation as its name, the arrow keys walk through it (``page.js``),
and shape as well as colour tells computed from predicted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from accel.report import COMPUTED, IDLE, LIGHTER, MIXED, PREDICTED, alike, together

_KINDS = {COMPUTED: "computed", PREDICTED: "predicted", LIGHTER: "lighter", MIXED: "mixed", IDLE: "idle"}
_WHY = {
    COMPUTED: "computed in full",
    PREDICTED: "predicted from earlier steps, not computed",
    LIGHTER: "computed in a lighter way that gives the same",
    MIXED: "partly computed, partly predicted",
    IDLE: "not asked for in this step",
}
_MOST_ROWS = 12
"""Of one technique."""

_HINT = "Point at a cell, or walk through the grid with the arrow keys, to see what happened there."


@dataclass(frozen=True)
class Row:
    """A row of the grid: a name, what stands beside it, and a cell per step as (kind, height or ``None``, why)."""

    name: str
    detail: str
    cells: Sequence[tuple[str, float | None, str]]


def rows(report: Mapping[str, Any], plain: Sequence[float], fast: Sequence[float]) -> list[Row]:
    """The grid of a report (`accel.Report.to_dict`); ``plain`` and ``fast`` are seconds per step, empty if unknown."""
    tallest = max([*plain, *fast], default=0.0)
    return [
        *([_times("plain", plain, tallest)] if plain else []),
        *(row for name, entry in report["techniques"].items() if entry["strip"].strip() for row in _sites(name, entry)),
        *([_times("accelerated", fast, tallest)] if fast else []),
    ]


def _sites(name: str, entry: Mapping[str, Any]) -> list[Row]:
    """A technique's rows: one for each way in which its sites went, a single one where they are not told apart."""
    groups = alike(entry.get("strips", {})) or [([""] * entry["sites"], entry["strip"])]
    shown = groups if len(groups) <= _MOST_ROWS else groups[: _MOST_ROWS - 1]
    made = [_technique(f"{name} · {together(sites)}" if any(sites) else name, sites, strip) for sites, strip in shown]
    if rest := groups[len(shown) :]:
        left = [site for sites, _ in rest for site in sites]
        made.append(_technique(f"{name} · others, in {len(rest)} ways", left, _merged([strip for _, strip in rest])))
    return made


def _technique(title: str, sites: Sequence[str], strip: str) -> Row:
    count = "1 site" if len(sites) == 1 else f"{len(sites)} sites"
    of = "its site was" if len(sites) == 1 else f"its {count} were"
    where = f" ({sites[0]} to {sites[-1]})" if len(sites) > 1 and sites[0] else ""
    cells = [
        (_KINDS[mark], None, f"{title}, step {index} of {len(strip)}: {of} {_WHY[mark]}{where}")
        for index, mark in enumerate(strip, start=1)
    ]
    share = strip.count(PREDICTED) / (len(strip) - strip.count(IDLE))
    return Row(title, f"{count}, {100 * share:.0f} % predicted" if share else f"{count}, computed", cells)


def _merged(strips: Sequence[str]) -> str:
    return "".join(marks[0] if len({*marks}) == 1 else MIXED for marks in zip(*strips, strict=True))


def _times(name: str, seconds: Sequence[float], tallest: float) -> Row:
    cells = [
        ("time", each / tallest if tallest else 0.0, f"{name}, step {index} of {len(seconds)}: {1000 * each:.0f} ms")
        for index, each in enumerate(seconds, start=1)
    ]
    return Row(name, "time of each step", cells)


def declined(report: Mapping[str, Any]) -> list[str]:
    """Why not more was predicted, and which denoisers the plan leaves out."""
    reasons = [
        f"{name} computed {count} times: {reason}"
        for name, entry in report["techniques"].items()
        for reason, count in entry["declined"].items()
    ]
    return [*reasons, *report["notes"], *(f"left out: {reason}" for reason in report.get("omitted", ()))]


def html(report: Mapping[str, Any], plain: Sequence[float] = (), fast: Sequence[float] = ()) -> str:
    """The grid with its legend and the reasons below; a sentence where no plan was attached."""
    grid = rows(report, plain, fast)
    if not grid:
        return '<p class="quiet">No technique, no grid: this plan computes everything.</p>'
    steps = max(len(row.cells) for row in grid)
    label = escape(f"What {report['plan']} did in each of {steps} steps", quote=True)
    first = next((index for index, row in enumerate(grid) if row.cells[0][0] != "time"), 0)
    lines = "".join(_row(row, start=index == first) for index, row in enumerate(grid))
    reasons = "".join(f"<li>{escape(reason)}</li>" for reason in declined(report))
    return (
        f'<section class="timeline"><h2>Steps × sites</h2>{_legend(grid)}'
        f'<div role="grid" aria-label="{label}" class="rows" style="--steps:{steps}">{lines}</div>'
        f'<p class="why" aria-live="polite">{_HINT}</p>'
        + (f'<ul class="reasons" aria-label="Why not more">{reasons}</ul>' if reasons else "")
        + "</section>"
    )


def _row(row: Row, start: bool) -> str:
    cells = "".join(
        _cell(kind, height, why, focus=start and index == 0) for index, (kind, height, why) in enumerate(row.cells)
    )
    return (
        f'<div role="row" class="line"><div role="rowheader" class="title">{escape(row.name)}'
        f"<small>{escape(row.detail)}</small></div>{cells}</div>"
    )


def _cell(kind: str, height: float | None, why: str, focus: bool) -> str:
    text = escape(why, quote=True)
    bar = "" if height is None else f'<i style="height:{max(4.0, 100 * height):.0f}%"></i>'
    return f'<div role="gridcell" class="cell {kind}" tabindex="{0 if focus else -1}" aria-label="{text}">{bar}</div>'


def _legend(grid: Sequence[Row]) -> str:
    seen = {kind for row in grid for kind, _, _ in row.cells}
    items = "".join(
        f'<li><span class="cell {kind}" aria-hidden="true"></span>{kind}</li>'
        for kind in _KINDS.values()
        if kind in seen and kind != "idle"
    )
    return f'<ul class="legend" aria-label="Legend">{items}</ul>'

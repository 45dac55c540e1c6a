"""Plain and Markdown tables, and sizes a person can read."""

from __future__ import annotations

from collections.abc import Sequence

Rows = Sequence[Sequence[str]]


def aligned(head: Sequence[str], body: Rows) -> str:
    """Columns padded to equal width; numbers to the right."""
    widths = [max(len(row[i]) for row in (head, *body)) for i in range(len(head))]
    lines = [_line(head, widths), _line(["-" * w for w in widths], widths)]
    return "\n".join(line.rstrip() for line in (*lines, *(_line(row, widths) for row in body)))


def markdown(head: Sequence[str], body: Rows) -> str:
    """The same table in Markdown."""
    lines = [head, ["---"] * len(head), *body]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def size(count: float) -> str:
    """``1536`` → ``"1.5 KiB"``."""
    for unit in ("B", "KiB", "MiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  ".join(
        cell.rjust(w) if cell.replace(".", "", 1).isdigit() else cell.ljust(w)
        for cell, w in zip(cells, widths, strict=True)
    )

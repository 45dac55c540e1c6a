"""A measurement in words: the table, its Markdown, and two measurements side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel.errors import AccelError
from accel.measure.intervals import Interval
from accel.measure.results import Row
from accel.tables import Rows, aligned, markdown

_LOSS = 1.0


def table(rows: Sequence[Row]) -> tuple[list[str], Rows]:
    """Head and body, one line per arm; columns about facts only where a judge was there."""
    judged = any(row.right for row in rows)
    head = ["what", "speed-up", "FLOPs", "PSNR (dB)", "SSIM"]
    head += ["all facts right", "KID"] if judged else []
    head += ["frontier gain", *(["at equal content"] if judged else []), "verdict"]
    return head, [_line(row, judged) for row in rows]


def verdict(row: Row) -> str:
    """What the row says about its plan, in a few words."""
    if row.arm.plan is None:
        return ""
    if not row.predicted:
        return "predicted nothing"
    if row.gain is None:
        return "outside the plain curve"
    if row.gain.high < _LOSS:
        return "loses to fewer steps"
    return "beats fewer steps" if row.gain.low > _LOSS else "no clear difference"


def text(rows: Sequence[Row]) -> str:
    """For the terminal."""
    return aligned(*table(rows))


def page(title: str, head: dict[str, Any], rows: Sequence[Row]) -> str:
    """A Markdown page: what was measured where, then the table."""
    machine, solvers = head["machine"], " and ".join(head["solvers"])
    about = (
        f"{head['model']}, {len(head['prompts'])} prompts, {head['steps']} steps, solvers {solvers}, {head['dtype']}, "
        f"{head['rounds']} timed rounds; {machine['device']}, {machine['cores']} cores, {machine['threads']} threads, "
        f"torch {machine['torch']}, diffusers {machine['diffusers']}."
    )
    return f"# {title}\n\n{about}\n\n{markdown(*table(rows))}\n"


def changes(old: dict[str, Any], new: dict[str, Any]) -> str:
    """Two results documents as a Markdown table of what changed, beyond the noise of either.

    Raises:
        AccelError: when they have no arm in common or are of other versions.
    """
    if old.get("format") != new.get("format") or "rows" not in old or "rows" not in new:
        raise AccelError("these are not two results of one version of accel bench: measure the old one again")
    before = {row["name"]: row for row in old["rows"]}
    both = [(before[row["name"]], row) for row in new["rows"] if row["name"] in before]
    if not both:
        raise AccelError("the two results have no way to draw in common: compare runs with the same plans and steps")
    columns = {"speed-up": "speed_up", "PSNR (dB)": "psnr", "all facts right": "right", "frontier gain": "gain"}
    body = [[new["name"], *(_change(old[key], new[key]) for key in columns.values())] for old, new in both]
    return markdown(["what", *columns], body)


def _change(old: dict[str, float] | None, new: dict[str, float] | None) -> str:
    if old is None or new is None:
        return "–"
    apart = new["low"] > old["high"] or new["high"] < old["low"]
    moved = f"{old['value']:.2f} → {new['value']:.2f}"
    return f"**{moved}**" if apart else f"{moved} (noise)"


def _line(row: Row, judged: bool) -> list[str]:
    cells = [row.name, str(row.speed_up), f"{row.flops:.0%}", _number(row.psnr, "{:.1f}"), f"{row.ssim:.3f}"]
    if judged:
        cells += [_share(row.right), "–" if row.kid is None else f"{row.kid:.4f}"]
    cells.append("–" if row.gain is None else str(row.gain))
    if judged:
        cells.append("–" if row.content_gain is None else f"{row.content_gain:.2f}")
    return [*cells, verdict(row)]


def _number(interval: Interval | None, form: str) -> str:
    if interval is None:
        return "–"
    value, low, high = (form.format(number) for number in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


def _share(interval: Interval | None) -> str:
    return "–" if interval is None else f"{interval.value:.0%} ({interval.low:.0%} to {interval.high:.0%})"

"""A measurement in words: the table, its Markdown, and two measurements side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel.errors import AccelError
from accel.measure.intervals import Interval, mean
from accel.measure.quality import SMALLEST
from accel.measure.results import Row
from accel.tables import Rows, aligned, markdown, size

_FEW = 8
"""With fewer prompts or rounds than this (rounds: 3) nothing is concluded."""


def table(rows: Sequence[Row], prompts: int) -> tuple[list[str], Rows]:
    """Head and body, one line per arm; columns about facts only where a judge was there, memory only on a GPU."""
    judged = any(row.right for row in rows)
    head = ["what", "speed-up", "FLOPs (share)", "PSNR (dB)", "SSIM"]
    scales = any(row.ms_ssim for row in rows)
    head += ["MS-SSIM"] if scales else []
    head += list(rows[0].metrics) if rows else []
    head += ["peak memory"] if any(row.peak_bytes is not None for row in rows) else []
    head += ["attributes right", "all of them", "KID"] if judged else []
    head += [f"FID (real: {floor:.1f})"] if (floor := _floor(rows)) is not None else []
    head += ["frontier gain", *(["at equal content"] if judged else []), "verdict"]
    return head, [_line(row, judged, scales, prompts) for row in rows]


def verdict(row: Row, prompts: int) -> str:
    """What the row says about its plan, in a few words."""
    if row.arm.plan is None:
        return ""
    if not row.predicted:
        return "predicted nothing"
    if prompts < _FEW:
        return "too few prompts to say"
    if row.gain is None:
        return "better than the plain curve"
    if row.gain.high < 1:
        return "loses to fewer steps"
    return "beats fewer steps" if row.gain.low > 1 else "no clear difference"


def text(rows: Sequence[Row], prompts: int) -> str:
    """For the terminal."""
    return "\n".join([aligned(*table(rows, prompts)), *notes(rows)])


def notes(rows: Sequence[Row]) -> list[str]:
    """What the table does not have, and why."""
    sides = [row.side for row in rows if row.side is not None and row.ms_ssim is None]
    if not sides or min(sides) >= SMALLEST:
        return []
    return [f"MS-SSIM takes pictures of {SMALLEST} pixels a side and more; these have {min(sides)}."]


def page(title: str, head: dict[str, Any], rows: Sequence[Row]) -> str:
    """A Markdown page: what was measured where, then the table."""
    machine, solvers = head["machine"], " and ".join(head["solvers"])
    threads = "1 thread" if machine["threads"] == 1 else f"{machine['threads']} threads"
    about = (
        f"{head['model']}, {len(head['prompts'])} prompts, {head['steps']} steps, solvers {solvers}, {head['dtype']}, "
        f"{head['rounds']} timed rounds; {machine['device']}, {machine['cores']} cores, {threads}, "
        f"torch {machine['torch']}, diffusers {machine['diffusers']}."
    )
    whole = f"{markdown(*table(rows, len(head['prompts'])))}\n"
    below = "".join(f"\n{note}\n" for note in notes(rows))
    return f"# {title}\n\n{about}\n\n{whole}{below}{_where(rows, head['steps'])}"


def _where(rows: Sequence[Row], steps: int) -> str:
    """Where the time of a plain run goes, and so what a plan can save at most."""
    plain = next((row for row in rows if row.arm.plan is None and row.arm.steps == steps), None)
    if plain is None or not plain.stages:
        return ""
    shares = sorted(plain.stages.items(), key=lambda item: -item[1])
    return f"\nTime of {plain.name}: {', '.join(f'{name} {share:.0%}' for name, share in shares)}.\n"


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
    paired = all(old.get(key) == new.get(key) for key in _PICTURES)
    columns = _COLUMNS | {name: name for name in both[0][1].get("metrics", {})}
    columns = {title: key for title, key in columns.items() if any(_value(row, key) for pair in both for row in pair)}
    body = [[b["name"], *(_change(a, b, key, paired and (old, new)) for key in columns.values())] for a, b in both]
    other = [key for key in ("model", "machine", *_PICTURES, "accel") if old.get(key) != new.get(key)]
    note = f"They differ in {', '.join(other)}.\n\n" if other else ""
    return note + markdown(["what", *columns], body)


_COLUMNS = {
    "speed-up": "speed_up",
    "PSNR (dB)": "psnr",
    "MS-SSIM": "ms_ssim",
    "attributes right": "attributes",
    "all of them": "right",
    "frontier gain": "gain",
}
_UNPAIRED = ("speed_up", "gain")
_PICTURES = ("steps", "prompts", "seed", "call", "dtype")
"""Where these are equal, pictures are compared one by one."""


def _change(old: dict[str, Any], new: dict[str, Any], key: str, paired: Any) -> str:
    """How a number moved; in bold where that is more than noise."""
    before, after = _value(old, key), _value(new, key)
    if before is None or after is None:
        return "–"
    apart = after["low"] > before["high"] or after["high"] < before["low"]
    if paired and key not in _UNPAIRED:
        first, second = (_value(doc["arms"][row["name"]], key) for doc, row in zip(paired, (old, new), strict=True))
        moved = mean([b - a for a, b in zip(first, second, strict=True)])
        apart = moved.low > 0 or moved.high < 0
    digits = 3 if max(abs(before["value"]), abs(after["value"])) <= 1 and key not in (*_UNPAIRED, "right") else 2
    text = f"{before['value']:.{digits}f} → {after['value']:.{digits}f}"
    return f"**{text}**" if apart else f"{text} (noise)"


def _value(row: dict[str, Any], key: str) -> Any:
    """Results of earlier versions lack some keys; metrics that were asked for have a place of their own."""
    return row.get(key, row.get("metrics", {}).get(key))


def _floor(rows: Sequence[Row]) -> float | None:
    """The Fréchet distance that real pictures have to each other."""
    return next((row.fid_floor for row in rows if row.fid_floor is not None), None)


def _line(row: Row, judged: bool, scales: bool, prompts: int) -> list[str]:
    name = row.name if row.psnr else f"{row.name} (reference)"
    cells = [name, str(row.speed_up), f"{row.flops:.0%}", _number(row.psnr, "{:.1f}"), f"{row.ssim:.3f}"]
    cells += [_number(row.ms_ssim, "{:.3f}")] if scales else []
    cells += [_number(value, "{:.3g}") for value in row.metrics.values()]
    cells += [size(row.peak_bytes)] if row.peak_bytes is not None else []
    if judged:
        cells += [_share(row.attributes), _share(row.right), "–" if row.kid is None else f"{row.kid:.4f}"]
    cells += [f"{row.fid:.1f}"] if row.fid is not None else []
    cells.append("–" if row.gain is None else str(row.gain))
    if judged:
        cells.append("–" if row.content_gain is None else f"{row.content_gain:.2f}")
    return [*cells, verdict(row, prompts)]


def _number(interval: Interval | None, form: str) -> str:
    if interval is None:
        return "–"
    value, low, high = (form.format(number) for number in (interval.value, interval.low, interval.high))
    return f"{value} ({low} to {high})"


def _share(interval: Interval | None) -> str:
    return "–" if interval is None else f"{interval.value:.0%} ({interval.low:.0%} to {interval.high:.0%})"

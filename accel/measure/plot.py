"""The measured front as a picture: time against quality, with the fewer-steps curves as the lines to beat."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from accel.measure.extras import pyplot
from accel.measure.results import Row
from accel.measure.solvers import OWN


def pareto(rows: Sequence[Row], path: Path) -> None:
    """Write the plot as PNG or SVG, by the ending of ``path``. Raises `AccelError` without matplotlib."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4.5), layout="constrained")
    shown = [row for row in rows if row.psnr is not None]
    for solver in dict.fromkeys(row.arm.solver for row in shown):
        curve = [row for row in shown if row.arm.plan is None and row.arm.solver == solver]
        name = "plain, fewer steps" + ("" if solver == OWN else f", {solver}")
        (line,) = axes.plot(*_points(curve), marker=".", label=name)
        plans = [row for row in shown if row.arm.plan is not None and row.arm.solver == solver]
        axes.plot(*_points(plans), "D", color=line.get_color())
        for row in plans:
            name = row.arm.plan.name or str(row.arm.plan) if row.arm.plan else ""
            axes.annotate(name, _point(row), textcoords="offset points", xytext=(5, 4), fontsize=7)
    axes.set_xlabel("time, as a share of the plain pipeline's")
    axes.set_ylabel("PSNR to the long run (dB)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _points(rows: Sequence[Row]) -> tuple[list[float], list[float]]:
    points = [_point(row) for row in rows]
    return [x for x, _ in points], [y for _, y in points]


def _point(row: Row) -> tuple[float, float]:
    return 1 / row.speed_up.value, row.psnr.value if row.psnr else float("nan")

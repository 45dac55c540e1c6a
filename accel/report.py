"""What happened in a run: what was computed, what was predicted, what it kept in memory, and why not more."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from accel.errors import AccelWarning
from accel.tables import aligned, markdown, size

COMPUTED, PREDICTED, LIGHTER, MIXED, IDLE = "#", ".", "=", "+", " "
"""Marks of a technique's strip, one per step: all cells computed, all predicted, all computed in a lighter way, some of
each, none seen."""


@dataclass
class TechniqueReport:
    """One technique's part of a run. A *cell* is one site in one denoiser call."""

    sites: int = 0
    """Sites matched when the technique was attached."""
    computed: int = 0
    predicted: int = 0
    lighter: int = 0
    """Of those computed: in a way that gives the same and takes less memory or time."""
    strip: str = ""
    """One mark per step, see the marks above."""
    declined: dict[str, int] = field(default_factory=dict)
    """Reason → how often the technique wanted to predict but computed instead."""


@dataclass
class Report:
    """A run of one pipeline under one plan. ``str()`` is a table, `to_dict` is JSON-ready."""

    pipeline: str
    plan: str
    steps_planned: int = 0
    steps_run: int = 0
    aborted: bool = False
    calls: dict[str, int] = field(default_factory=dict)
    """Denoiser calls by ``denoiser/branch`` that the pipeline asked for."""
    calls_computed: int = 0
    """Denoiser calls that ran at all; one that had to be repeated in full counts twice, and so do its rows."""
    rows: int = 0
    """Batch rows that the pipeline asked the denoisers for, guidance halves counted apart."""
    rows_computed: int = 0
    seconds: float = 0.0
    """Wall time from the first denoiser call to the last step."""
    step_seconds: list[float] = field(default_factory=list)
    cache_bytes: int = 0
    cache_bytes_peak: int = 0
    techniques: dict[str, TechniqueReport] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Which denoisers the plan leaves out, and why."""

    @property
    def predicted(self) -> int:
        """Cells predicted instead of computed, over all techniques."""
        return sum(t.predicted for t in self.techniques.values())

    def to_dict(self) -> dict[str, Any]:
        """A JSON-ready dict of every field."""
        return asdict(self)

    def to_markdown(self) -> str:
        """The per-technique table in Markdown, below a line of totals."""
        return f"{self._totals()}\n\n{markdown(*self._table())}"

    def __str__(self) -> str:
        if not self.steps_planned:
            return f"{self.pipeline} · {self.plan}: no run yet"
        return f"{self._totals()}\n{aligned(*self._table())}"

    def _totals(self) -> str:
        done = f"{self.steps_run} of {self.steps_planned} steps" + (" (aborted)" if self.aborted else "")
        return (
            f"{self.pipeline} · {self.plan}: {done} in {self.seconds:.2f} s\n"
            f"denoiser: {self.calls_computed} of {sum(self.calls.values())} calls, "
            f"{self.rows_computed} of {self.rows} rows; "
            f"cache: {size(self.cache_bytes)} now, {size(self.cache_bytes_peak)} at peak"
            + "".join(f"\nwithout the plan: {note}" for note in self.notes)
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["technique", "sites", "computed", "predicted", "steps (# computed, . predicted)", "why not more"]
        body = [
            [name, str(t.sites), str(t.computed), str(t.predicted), t.strip, _reasons(t.declined)]
            for name, t in self.techniques.items()
        ]
        return head, body


class Recorder:
    """Collects a `Report` while a run goes on; techniques and the clock call it, users read `report`."""

    def __init__(self, pipeline: str, plan: str, notes: Sequence[str] = ()):
        self._pipeline, self._plan, self._notes = pipeline, plan, notes
        self._sites: dict[str, int] = {}
        self._marks: dict[str, str] = {}
        self._declined: dict[str, Counter[str]] = {}
        self._began = self._stepped = 0.0
        self.report = Report(pipeline, plan, notes=[*notes])

    def matched(self, technique: str, sites: int) -> None:
        """At attach time: ``technique`` found this many sites."""
        self._sites[technique] = sites

    def run_began(self, steps: int) -> None:
        """A run of ``steps`` solver steps starts: a fresh report."""
        techniques = {name: TechniqueReport(sites) for name, sites in self._sites.items()}
        self.report = Report(
            self._pipeline, self._plan, steps_planned=steps, techniques=techniques, notes=[*self._notes]
        )
        self._declined = {}
        self._marks = {}
        self._began = self._stepped = time.perf_counter()

    def step_ended(self) -> None:
        """A solver step ended: close the strips' column and the step's time."""
        now = time.perf_counter()
        self.report.step_seconds.append(now - self._stepped)
        self.report.seconds, self._stepped = now - self._began, now
        self.report.steps_run += 1
        for name, technique in self.report.techniques.items():
            technique.strip += self._marks.get(name, IDLE)
        self._marks = {}

    def call(self, name: str, rows: int) -> None:
        """The pipeline asked for a denoiser call ``denoiser/branch`` of ``rows`` rows."""
        self.report.calls[name] = self.report.calls.get(name, 0) + 1
        self.report.rows += rows

    def computed(self, rows: int) -> None:
        """A denoiser ran on ``rows`` rows."""
        self.report.calls_computed += 1
        self.report.rows_computed += rows

    def cell(self, technique: str, predicted: bool, lighter: bool = False) -> None:
        """One site of one call was predicted, or computed, perhaps in a lighter way that gives the same."""
        entry = self.report.techniques[technique]
        if predicted:
            entry.predicted += 1
        else:
            entry.computed += 1
            entry.lighter += lighter
        mark = PREDICTED if predicted else LIGHTER if lighter else COMPUTED
        self._marks[technique] = mark if self._marks.get(technique, mark) == mark else MIXED

    def left_out(self, technique: str, steps: int, kept: int) -> None:
        """``technique`` spared the run so many whole steps, and left so many."""
        entry = self.report.techniques[technique]
        entry.predicted += steps
        entry.computed += kept

    def decline(self, technique: str, reason: str) -> None:
        """``technique`` wanted to predict a cell and computed it after all."""
        self._declined.setdefault(technique, Counter())[reason] += 1

    def cached(self, change: int) -> None:
        """Bytes added to (or, negative, freed from) what techniques keep."""
        self.report.cache_bytes += change
        self.report.cache_bytes_peak = max(self.report.cache_bytes_peak, self.report.cache_bytes)

    def run_ended(self, aborted: bool) -> None:
        """The run is over; warns about techniques that saved nothing."""
        self.report.aborted = aborted
        for name, reasons in self._declined.items():
            self.report.techniques.setdefault(name, TechniqueReport()).declined = dict(reasons)
        if self.report.steps_run == self.report.steps_planned:
            for name, technique in self.report.techniques.items():
                if not technique.predicted and not technique.lighter and name in self._sites:
                    _warn_idle(name, technique, self.report)


def _warn_idle(name: str, technique: TechniqueReport, report: Report) -> None:
    unseen = "none of its sites was called" if not technique.computed else ""
    if unseen and "clock" in report.techniques:  # no call was followed, and it knows why
        unseen = _reasons(report.techniques["clock"].declined)
    reason = (
        _reasons(technique.declined) or unseen or f"its table has nothing to predict in {report.steps_planned} steps"
    )
    warnings.warn(
        f"{name} saved nothing in this run ({reason}): use more steps, other settings, or leave it out",
        AccelWarning,
        stacklevel=2,
    )


def _reasons(declined: dict[str, int]) -> str:
    return "; ".join(f"{reason} ({count}x)" for reason, count in declined.items())

"""What happened in a run: what was computed, what was predicted, what it kept in memory, and why not more."""

from __future__ import annotations

import re
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import itemgetter
from typing import Any

from accel.errors import AccelWarning
from accel.tables import aligned, markdown, size

COMPUTED, PREDICTED, LIGHTER, MIXED, IDLE = "#", ".", "=", "+", " "
"""Marks of a technique's strip, one per step: all cells computed, all predicted, all computed in a lighter way, some of
each, none seen."""

_KINDS = 3
"""Kinds of sites that are named."""

_FEW = 8
"""In fewer steps than that, neighbouring ones are too far apart for much to be predicted."""
_FEW_STEPS = "steps are far apart, and the first of them are computed: only `lossless` is sure to save there"

_LINES = 8
"""Lines of a table that one technique's sites take at most."""


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
    strips: dict[str, str] = field(default_factory=dict)
    """Site → its own marks, where the technique tells its sites apart."""


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
    offloaded_bytes: int = 0
    """Of what techniques keep, that which was moved to CPU memory; it is not in ``cache_bytes``."""
    offloaded_bytes_peak: int = 0
    techniques: dict[str, TechniqueReport] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    """Which denoisers the plan leaves out, and why."""
    omitted: list[str] = field(default_factory=list)
    """What a preset contains and cannot do on this pipeline, and why."""
    hints: list[str] = field(default_factory=list)
    """Why a complete run was not faster: what saved nothing, too few steps, a distilled model."""

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
            + (f", and {size(self.offloaded_bytes_peak)} in CPU memory" if self.offloaded_bytes_peak else "")
            + "".join(f"\nwithout the plan: {note}" for note in self.notes)
            + "".join(f"\nleft out of the plan: {reason}" for reason in self.omitted)
            + "".join(f"\nwhy not faster: {hint}" for hint in self.hints)
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        head = ["technique", "sites", "computed", "predicted", "steps (# computed, . predicted)", "why not more"]
        body: list[list[str]] = []
        for name, t in self.techniques.items():
            body.append([name, str(t.sites), str(t.computed), str(t.predicted), t.strip, _reasons(t.declined)])
            body += [[f"· {title}", str(sites), "", "", strip, ""] for title, sites, strip in _by_site(t.strips)]
        return head, body


def alike(strips: Mapping[str, str]) -> list[tuple[list[str], str]]:
    """Sites that did the same in every step, and what they did; in the order of the first of each."""
    groups: dict[str, list[str]] = {}
    for site, strip in strips.items():
        groups.setdefault(strip, []).append(site)
    return [(sites, strip) for strip, sites in groups.items()]


def together(sites: Sequence[str]) -> str:
    """A short name: of one site its own, of several what they are: ``"attn2.to_k, attn2.to_v"``."""
    if len(sites) == 1:
        return sites[0]
    kinds = [*dict.fromkeys(re.sub(r"^.*\.\d+\.", "", site) for site in sites)]
    return ", ".join(kinds[:_KINDS]) + (" …" if len(kinds) > _KINDS else "")


class Recorder:
    """Collects a `Report` while a run goes on; techniques and the clock call it, users read `report`."""

    def __init__(self, pipeline: str, plan: str, notes: Sequence[str] = (), omitted: Sequence[str] = ()):
        self._pipeline, self._plan, self._notes, self._omitted = pipeline, plan, notes, omitted
        self.signs: Callable[[], Sequence[str]] = tuple
        """Tells what about the pipeline leaves little to save."""
        self._sites: dict[str, int] = {}
        self._marks: dict[tuple[str, str], str] = {}  # by technique and site; without a site, of all of them
        self._declined: dict[str, Counter[str]] = {}
        self._acted: set[str] = set()
        self._began = self._stepped = 0.0
        self.report = Report(pipeline, plan, notes=[*notes], omitted=[*omitted])

    def matched(self, technique: str, sites: int) -> None:
        """At attach time: ``technique`` found this many sites."""
        self._sites[technique] = sites

    def run_began(self, steps: int) -> None:
        """A run of ``steps`` solver steps starts: a fresh report."""
        techniques = {name: TechniqueReport(sites) for name, sites in self._sites.items()}
        self.report = Report(
            self._pipeline,
            self._plan,
            steps_planned=steps,
            techniques=techniques,
            notes=[*self._notes],
            omitted=[*self._omitted],
        )
        self._declined = {}
        self._acted = set()
        self._marks = {}
        self._began = self._stepped = time.perf_counter()

    def step_ended(self) -> None:
        """A solver step ended: close the strips' column and the step's time."""
        now = time.perf_counter()
        self.report.step_seconds.append(now - self._stepped)
        self.report.seconds, self._stepped = now - self._began, now
        self.report.steps_run += 1
        for name, site in filter(itemgetter(1), self._marks):
            self.report.techniques[name].strips.setdefault(site, IDLE * (self.report.steps_run - 1))
        for name, technique in self.report.techniques.items():
            technique.strip += self._marks.get((name, ""), IDLE)
            technique.strips = {k: strip + self._marks.get((name, k), IDLE) for k, strip in technique.strips.items()}
        self._marks = {}

    def call(self, name: str, rows: int) -> None:
        """The pipeline asked for a denoiser call ``denoiser/branch`` of ``rows`` rows."""
        self.report.calls[name] = self.report.calls.get(name, 0) + 1
        self.report.rows += rows

    def computed(self, rows: int) -> None:
        """A denoiser ran on ``rows`` rows."""
        self.report.calls_computed += 1
        self.report.rows_computed += rows

    def cell(self, technique: str, predicted: bool, lighter: bool = False, site: str = "") -> None:
        """One site of one call was predicted, or computed, perhaps in a lighter way that gives the same.

        A technique with several sites gives the ``site`` its name.
        """
        entry = self.report.techniques[technique]
        if predicted:
            entry.predicted += 1
        else:
            entry.computed += 1
            entry.lighter += lighter
        mark = PREDICTED if predicted else LIGHTER if lighter else COMPUTED
        for key in {(technique, ""), (technique, site)}:
            self._marks[key] = mark if self._marks.get(key, mark) == mark else MIXED

    def left_out(self, technique: str, steps: int, kept: int) -> None:
        """``technique`` spared the run so many whole steps, and left so many."""
        entry = self.report.techniques[technique]
        entry.predicted += steps
        entry.computed += kept
        if steps:
            self.acted(technique)

    def acted(self, technique: str) -> None:
        """``technique`` changed the steps as it should: it is not idle, and few steps are no surprise."""
        self._acted.add(technique)

    def decline(self, technique: str, reason: str) -> None:
        """``technique`` wanted to predict a cell and computed it after all."""
        self._declined.setdefault(technique, Counter())[reason] += 1

    def cached(self, change: int, offloaded: bool = False) -> None:
        """Bytes added to (or, negative, freed from) what techniques keep, on the device or moved to CPU memory."""
        report = self.report
        if offloaded:
            report.offloaded_bytes += change
            report.offloaded_bytes_peak = max(report.offloaded_bytes_peak, report.offloaded_bytes)
        else:
            report.cache_bytes += change
            report.cache_bytes_peak = max(report.cache_bytes_peak, report.cache_bytes)

    def run_ended(self, aborted: bool) -> None:
        """The run is over; warns about techniques that saved nothing."""
        self.report.aborted = aborted
        for name, reasons in self._declined.items():
            self.report.techniques.setdefault(name, TechniqueReport()).declined = dict(reasons)
        if self.report.steps_run == self.report.steps_planned:
            self._explain()

    def _explain(self) -> None:
        """A complete run: say what saved nothing, and what about the run and the pipeline may be the cause."""
        report = self.report
        own = [(name, t) for name, t in report.techniques.items() if name in self._sites]
        idle = {
            name: _why_idle(t, report)
            for name, t in own
            if not t.predicted and not t.lighter and name not in self._acted
        }
        report.hints = [f"{name} saved nothing: {reason}" for name, reason in idle.items()]
        if own and report.steps_planned < _FEW and not self._acted:
            report.hints.append(f"{report.steps_planned} {_FEW_STEPS}")
        if idle:
            report.hints += self.signs()
        for name, reason in idle.items():
            warnings.warn(
                f"{name} saved nothing in this run ({reason}): use more steps, other settings, or leave it out",
                AccelWarning,
                stacklevel=3,
            )


def _by_site(strips: Mapping[str, str]) -> list[tuple[str, int, str]]:
    """(title, sites, strip) of sites that differ; none where all do the same, and at most `_LINES`, which is said."""
    groups = alike(strips)
    if len(groups) < 2:
        return []
    shown = groups[: _LINES if len(groups) <= _LINES else _LINES - 1]
    rest = sum(len(sites) for sites, _ in groups[len(shown) :])
    lines = [(together(sites), len(sites), strip) for sites, strip in shown]
    return [*lines, ("others, in other ways", rest, "")] if rest else lines


def _why_idle(technique: TechniqueReport, report: Report) -> str:
    unseen = "none of its sites was called" if not technique.computed else ""
    if unseen and "clock" in report.techniques:  # no call was followed, and it knows why
        unseen = _reasons(report.techniques["clock"].declined)
    return _reasons(technique.declined) or unseen or f"its table has nothing to predict in {report.steps_planned} steps"


def _reasons(declined: dict[str, int]) -> str:
    return "; ".join(f"{reason} ({count}x)" for reason, count in declined.items())

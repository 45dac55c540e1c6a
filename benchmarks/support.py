"""Which technique works on which family of pipelines: ``docs/support.md``, from what the code does.

    python -m benchmarks.support

From the root of the repository. Every registered technique is put on the tiny pipeline of every family in
``tests/families``, with its default settings. What it refuses is refused. Where it saves nothing in a run, the settings
of the contract are tried as well, which are chosen to save something: a threshold may just not have been reached.
What was found goes to ``results/support.json``, and the page is written from that.
"""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import accel
from accel import AccelWarning, Report, registry
from accel.caches.native.technique import NativeCache
from accel.report import TechniqueReport
from accel.tables import markdown
from accel.target import Target
from accel.technique import Technique
from tests.contract.plans import APART, SETTINGS
from tests.families import CASES, case, run

FOUND = Path(__file__).parent / "results" / "support.json"
PAGE = Path(__file__).parent.parent / "docs" / "support.md"

WORKS, REFUSED, NOTHING, NEEDS = "works", "refused", "nothing", "needs"
MARKS = {WORKS: "✓", REFUSED: "✗", NOTHING: "–", NEEDS: "…"}

STEPS = 8
"""Long enough for the default warm-ups."""

KINDS: dict[str, list[Technique]] = {
    "first_block": [NativeCache(), NativeCache(options={"threshold": 9.0})],
    "mag": [NativeCache("mag", {"mag_ratios": [1.0]})],
    "taylor": [NativeCache("taylor")],
    "pab": [NativeCache("pab")],
    "faster": [NativeCache("faster")],
    "sea": [NativeCache("sea"), NativeCache("sea", {"threshold": 9.0})],
}
"""diffusers' own caches, and what is tried of each; the ratios of ``mag`` belong to a model, these stand for some."""


class Verdict(NamedTuple):
    """What became of a technique on a pipeline, and why where it was not used."""

    state: str
    reason: str = ""


Row = dict[str, Verdict]
"""By technique."""


def row(name: str) -> dict[str, Row]:
    """The verdicts on the case called ``name``: of the techniques, and of diffusers' caches one by one."""
    pipe = case(name).build()
    more = {**SETTINGS, **APART}
    tried = {technique: [registry.find(technique)(), *more[technique]] for technique in registry.names()}
    techniques = {technique: _verdict(name, pipe, settings) for technique, settings in tried.items()}
    kinds = {} if techniques[NativeCache.name].state == REFUSED else KINDS
    return {"techniques": techniques, "native": {kind: _verdict(name, pipe, tried) for kind, tried in kinds.items()}}


def _verdict(name: str, pipe: Any, settings: Sequence[Technique]) -> Verdict:
    """Of the first settings; those after it are tried where it saves nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)  # what saves nothing is told by the report as well
        if problems := accel.check(pipe, settings[0]):
            return Verdict(REFUSED, _joined(_general(problem, pipe, settings[0]) for problem in problems))
        reports = (_report(name, pipe, technique) for technique in settings if not accel.check(pipe, technique))
        parts = list(next(reports).techniques.values())
        if _saves(parts) or any(_saves(report.techniques.values()) for report in reports):
            return Verdict(WORKS)
    return Verdict(NOTHING, _joined(reason for part in parts for reason in part.declined))


def _report(name: str, pipe: Any, technique: Technique) -> Report:
    with accel.accelerate(pipe, technique) as handle:
        run(case(name), pipe, steps=STEPS)
        return handle.report()


def _saves(parts: Iterable[TechniqueReport]) -> bool:
    return any(part.predicted or part.lighter for part in parts)


def _general(problem: str, pipe: Any, technique: Technique) -> str:
    """A problem in words that other pipelines may share: without the technique's name and the denoiser's class."""
    for denoiser in Target.of(pipe).denoisers:
        problem = problem.replace(f"{denoiser.name} ({type(denoiser.module).__name__})", "the denoiser")
        problem = re.sub(rf"\b{denoiser.name}\b", "the denoiser", problem)
    kind = f"{technique.kind} on the denoiser: " if isinstance(technique, NativeCache) else ""
    return problem.removeprefix(f"{technique.name}: ").removeprefix(kind)


def _joined(reasons: Iterable[str]) -> str:
    return "; ".join(dict.fromkeys(reasons))


# --- the page --------------------------------------------------------------------------------------------------------


def page(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The page from the verdicts by case."""
    reasons: dict[str, int] = {}
    everything = {name: _read(parts["techniques"]) for name, parts in found.items()}
    native = {name: _read(parts["native"]) for name, parts in found.items() if parts["native"]}
    tables = [_table(found, rows, reasons) for rows in (_with_needs(everything), native)]
    notes = "\n".join(f"{number}. {reason}" for reason, number in reasons.items())
    return _TEXT.format(techniques=tables[0], native=tables[1], notes=notes)


def _read(row: Mapping[str, Any]) -> Row:
    return {technique: Verdict(*verdict) for technique, verdict in row.items()}


def _with_needs(rows: dict[str, Row]) -> dict[str, Row]:
    """A technique that is refused everywhere for one reason misses something that it must be given."""
    columns = {technique: {row[technique] for row in rows.values()} for technique in next(iter(rows.values()))}
    alike = {technique: next(iter(verdicts)) for technique, verdicts in columns.items() if len(verdicts) == 1}
    needs = {t: Verdict(NEEDS, verdict.reason) for t, verdict in alike.items() if verdict.state == REFUSED}
    return {name: {**row, **needs} for name, row in rows.items()}


def _table(found: Mapping[str, Mapping[str, Any]], rows: Mapping[str, Row], reasons: dict[str, int]) -> str:
    head = ["case", "pipeline", *next(iter(rows.values()))]
    body = [
        [name, found[name]["pipeline"], *(_cell(technique, verdict, reasons) for technique, verdict in row.items())]
        for name, row in rows.items()
    ]
    return markdown(head, body)


def _cell(technique: str, verdict: Verdict, reasons: dict[str, int]) -> str:
    if not verdict.reason:
        return MARKS[verdict.state]
    number = reasons.setdefault(f"{technique}: {verdict.reason}", len(reasons) + 1)
    return f"{MARKS[verdict.state]} {number}"


_TEXT = """# Support

Written by `python -m benchmarks.support` from what the code does with the tiny pipelines of `tests/families`.

- ✓ works.
- ✗ is refused before a run.
- – is accepted, and saves nothing there: it declines in the run.
- … needs something made first.

Numbers are reasons, below. Settings are the defaults, and those of the tests where a threshold is not reached by the
defaults. Families that share a structure behave alike: nothing is decided by a model's name.

## Techniques

{techniques}

## diffusers' own caches

`native` by its `kind`, on the denoisers that take them at all.

{native}

## Reasons

{notes}
"""


def main() -> None:
    """Find out, keep it, write the page."""
    found = {name: {"pipeline": type(case(name).build()).__name__, **row(name)} for name in CASES}
    FOUND.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    PAGE.write_text(page(json.loads(FOUND.read_text(encoding="utf-8"))), encoding="utf-8")
    print(PAGE)


if __name__ == "__main__":
    main()

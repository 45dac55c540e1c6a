"""The report's cells by site: what each did in each step, on paper and in a run."""

from __future__ import annotations

import re

import pytest

import accel
from accel.caches.smoothcache import SmoothCache
from accel.report import Recorder, Report, TechniqueReport, alike, together
from tests import families


def recorded(*steps: list[tuple[str, bool]]) -> TechniqueReport:
    """A technique's entry after steps of (site, predicted)."""
    recorder = Recorder("Pipeline", "plan")
    recorder.matched("fora", 2)
    recorder.run_began(len(steps))
    for cells in steps:
        for site, predicted in cells:
            recorder.cell("fora", predicted, site=site)
        recorder.step_ended()
    return recorder.report.techniques["fora"]


def test_every_site_has_a_mark_for_every_step() -> None:
    entry = recorded([("a", False), ("b", False)], [("a", True), ("b", False)], [("b", True), ("b", False)], [])
    assert entry.strips == {"a": "#.  ", "b": "##+ "}
    assert (entry.strip, entry.computed, entry.predicted) == ("#++ ", 4, 2)


def test_a_site_that_comes_late() -> None:
    assert recorded([("a", False)], [("a", True), ("b", True)]).strips == {"a": "#.", "b": " ."}


def test_a_technique_without_names_has_its_strip_only() -> None:
    entry = recorded([("", False)], [("", True)])
    assert (entry.strip, entry.strips) == ("#.", {})


def test_sites_that_went_alike() -> None:
    assert alike({"a": "#.", "b": "##", "c": "#."}) == [(["a", "c"], "#."), (["b"], "##")]
    assert together(["unet.up.1.attn1"]) == "unet.up.1.attn1"
    assert together([f"unet.up.{i}.{kind}" for i in range(3) for kind in ("attn1", "ff")]) == "attn1, ff"
    assert together([f"unet.{i}.{kind}" for i, kind in enumerate("abcd")]) == "a, b, c …"


@pytest.mark.parametrize("ways, lines", [(1, 0), (2, 2), (8, 8), (9, 8), (31, 8)])
def test_the_table_stays_readable(ways: int, lines: int) -> None:
    strips = {f"site {i}": f"{i:05b}".replace("0", "#").replace("1", ".") for i in range(ways)}
    report = Report("Pipe", "plan", 5, 5, techniques={"fora": TechniqueReport(ways, strip="+" * 5, strips=strips)})
    shown = [line for line in str(report).splitlines() if line.startswith("· ")]
    assert len(shown) == lines
    assert [line[2:24] for line in shown if "others" in line] == ["others, in other ways "] * (ways > 8)
    assert sum(int(re.search(r"  (\d+)(?:  |$)", line)[1]) for line in shown) == (ways if lines else 0)
    assert report.to_dict()["techniques"]["fora"]["strips"] == strips


def test_a_run_tells_its_sites_apart() -> None:
    case = families.case("sd")
    pipe = case.build()
    with accel.accelerate(pipe, SmoothCache({"attn1": "101010", "ff": "110110"})) as handle:
        families.run(case, pipe, steps=6)
    entry = handle.report().techniques["smoothcache"]
    assert len(entry.strips) == entry.sites
    for site, strip in entry.strips.items():
        assert strip == {"attn1": "#.#.#.", "ff": "##.##."}[site.rpartition(".")[2]]
    assert entry.predicted == sum(strip.count(".") for strip in entry.strips.values())

"""docs/support.md says what the code does."""

from __future__ import annotations

import json
from typing import Any

import pytest

from accel import Plan, registry
from benchmarks import support
from benchmarks.support import NEEDS, NOTHING, REFUSED, WORKS, Verdict
from tests.contract.plans import idle_parts, refused
from tests.families import CASES

AGAIN = "write it anew: python -m benchmarks.support"

FOUND: dict[str, Any] = json.loads(support.FOUND.read_text(encoding="utf-8"))


def test_page_is_what_was_found() -> None:
    assert support.PAGE.read_text(encoding="utf-8") == support.page(FOUND), AGAIN
    assert list(FOUND) == list(CASES), AGAIN
    assert all(list(parts["techniques"]) == registry.names() for parts in FOUND.values()), AGAIN


@pytest.mark.filterwarnings("ignore:torch.meshgrid")  # diffusers' own FasterCache
@pytest.mark.parametrize("name", CASES)
def test_what_was_found_still_holds(name: str) -> None:
    for part, verdicts in support.row(name).items():
        assert {key: Verdict(*verdict) for key, verdict in FOUND[name][part].items()} == verdicts, AGAIN


@pytest.mark.parametrize("technique", registry.names())
def test_contract_knows_the_same(technique: str) -> None:
    """What is refused, and what cannot save anything: the contract's tables say it of the same cases."""
    plan = Plan.of(registry.find(technique)())
    found = {name: Verdict(*parts["techniques"][technique]) for name, parts in FOUND.items()}
    if len(set(found.values())) == 1 and found["sd"].state == REFUSED:
        return  # it must be given something first
    for state, says in ((REFUSED, refused), (NOTHING, idle_parts)):
        expected = {name for name in CASES if says(plan, name)}
        assert {name for name, verdict in found.items() if verdict.state == state} == expected


def test_page_of_few_verdicts() -> None:
    """Reasons are numbered once, and what is refused everywhere for one reason misses something."""
    no = Verdict(REFUSED, "it is not one")
    rows = {
        "one": {"a": Verdict(WORKS), "b": no, "c": Verdict(REFUSED, "make one first")},
        "two": {"a": Verdict(NOTHING, "too short"), "b": Verdict(WORKS), "c": Verdict(REFUSED, "make one first")},
        "three": {"a": Verdict(WORKS), "b": no, "c": Verdict(REFUSED, "make one first")},
    }
    native = {"one": {}, "two": {"k": Verdict(NOTHING, "too short")}, "three": {}}
    text = support.page({n: {"pipeline": n.title(), "techniques": rows[n], "native": native[n]} for n in rows})
    assert "| one | One | ✓ | ✗ 1 | … 2 |" in text and "| two | Two | – 3 | ✓ | … 2 |" in text
    assert "| three | Three | ✓ | ✗ 1 | … 2 |" in text and "| two | Two | – 4 |" in text
    assert text.endswith("1. b: it is not one\n2. c: make one first\n3. a: too short\n4. k: too short\n")
    assert support.MARKS.keys() == {WORKS, REFUSED, NOTHING, NEEDS}

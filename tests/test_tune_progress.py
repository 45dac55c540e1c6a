"""A search tells what it measures, can be called off, and goes on where it was."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import accel
from accel import Plan
from accel.contract.trace import differences, trace
from accel.errors import AccelError
from accel.measure import drawn
from accel.measure.arms import Arm
from accel.measure.events import Event, Stopwatch, Watch
from accel.measure.floor import Floor
from accel.measure.journal import Journal
from accel.measure.search import search
from accel.measure.tune import Tuned, tune
from tests.test_tune import CANDIDATES, FRESH, PLAIN, SEARCHED, Planted

PROMPTS = [f"{number} {colour} star" for number in ("a", "one") for colour in "red green blue white".split()] * 2


def watched(measure: Planted) -> tuple[Any, list[Event]]:
    events: list[Event] = []
    watch = Watch(events.append, spent=itertools.count().__next__, budget=100.0)
    return search(PLAIN, CANDIDATES, measure, SEARCHED, FRESH, left=lambda: 1.0, watch=watch), events


def test_every_measurement_is_told_and_the_front_grows() -> None:
    found, events = watched(Planted(floor=33.0))
    phases = [phase for phase, _ in itertools.groupby(event.phase for event in events)]
    assert phases == ["plain curve", "search", "verdict"]
    assert all(0 < event.done <= event.expected and event.budget == 100.0 for event in events)
    assert [event.spent for event in events] == list(range(len(events)))
    assert {event.arm.name for event in events} == found.measured.keys()
    assert all(event.measured in event.points and event.measured.arm == event.arm for event in events)
    assert all(len(a.points) <= len(b.points) for a, b in zip(events, events[1:]))
    last = events[-1]
    assert list(last.points) == list(found.measured.values()) and last.front == found.front
    curve = [event for event in events if event.phase == "plain curve"]
    assert curve[0].best == PLAIN[0] and curve[-1].best == found.baseline != PLAIN[0]
    assert last.best == found.best and last.best.plan is not None


def test_what_the_listener_raises_ends_the_search() -> None:
    measure = Planted(floor=33.0)

    def stop(event: Event) -> None:
        if event.phase == "search":
            raise Enough

    with pytest.raises(Enough):
        search(PLAIN, CANDIDATES, measure, SEARCHED, FRESH, left=lambda: 1.0, watch=Watch(stop))
    assert measure.drawn <= len(FRESH) * (len(PLAIN) + 5) + 4  # the curve, and one plan on four prompts


class Enough(Exception):
    """Whoever is watching has seen enough."""


# On the bundled pipeline, with one plan


@pytest.fixture
def one_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel.measure.tune.plans", lambda pipe: [Plan.of("deepcache(warm_up=1, how=reuse)")])
    monkeypatch.setattr("accel.measure.tune.solvers", lambda pipe: ["own"])


def tuned(pipe: Any, journal: Path | None, **kw: Any) -> Tuned:
    call = {"height": 32, "width": 32}
    return tune(pipe, PROMPTS, **{"floor": "5 dB", "steps": 2, "call": call, "journal": journal, "budget": 1e6, **kw})


def stop_at(number: int) -> Callable[[Event], None]:
    count = itertools.count()

    def progress(event: Event) -> None:
        if next(count) == number:
            raise Enough

    return progress


def lines(journal: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_a_search_that_was_called_off_goes_on(tmp_path: Path, one_plan: None, monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, journal, events = accel.load("tiny"), tmp_path / "tuning.jsonl", list[Event]()
    pipe.set_progress_bar_config(disable=True)
    pipe("a star", num_inference_steps=1, output_type="latent")  # leaves its own settings on the pipeline
    before, scheduler = trace(pipe), pipe.scheduler
    for number in (1, 3):
        with pytest.raises(Enough):
            tuned(pipe, journal, progress=stop_at(number))
        assert accel.handles(pipe) == [] and pipe.scheduler is scheduler and differences(before, trace(pipe)) == []
    half = lines(journal)
    found = tuned(pipe, journal, progress=events.append)
    whole = lines(journal)
    assert whole[: len(half)] == half and len(whole) > len(half)
    kept = [(item["kind"], item["arm"], item.get("prompt")) for item in whole[1:]]
    assert len(set(kept)) == len(kept)  # nothing was measured twice
    assert {"plain curve", "verdict"} <= {event.phase for event in events}
    assert all(a.spent <= b.spent for a, b in zip(events, events[1:]))
    assert events[-1].spent > half[-1]["spent"]

    def nothing(*_: Any, **__: Any) -> torch.Tensor:
        raise AssertionError("it is all in the journal")

    monkeypatch.setattr(drawn, "draw", nothing)
    assert tuned(pipe, journal) == found and lines(journal) == whole
    assert tuned(pipe, journal, floor="200 dB").baseline is None  # another floor asks for nothing new here
    with pytest.raises(AccelError, match="other settings .seed: 0, now 1.: repeat it with those"):
        tuned(pipe, journal, seed=1)
    with torch.no_grad():
        next(pipe.unet.parameters()).add_(1)
    with pytest.raises(AccelError, match="weights: [0-9a-f]{8}, now [0-9a-f]{8}"):
        tuned(pipe, journal)


def test_a_call_that_cannot_be_written_down_has_no_journal(tmp_path: Path, one_plan: None) -> None:
    with pytest.raises(AccelError, match="only keep settings that are plain values"):
        tuned(accel.load("tiny"), tmp_path / "tuning.jsonl", call={"prompt_embeds": torch.zeros(1)})


def test_the_time_of_earlier_runs_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("accel.measure.events.time.monotonic", lambda: now[0])
    spent = Stopwatch()
    now[0] = 103.0
    assert spent() == 3.0
    spent.catch_up(60.0)
    assert spent() == 60.0
    now[0] = 105.0
    spent.catch_up(10.0)
    assert spent() == 62.0


def test_pictures_that_are_not_finite_are_below_every_floor(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = torch.full((2, 3, 8, 8), torch.nan)
    task = drawn.Task(accel.load("tiny"), ["a", "b"], Floor("psnr", 0.0), 4, None, {}, 0, 2)
    evaluator = drawn.Drawn(task, Journal(None, {}), Stopwatch())
    monkeypatch.setattr(drawn, "draw", lambda pipe, prompts, *_: broken[: len(prompts)])
    assert evaluator.margins(Arm(4), [0, 1]) == [-100.0, -100.0]

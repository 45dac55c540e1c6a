"""Runs on the bundled pipeline: what comes out, what is kept, and that nobody's run touches another's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

import accel
from accel.app import code, reading, streaming
from accel.app import studio as studios
from accel.app.comparing import Pair, compare
from accel.app.editing import edit
from accel.app.limits import Asked
from accel.app.running import PlainRuns, Step, run
from accel.app.server import start
from accel.app.studio import Model, Studio, Waiting
from accel.app.tabs.tune import begin_with
from accel.app.tuning import Progress, points, prompts_for, tune
from accel.app.ui import TITLE
from accel.errors import AccelError
from accel.measure.arms import Arm
from accel.measure.events import Measured
from accel.measure.floor import Floor
from accel.measure.intervals import Interval
from accel.pictures import to_image
from tests.app.conftest import Gate, holds

ASKED = Asked("tiny", "a red star on a white background", seed=3, steps=6)


def drawn(studio: Studio, visitor: str, asked: Asked, plan: str, honest: bool = False) -> tuple[Pair, list[Any]]:
    """A comparison with a plain run of its own, and the events."""
    events = list(
        studio.run(
            visitor,
            "tiny",
            lambda model, tell: compare(model.pipe, asked, accel.Plan.of(plan), PlainRuns(), honest, tell),
        )
    )
    return events[-1], [event for event in events[:-1] if not isinstance(event, Waiting)]


def plain(studio: Studio) -> torch.Tensor:
    """The plain picture by a direct call."""
    pipe = studio.model("tiny").pipe
    noise = torch.Generator().manual_seed(ASKED.seed)
    call = {"num_inference_steps": ASKED.steps, "guidance_scale": ASKED.guidance, "output_type": "pt"}
    return pipe(ASKED.prompt, generator=noise, **call).images[0]


def test_a_comparison(studio: Studio) -> None:
    pair, events = drawn(studio, "me", ASKED, "balanced", honest=True)
    steps = [(event.phase, event.number) for event in events if isinstance(event, Step)]
    assert steps[:7] == [("plain", number) for number in range(7)]
    assert steps[7:14] == [("accelerated", number) for number in range(7)]
    assert any(event.preview for event in events if isinstance(event, Step))
    assert torch.equal(pair.plain.picture, plain(studio))
    assert len(pair.plain.step_seconds) == len(pair.fast.step_seconds) == ASKED.steps
    assert 10 < pair.psnr < 60 and 0 < pair.ssim < 1
    assert pair.fast.report["techniques"]["deepcache"]["strip"] == "###.#."
    assert pair.fewer is not None and pair.fewer.long_steps == 24
    assert accel.handles(studio.model("tiny").pipe) == []


def test_plain_runs_are_drawn_once(studio: Studio) -> None:
    kept, pipe = PlainRuns(most=2), studio.model("tiny").pipe
    first, reused = kept.get(pipe, ASKED, 2, "plain", lambda event: None)
    again, kept_before = kept.get(pipe, ASKED, 2, "plain", lambda event: None)
    assert (reused, kept_before) == (False, True) and again is first
    for steps in (1, 3):
        kept.get(pipe, ASKED, steps, "plain", lambda event: None)
    assert kept.get(pipe, ASKED, 2, "plain", lambda event: None)[1] is False  # the oldest was given up


def test_lossless_is_identical(studio: Studio) -> None:
    pair, _ = drawn(studio, "me", ASKED, "lossless")
    assert torch.equal(pair.fast.picture, pair.plain.picture) and pair.psnr == float("inf")


@pytest.mark.parametrize("plan", [None, "balanced", "lossless+rehash"])
def test_a_stopped_run_leaves_nothing(studio: Studio, plan: str | None) -> None:
    pipe, before = studio.model("tiny").pipe, plain(studio)
    told = []

    def tell(event: Any) -> None:
        told.append(event)
        if isinstance(event, Step) and event.number == 4:
            raise streaming.Stopped

    with pytest.raises(streaming.Stopped):
        run(pipe, ASKED, ASKED.steps, accel.Plan.of(plan) if plan else None, "plain", tell)
    assert told[-1].number == 4
    assert accel.handles(pipe) == [] and type(pipe.scheduler).__name__ == "DDIMScheduler"
    assert torch.equal(plain(studio), before)


def test_a_crash_leaves_the_next_run_correct(studio: Studio) -> None:
    before = plain(studio)

    def crash(event: Any) -> None:
        if isinstance(event, Step) and event.number == 3:
            raise ZeroDivisionError

    def work(model: Any, tell: streaming.Tell) -> None:
        run(model.pipe, ASKED, ASKED.steps, accel.Plan.of("balanced"), "accelerated", crash)

    with pytest.raises(ZeroDivisionError):
        list(studio.run("me", "tiny", work))
    pair, _ = drawn(studio, "me", ASKED, "balanced")
    assert torch.equal(pair.plain.picture, before)


def test_two_visitors_at_once_get_the_pictures_they_get_alone(studio: Studio) -> None:
    alone = {plan: drawn(studio, plan, ASKED, plan)[0] for plan in ("balanced", "lossless")}
    together: dict[str, Pair] = {}

    def visit(plan: str) -> None:
        together[plan] = drawn(studio, plan, ASKED, plan)[0]

    threads = [threading.Thread(target=visit, args=(plan,)) for plan in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for plan, pair in alone.items():
        assert torch.equal(together[plan].fast.picture, pair.fast.picture)
        assert torch.equal(together[plan].plain.picture, pair.plain.picture)


def test_stopping_is_a_visitors_own_affair(studio: Studio, gate: Gate) -> None:
    gate.close()
    events = studio.run("me", "tiny", lambda model, tell: run(model.pipe, ASKED, 6, None, "plain", tell))
    assert isinstance(next(events), Step)
    assert studio.runs.stop("somebody else") == 0
    assert studio.runs.going("me") and not studio.runs.going("somebody else")
    assert studio.runs.stop("me", patience=30) == 1
    assert not studio.runs.going("me")
    with pytest.raises(streaming.Stopped):
        list(events)


def test_problems_are_told_while_somebody_runs(studio: Studio) -> None:
    model = studio.model("tiny")
    with accel.accelerate(model.pipe, "balanced"):  # somebody's run has these claims now
        assert studio.problems("tiny", accel.Plan.of("balanced")) == []
        (problem,) = studio.problems("tiny", accel.Plan.of("deepcache+residual"))
    assert "deepcache and residual both take over block_outputs" in problem


class TestLoading:
    @pytest.fixture
    def loads(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
        """A model takes until this is set."""
        finish = threading.Event()

        def load(self: Studio, name: str) -> Model:
            finish.wait()
            return Model(name, None, None, PlainRuns())

        monkeypatch.setattr(Studio, "_load", load)
        yield finish
        finish.set()

    def test_the_page_is_served_while_the_model_loads(self, loads: threading.Event) -> None:
        studio = Studio()
        demo, url = start(studio)
        try:
            studio.visited.set()
            assert TITLE in httpx.get(url, timeout=60).text and not studio.is_loaded("tiny")
            loads.set()
            assert holds(lambda: studio.is_loaded("tiny"))
        finally:
            demo.close()

    def test_it_waits_for_the_page_but_not_for_ever(
        self, loads: threading.Event, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        loads.set()
        visited, unvisited = Studio(), Studio()
        thread = visited.load_in_background()
        assert thread.is_alive() and not visited.is_loaded("tiny")
        visited.visited.set()
        thread.join()
        monkeypatch.setattr(studios, "_UNVISITED", 0.0)
        unvisited.load_in_background().join()
        assert visited.is_loaded("tiny") and unvisited.is_loaded("tiny")


class TestModels:
    def test_only_what_is_offered(self, tmp_path: Path) -> None:
        closed, opened = Studio(), Studio(allow_hub=True)
        for name in ("someone/model", str(tmp_path), "../tiny", ""):
            with pytest.raises(AccelError, match="this server offers tiny"):
                closed.check_offered(name)
        opened.check_offered("tiny")
        opened.check_offered("someone/model")

    def test_a_visitor_names_no_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "my" / "model").mkdir(parents=True)
        monkeypatch.chdir(tmp_path)
        opened = Studio(allow_hub=True)
        for name in (str(tmp_path), "my/model", "a/..", "../my", "owner/name/more", "https://x/y"):
            with pytest.raises(AccelError, match="no hub id"):
                opened.check_offered(name)


def test_the_python_that_is_offered_draws_the_same_picture(studio: Studio, capsys: pytest.CaptureFixture[str]) -> None:
    pair, _ = drawn(studio, "me", ASKED, "balanced")
    names: dict[str, Any] = {}
    exec(code.python(ASKED, pair.plan), names)
    assert "deepcache" in capsys.readouterr().out
    assert names["image"].tobytes() == to_image(pair.fast.picture).tobytes()


def test_an_edit_changes_the_masked_part_only(studio: Studio) -> None:
    from PIL import Image

    before = to_image(plain(studio))
    mask = Image.new("L", before.size)
    mask.paste(255, (32, 0, 64, 64))
    pipe = studio.model("tiny").pipe
    result = edit(pipe, Asked("tiny", "a green circle", steps=4), before, mask, 1.0, 128, lambda event: None)
    assert result.masked == 0.5 and result.picture.size == before.size
    left, right = (0, 0, 32, 64), (32, 0, 64, 64)
    assert result.picture.crop(left).tobytes() == before.crop(left).tobytes()
    assert result.picture.crop(right).tobytes() != before.crop(right).tobytes()


class TestTuning:
    likeness, facts = Floor("psnr", 20), Floor("facts", 40)

    def test_prompts(self) -> None:
        keep = str.strip
        prompts, judge = prompts_for("", True, 20, self.likeness, keep)
        assert len(prompts) == 20 and judge is None and {*prompts} < {*reading.known()}
        assert prompts_for("a\n\n b \n" * 8, True, 0, self.likeness, keep) == (["a", "b"] * 8, None)
        for text, bundled in (("a\nb", True), ("a\n" * 201, True), ("", False)):
            with pytest.raises(AccelError, match="prompts"):
                prompts_for(text, bundled, 16, self.likeness, keep)

    def test_facts_are_judged_where_they_are_known(self) -> None:
        prompts, judge = prompts_for("", True, 16, self.facts, str.strip)
        assert judge is not None and [scene.caption for scene in judge.scenes] == prompts
        with pytest.raises(AccelError, match="what your prompts state"):
            prompts_for("a\n" * 16, True, 16, self.facts, str.strip)

    @pytest.mark.parametrize("metric", ["dB", "points"])
    def test_what_the_page_begins_with_can_be_told(self, metric: str) -> None:
        floor, count = begin_with(metric)
        asked = Floor.of(f"{floor.value} {metric}")
        asked.check(count // 2)  # what cannot be told is refused
        assert asked.value == floor.value and asked.promise == {"dB": "same picture", "points": "same content"}[metric]

    def test_points_are_in_the_unit_of_the_floor(self) -> None:
        measured = Measured(Arm(4), Interval(0.05, 0.0, 0.1), 8, 0.5, fresh=True)
        (likeness,), (facts,) = (points([measured], [measured], floor) for floor in (self.likeness, self.facts))
        assert (likeness.above, facts.above) == (0.05, pytest.approx(5))

    def test_it_is_stopped_within_a_step(self, studio: Studio) -> None:
        pipe, before = studio.model("tiny").pipe, plain(studio)
        told: list[Any] = []

        def tell(event: Any) -> None:
            told.append(event)
            if sum(event is None for event in told) > 5 and any(isinstance(each, Progress) for each in told):
                raise streaming.Stopped

        prompts, judge = prompts_for("", True, 16, self.likeness, str.strip)
        with pytest.raises(streaming.Stopped):
            tune(pipe, prompts, judge, self.likeness, 3, 0.0, 4.0, tell)
        assert accel.handles(pipe) == [] and torch.equal(plain(studio), before)
        first = next(event for event in told if isinstance(event, Progress))
        assert first.text and 0 <= first.share <= 1

"""Compare: the same prompt and seed, plainly and under a plan."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr

from accel.app import code, plans, reading, timeline, words
from accel.app.limits import SEEDS, Asked, asked
from accel.app.streaming import Stopped
from accel.app.studio import Studio, Waiting
from accel.app.tabs.common import IN_TURN, STOPPED, Tab, shown, stored, told, visitor, waiting

if TYPE_CHECKING:
    from accel.app.comparing import Pair
    from accel.plan import Plan

PROMPT = "two green squares and a red star"
SOLVERS = [("the model's own", "own"), ("DPM++", "dpm++")]
SIZES = (64, 96, 128, 256, 512, 768, 1024)
_PIXELATED = 256
"""Smaller pictures are shown with their pixels, not blurred."""

_EMPTY = """<div class="empty"><h2>One picture, drawn twice</h2><p>Press <strong>Compare</strong>: the model draws your
prompt plainly, then again under the plan you picked, from the same seed. You see both, what the plan saved, what it
changed, and in which steps.</p></div>"""


class Compare(Tab):
    """One picture, drawn twice."""

    def layout(self) -> None:
        """Draw the tab and wire it up."""
        with gr.Row(elem_classes=["compare"]):
            with gr.Column(scale=1, min_width=280):
                self._controls()
            with gr.Column(scale=3, min_width=300):
                self._results()
        self._wire()

    def _controls(self) -> None:
        limits = self.studio.limits
        self.prompt = gr.Textbox(PROMPT, label="Prompt", lines=2, max_length=limits.prompt, submit_btn=False)
        self.plan = gr.Dropdown(plans.choices(), value="balanced", label="Plan", allow_custom_value=True)
        with gr.Row():
            self.go = gr.Button("Compare", variant="primary", min_width=120)
            self.halt = gr.Button("Stop", min_width=80)
        with gr.Row(elem_classes=["bottom"]):
            self.seed = gr.Number(7, label="Seed", precision=0, minimum=0, maximum=SEEDS - 1, min_width=100, scale=3)
            self.dice = gr.Button("New seed", min_width=90, scale=2)
        with gr.Accordion("More settings", open=False):
            self.steps = gr.Slider(1, limits.steps, value=min(25, limits.steps), step=1, label="Steps")
            self.guidance = gr.Slider(0, limits.guidance, value=4, step=0.5, label="Guidance")
            sizes = [(f"{size} × {size}", size) for size in SIZES if size <= limits.size]
            self.size = gr.Dropdown([("the model's own", 0), *sizes], value=0, label="Size", allow_custom_value=True)
            self.solver = gr.Dropdown(SOLVERS, value="own", label="Solver")
            self.honest = gr.Checkbox(
                True, label="Hold against fewer steps", info="Draws up to two more plain pictures, once per prompt."
            )
        gr.Examples(
            [[caption] for caption in list(reading.known())[:6]],
            [self.prompt],
            label="Prompts whose facts the reader checks",
            api_visibility="private",
        )

    def _results(self) -> None:
        self.stage = gr.HTML(_EMPTY, label="Progress")
        self.notes = gr.HTML(label="Notes", elem_classes=["slot"])
        with gr.Column(elem_classes=["results"]):
            with gr.Row():
                self.plain, self.plain_caption = _picture("Plain")
                self.fast, self.fast_caption = _picture("Accelerated")
            self.hero = gr.HTML(label="Verdict")
            self.grid = gr.HTML(label="Steps by sites")
            with gr.Row():
                self.slider = gr.ImageSlider(
                    label="Plain ◂ ▸ accelerated",
                    type="pil",
                    format="png",
                    interactive=False,
                    buttons=["fullscreen"],
                    elem_classes=["picture", "pixels"],
                )
                self.difference = gr.Image(
                    label="Difference",
                    format="png",
                    interactive=False,
                    elem_classes=["picture", "pixels"],
                    buttons=["download", "fullscreen"],
                )
            with gr.Accordion("As Python, and all numbers", open=False):
                self.code = gr.Code(label="Python", language="python", interactive=False, wrap_lines=True)
                self.numbers = gr.JSON(label="Numbers")

    def _wire(self) -> None:
        inputs = [self.prompt, self.seed, self.steps, self.guidance, self.size, self.solver, self.plan, self.honest]
        outputs = [self.stage, self.notes, self.plain, self.fast, self.plain_caption, self.fast_caption, self.hero]
        outputs += [self.grid, self.slider, self.difference, self.code, self.numbers]
        run = gr.on(
            [self.go.click, self.prompt.submit],
            self.compare,
            [*inputs, self.model],
            outputs,
            api_name="compare",
            show_progress="hidden",
            **IN_TURN,
        )
        pictures = [self.plain, self.fast, self.slider, self.difference]
        self.numbers.change(
            self.describe, self.numbers, pictures, queue=False, show_progress="hidden", api_visibility="private"
        )
        self.halt.click(self.stop, None, self.stage, cancels=[run], queue=False, api_name="stop")
        self.dice.click(dice, None, self.seed, queue=False, api_name="dice")

    def compare(
        self,
        prompt: str,
        seed: float,
        steps: float,
        guidance: float,
        size: float,
        solver: str,
        plan: str,
        honest: bool,
        model: str,
        request: gr.Request,
    ) -> Iterator[Any]:
        """Draw a prompt plainly and under a plan, from one seed; streams progress, and at last returns everything.

        ``plan`` is a preset's name, techniques joined by ``+``, or a plan file's JSON; a ``size`` of 0 is the model's
        own. The last element of the result holds all numbers.
        """
        with told():
            wanted, notes = asked(self.studio.limits, model, prompt, seed, steps, guidance, size, solver)
            events = self._compare(wanted, plan, bool(honest), notes, visitor(request))
            yield from shown(events, lambda text: {self.stage: text})

    def _compare(self, wanted: Asked, text: str, honest: bool, notes: list[str], who: str) -> Iterator[Any]:
        from accel.app.comparing import Pair, compare  # torch and diffusers: after the page is there

        yield {self.stage: words.message("Getting ready …"), self.notes: words.notes(notes)}
        plan = plans.parse(text, self.studio.limits.plan)
        pictures = None
        try:
            for event in self.studio.run(
                who, wanted.model, lambda model, tell: compare(model.pipe, wanted, plan, model.kept, honest, tell)
            ):
                if isinstance(event, Waiting):
                    yield {self.stage: waiting(event)}
                elif isinstance(event, Pair):
                    pictures = pictures or self._pictures(event)
                    yield self._shown(event, *pictures, notes, honest and event.fewer is None)
                else:
                    yield {self.stage: words.progress(event.phase, event.number, event.steps, event.preview)}
        except Stopped:
            yield {self.stage: words.message(STOPPED)}

    def _pictures(self, pair: Pair) -> tuple[str, str, str, int]:
        """Files of the plain picture, the accelerated one and their difference, and how far that is amplified."""
        from accel.app.comparing import difference
        from accel.pictures import to_image

        apart, factor = difference(pair.fast.picture, pair.plain.picture)
        return (
            stored(to_image(pair.plain.picture), "plain", self.plain),
            stored(to_image(pair.fast.picture), "accelerated", self.fast),
            stored(apart, "difference", self.difference),
            factor,
        )

    def _shown(
        self, pair: Pair, plain: str, fast: str, apart: str, factor: int, notes: list[str], busy: bool
    ) -> tuple[Any, ...]:
        """Every output of a finished comparison, in the order of the API."""
        wanted, bundled = pair.asked, pair.asked.model in _bundled()
        runs = (pair.plain, pair.fast) if bundled else ()
        seen = [reading.says(run.picture, wanted.prompt) for run in runs] or [None, None]
        told = words.numbers(pair, (seen[0], seen[1]), factor)
        return (
            words.message("Done." if not busy else "Both pictures are done; now the plain ones with fewer steps …"),
            words.notes([*notes, *told["notes"]]),
            plain,
            fast,
            words.caption(told, "plain", wanted.steps),
            words.caption(told, "accelerated", wanted.steps),
            words.hero(told, plans.label(pair.plan), busy),
            timeline.html(pair.fast.report or {}, pair.plain.step_seconds, pair.fast.step_seconds),
            (plain, fast),
            apart,
            code.python(wanted, pair.plan),
            told,
        )

    def describe(self, told: dict[str, Any] | None) -> tuple[Any, ...]:
        """Text alternatives and looks of the four pictures, which the API's values come without."""
        if not told:
            return gr.skip(), gr.skip(), gr.skip(), gr.skip()
        asked_for, times = told["request"], told["difference_amplified"]
        prompt, steps = asked_for["prompt"], asked_for["steps"]
        apart = f"Difference, amplified {times} times"
        look = ["picture", "pixels"] if (asked_for["size"] or 0) < _PIXELATED else ["picture"]
        return (
            gr.Image(alt_text=words.alt("Plain", prompt, steps), elem_classes=look),
            gr.Image(alt_text=words.alt("Accelerated", prompt, steps), elem_classes=look),
            gr.ImageSlider(elem_classes=look),
            gr.Image(label=apart, alt_text=f"{apart}: where the two pictures of “{prompt}” differ", elem_classes=look),
        )


class BesideCompare(Tab):
    """A tab that hands plans over to Compare, or takes pictures and settings from there."""

    def __init__(self, studio: Studio, model: gr.Dropdown, compare: Compare) -> None:
        super().__init__(studio, model)
        self.compare = compare


def dice() -> int:
    """A seed that nobody chose."""
    return random.randrange(SEEDS)


def offer(plan: Plan, name: str) -> gr.Dropdown:
    """The list of plans with one more, chosen."""
    text = json.dumps(plan.to_dict())
    return gr.Dropdown([*plans.choices(), (name, text)], value=text)


def _bundled() -> tuple[str, ...]:
    from accel import tiny

    return tiny.names()


def _picture(label: str) -> tuple[gr.Image, gr.HTML]:
    with gr.Column(min_width=200):
        image = gr.Image(
            label=label,
            format="png",
            type="pil",
            interactive=False,
            buttons=["download", "fullscreen"],
            elem_classes=["picture", "pixels"],
            alt_text=f"{label} picture, not drawn yet",
        )
        return image, gr.HTML(label=f"{label}: seconds")

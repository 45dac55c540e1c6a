"""Tune: search for the fastest plan above a floor, watch the front grow, stop at any time, pick a point."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import gradio as gr

from accel.app import front, plans, words
from accel.app.limits import checked_prompt, clamped
from accel.app.streaming import Stopped
from accel.app.studio import Studio, Waiting
from accel.app.tabs.common import IN_TURN, shown, stop, told, visitor, waiting
from accel.app.tabs.compare import Compare, offer
from accel.errors import AccelError

if TYPE_CHECKING:
    from accel.measure.events import Measured
    from accel.measure.tune import Tuned

_ABOUT = (
    "Draws plans and the plain pipeline with fewer steps on many prompts, and keeps what is fastest above the floor. "
    "Others wait for as long as it runs. Distances are to the plain picture of four times the steps."
)


class Tune:
    """The tab's components and what its buttons do.

    Args:
        studio: The models.
        model: The component that says which model a visitor uses.
        compare: The tab that uses the plan.
    """

    def __init__(self, studio: Studio, model: gr.Dropdown, compare: Compare) -> None:
        self.studio, self.model, self.compare = studio, model, compare

    def layout(self) -> None:
        """Draw the tab and wire it up."""
        limits = self.studio.limits
        gr.HTML(f'<p class="quiet">{_ABOUT}</p>', label="About this tab")
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self.floor = gr.Slider(20, 60, value=38, step=1, label="Floor in dB")
                self.steps = gr.Slider(4, limits.steps, value=min(15, limits.steps), step=1, label="Most steps")
                self.minutes = gr.Slider(0.5, limits.minutes, value=min(2, limits.minutes), step=0.5, label="Minutes")
                self.count = gr.Slider(16, 64, value=16, step=2, label="Bundled prompts")
                self.prompts = gr.Textbox(
                    label="Your own prompts instead, one per line (16 to 64)", lines=3, max_length=limits.prompt * 64
                )
                with gr.Row():
                    self.go = gr.Button("Tune", variant="primary", min_width=120)
                    self.halt = gr.Button("Stop tuning", min_width=80)
            with gr.Column(scale=2, min_width=300):
                self.stage = gr.HTML(label="Progress of tuning")
                self.plot = gr.HTML(front.svg([], "dB"), label="Front")
                self.pick = gr.Dropdown([], label="A plan from the front", interactive=True, allow_custom_value=True)
                self.use = gr.Button("Use it in Compare")
                with gr.Accordion("The result in full, and what was not chosen", open=False):
                    self.result = gr.JSON(label="Result")
        self._wire()

    def _wire(self) -> None:
        run = self.go.click(
            self.tune,
            [self.floor, self.steps, self.minutes, self.count, self.prompts, self.model],
            [self.stage, self.plot, self.pick, self.result],
            api_name="tune",
            show_progress="hidden",
            **IN_TURN,
        )
        self.halt.click(self.stop, None, self.stage, cancels=[run], queue=False, api_name="stop_tuning")
        compare = self.compare
        self.use.click(self.use_point, self.pick, [compare.plan, compare.steps, compare.solver], api_name="use_point")

    def tune(
        self,
        floor: float,
        steps: float,
        minutes: float,
        count: float,
        prompts: str,
        model: str,
        request: gr.Request,
    ) -> Iterator[Any]:
        """Find the fastest plan that keeps ``floor`` (dB); streams the front, and at last returns the plan."""
        limits, notes = self.studio.limits, []  # type: ignore[var-annotated]
        with told():
            level = clamped(notes, "floor", floor, 0, 100)
            most = int(clamped(notes, "steps", steps, 2, limits.steps))
            seconds = 60 * clamped(notes, "minutes", minutes, 0, limits.minutes)
            number = int(clamped(notes, "prompts", count, 16, 64))
            events = self._tune(f"{level:g} dB", most, seconds, number, prompts or "", model, notes, visitor(request))
            yield from shown(events, lambda text: (text, gr.skip(), gr.skip(), gr.skip()))

    def _tune(
        self, floor: str, steps: int, seconds: float, count: int, text: str, name: str, notes: list[str], who: str
    ) -> Iterator[Any]:
        from accel.app.tuning import Progress, points, prompts_for, tune  # torch and diffusers: after the page is there
        from accel.commands.generate import BUNDLED_GUIDANCE
        from accel.measure.tune import Tuned

        def work(model: Any, tell: Any) -> Tuned:
            texts = prompts_for(text, model.bundled, count, lambda line: checked_prompt(line, self.studio.limits))
            return tune(model.pipe, texts, floor, steps, seconds, BUNDLED_GUIDANCE, tell)

        yield words.message("Getting ready …"), front.svg([], "dB"), gr.Dropdown([], value=None), None
        try:
            for event in self.studio.run(who, name, work):
                if isinstance(event, Waiting):
                    yield waiting(event), gr.skip(), gr.skip(), gr.skip()
                elif isinstance(event, Progress):
                    yield _progress(event.text, event.share), front.svg(event.points, "dB"), gr.skip(), gr.skip()
                elif isinstance(event, Tuned):
                    shown = front.svg(points(event.front, event.front), "dB")
                    choices = ways(event.front)
                    chosen = next((value for _, value in choices if _is(value, event)), None)
                    picked = gr.Dropdown(choices, value=chosen or (choices[0][1] if choices else None))
                    yield words.message(str(event)) + words.notes(notes), shown, picked, told_of(event)
        except Stopped:
            yield words.message("Stopped. The pipeline is as it was before."), gr.skip(), gr.skip(), gr.skip()

    def use_point(self, way: str) -> tuple[Any, int, str]:
        """Offer a point of the front in Compare, with its steps and solver; ``way`` is its JSON."""
        with told():
            try:
                point = json.loads(way or "")
                plan = plans.parse(json.dumps(point["plan"]), self.studio.limits.plan)
                steps, solver = int(point["steps"]), str(point["solver"])
            except (ValueError, TypeError, KeyError) as error:
                if isinstance(error, AccelError):
                    raise
                raise AccelError("there is no point to use yet: tune first") from None
            steps = int(clamped([], "steps", steps, 1, self.studio.limits.steps))
            return offer(plan, f"tuned · {plans.label(plan)}"), steps, solver

    def stop(self, request: gr.Request) -> str:
        """Stop what this visitor runs; the pipeline is left as it was before."""
        return stop(self.studio, request)


def _progress(text: str, share: float) -> str:
    return words.message(text) + f'<progress max="1" value="{share:.3f}" aria-label="Time spent"></progress>'


def ways(measured: Sequence[Measured]) -> list[tuple[str, str]]:
    """(label, JSON) of each point, as `use_point` reads it; the plain pipeline is a plan without techniques."""
    from accel.plan import Plan

    return [
        (
            f"{each.arm.name}: {each.seconds:.2f} s, {each.margin.value:+.1f} dB",
            _way(each.arm.plan or Plan(), each.arm.steps, each.arm.solver),
        )
        for each in measured
    ]


def told_of(found: Tuned) -> dict[str, Any]:
    """The result as JSON: the plan with its fingerprint, how to call it, and what was not chosen and why."""
    return {
        "plan": found.plan.to_dict(),
        "steps": found.steps,
        "solver": found.solver,
        "baseline": found.baseline,
        "gain": vars(found.gain) if found.gain else None,
        "tried": found.tried,
        "candidates": found.candidates,
        "rejected": dict(found.rejected),
    }


def _way(plan: Any, steps: int, solver: str) -> str:
    return json.dumps({"plan": plan.to_dict(), "steps": steps, "solver": solver})


def _is(way: str, found: Tuned) -> bool:
    point = json.loads(way)
    same = point["plan"]["techniques"] == found.plan.to_dict()["techniques"]
    return bool(same and (point["steps"], point["solver"]) == (found.steps, found.solver))

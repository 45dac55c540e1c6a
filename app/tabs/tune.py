"""Tune: search for the fastest plan above a floor, watch the front grow, stop at any time, pick a point."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr

from accel.app import front, plans, words
from accel.app.limits import checked_prompt, clamped
from accel.app.streaming import Stopped
from accel.app.studio import Waiting
from accel.app.tabs.common import IN_TURN, STOPPED, shown, told, visitor, waiting
from accel.app.tabs.compare import BesideCompare, offer
from accel.errors import AccelError
from accel.measure.floor import Floor

if TYPE_CHECKING:
    from accel.measure.tune import Tuned

_ABOUT = (
    "Draws plans and the plain pipeline with fewer steps on many prompts, and keeps what is fastest above the floor. "
    "Others wait for as long as it runs. All are held against the plain picture of four times the steps."
)
_METRICS = [("likeness of the pictures (dB)", "dB"), ("facts of the prompts (points)", "points")]
_FLOORS = {
    "dB": (38, 16, "Mean PSNR, at least so high. 30: alike at a glance; 40: hardly to be told apart."),
    "points": (
        4,
        64,
        "So many in a hundred of the facts that prompts state may be lost; the picture may differ. N bundled prompts "
        "can tell a loss of 200 / N points: 64 of them 4, 200 of them 1.",
    ),
}
"""Metric to the floor and the number of prompts to begin with, and what it means."""

_COUNTS = (16, 200)
"""Fewest and most prompts."""


class Tune(BesideCompare):
    """What to look for, and the front that is found."""

    def layout(self) -> None:
        """Draw the tab and wire it up."""
        limits = self.studio.limits
        gr.HTML(f'<p class="quiet">{_ABOUT}</p>', label="About this tab")
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self.metric = gr.Dropdown(_METRICS, value="dB", label="What must be kept", filterable=False)
                self.floor = gr.Number(_FLOORS["dB"][0], label="Floor", minimum=0, maximum=100, info=_FLOORS["dB"][-1])
                self.steps = gr.Slider(4, limits.steps, value=min(15, limits.steps), step=1, label="Most steps")
                self.minutes = gr.Slider(0.5, limits.minutes, value=min(2, limits.minutes), step=0.5, label="Minutes")
                self.count = gr.Slider(*_COUNTS, value=_COUNTS[0], step=2, label="Bundled prompts")
                self.prompts = gr.Textbox(
                    label=f"Your own prompts instead, one per line ({_COUNTS[0]} to {_COUNTS[1]})",
                    lines=3,
                    max_length=limits.prompt * _COUNTS[1],
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
            [self.floor, self.metric, self.steps, self.minutes, self.count, self.prompts, self.model],
            [self.stage, self.plot, self.pick, self.result],
            api_name="tune",
            show_progress="hidden",
            **IN_TURN,
        )
        self.metric.input(
            begin_with,
            self.metric,
            [self.floor, self.count],
            queue=False,
            show_progress="hidden",
            api_visibility="private",
        )
        self.halt.click(self.stop, None, self.stage, cancels=[run], queue=False, api_name="stop_tuning")
        compare = self.compare
        self.use.click(self.use_point, self.pick, [compare.plan, compare.steps, compare.solver], api_name="use_point")

    def tune(
        self,
        floor: float,
        metric: str,
        steps: float,
        minutes: float,
        count: float,
        prompts: str,
        model: str,
        request: gr.Request,
    ) -> Iterator[Any]:
        """Find the fastest plan that keeps a floor; streams the front, and at last returns the plan.

        The ``floor`` is in the unit that ``metric`` names: ``dB`` of likeness, or ``points`` of stated facts lost.
        """
        limits, notes = self.studio.limits, []  # type: ignore[var-annotated]
        with told():
            level = Floor.of(f"{clamped(notes, 'floor', floor, 0, 100):g} {metric}")
            most = int(clamped(notes, "steps", steps, 2, limits.steps))
            seconds = 60 * clamped(notes, "minutes", minutes, 0, limits.minutes)
            number = int(clamped(notes, "prompts", count, *_COUNTS))
            events = self._tune(level, most, seconds, number, prompts or "", model, notes, visitor(request))
            yield from shown(events, lambda text: (text, gr.skip(), gr.skip(), gr.skip()))

    def _tune(
        self, floor: Floor, steps: int, seconds: float, count: int, text: str, name: str, notes: list[str], who: str
    ) -> Iterator[Any]:
        from accel.app.tuning import UNITS, Progress, points, prompts_for, tune  # torch: after the page is there
        from accel.commands.generate import BUNDLED_GUIDANCE
        from accel.measure.tune import Tuned

        def work(model: Any, tell: Any) -> Tuned:
            limits = self.studio.limits
            texts, judge = prompts_for(text, model.bundled, count, floor, lambda line: checked_prompt(line, limits))
            return tune(model.pipe, texts, judge, floor, steps, seconds, BUNDLED_GUIDANCE, tell)

        unit = UNITS[floor.kind]
        yield words.message("Getting ready …"), front.svg([], unit), gr.Dropdown([], value=None), None
        try:
            for event in self.studio.run(who, name, work):
                if isinstance(event, Waiting):
                    yield waiting(event), gr.skip(), gr.skip(), gr.skip()
                elif isinstance(event, Progress):
                    yield _progress(event.text, event.share), front.svg(event.points, unit), gr.skip(), gr.skip()
                elif isinstance(event, Tuned):
                    shown = front.svg(points(event.front, event.front, floor), unit)
                    choices = ways(event)
                    chosen = next((value for _, value in choices if _is(value, event)), None)
                    picked = gr.Dropdown(choices, value=chosen or (choices[0][1] if choices else None))
                    yield words.message(str(event)) + words.notes(notes), shown, picked, told_of(event)
        except Stopped:
            yield words.message(STOPPED), gr.skip(), gr.skip(), gr.skip()

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


def _progress(text: str, share: float) -> str:
    return words.message(text) + f'<progress max="1" value="{share:.3f}" aria-label="Time spent"></progress>'


def begin_with(metric: str) -> tuple[gr.Number, int]:
    """A floor in another metric, and as many prompts as can tell it."""
    level, prompts, info = _FLOORS[metric]
    return gr.Number(level, info=info), prompts


def ways(found: Tuned) -> list[tuple[str, str]]:
    """(label, JSON) of each point of the front, as `use_point` reads it; the plain pipeline is an empty plan."""
    from accel.app.tuning import UNITS, above
    from accel.plan import Plan

    return [
        (
            f"{each.arm.name}: {each.seconds:.2f} s, {above(each, found.floor):+.1f} {UNITS[found.floor.kind]}",
            _way(each.arm.plan or Plan(), each.arm.steps, each.arm.solver),
        )
        for each in found.front
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

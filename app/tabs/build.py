"""Build a plan: switch techniques on and off, and be told at once whether they fit each other and the model."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import gradio as gr

from accel.app import code, plans
from accel.app.building import BRICKS, spell
from accel.app.limits import asked
from accel.app.tabs.common import told
from accel.app.tabs.compare import BesideCompare, offer

_START = "deepcache+guidance"

# The page makes the file itself: nothing is written on the server.
_DOWNLOAD = """(text) => {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  link.download = "plan.json";
  link.click();
  URL.revokeObjectURL(link.href);
}"""


class Build(BesideCompare):
    """Switches for techniques, and the plan that they make."""

    def layout(self, tab: gr.Tab) -> None:
        """Draw the tab and wire it up; the plan is checked anew whenever the tab is opened."""
        with gr.Row():
            with gr.Column(scale=3, min_width=300):
                switches, controls = self._bricks()
            with gr.Column(scale=2, min_width=300):
                self._plan()
        self._wire(tab, switches, controls)

    def _bricks(self) -> tuple[list[gr.Checkbox], list[list[gr.Dropdown]]]:
        switches, controls = [], []
        for brick in BRICKS:
            with gr.Column(elem_classes=["brick"]):
                switches.append(
                    gr.Checkbox(
                        brick.technique in _START.split("+"),
                        label=brick.title,
                        info=brick.sentence,
                        container=False,
                    )
                )
                with gr.Row(elem_classes=["settings"]):
                    controls.append(
                        [
                            gr.Dropdown(
                                list(control.choices),
                                value=control.choices[0],
                                label=f"{brick.title}: {control.label}",
                                min_width=140,
                                filterable=False,
                            )
                            for control in brick.controls
                        ]
                    )
        return switches, controls

    def _plan(self) -> None:
        limits = self.studio.limits
        self.text = gr.Textbox(_START, label="Plan as text", lines=2, max_lines=6, max_length=limits.plan)
        self.verdict = gr.HTML(label="Does it fit?")
        self.use = gr.Button("Use in Compare", variant="primary")
        with gr.Row():
            self.save = gr.Button("Download plan.json", min_width=150)
            self.load = gr.UploadButton("Upload a plan", file_types=[".json"], type="binary", min_width=150)
        self.code = gr.Code(label="As Python", language="python", interactive=False, wrap_lines=True)
        self.json = gr.Code(label="plan.json", language="json", interactive=False, wrap_lines=True)

    def _wire(self, tab: gr.Tab, switches: list[gr.Checkbox], controls: list[list[gr.Dropdown]]) -> None:
        flat: list[Any] = [*switches, *(each for row in controls for each in row)]
        for component in flat:
            component.input(self.spell, flat, self.text, queue=False, show_progress="hidden", api_visibility="private")
        compare = self.compare
        settings = [compare.prompt, compare.seed, compare.steps, compare.guidance, compare.size, compare.solver]
        gr.on(  # one event, so that an earlier answer never comes after a later one
            [self.text.change, tab.select],
            self.check,
            [self.text, *settings, self.model],
            [self.verdict, self.code, self.json],
            api_name="check",
            show_progress="hidden",
            trigger_mode="always_last",
        )
        self.load.upload(self.upload, self.load, self.text, api_name="upload_plan")
        self.save.click(None, self.json, None, js=_DOWNLOAD, api_visibility="private")
        self.use.click(self.use_plan, self.text, compare.plan, api_name="use_plan")

    def spell(self, *values: Any) -> str:
        """The plan of the switches and controls, in the order of the page."""
        rest = iter(values[len(BRICKS) :])
        settings = [[next(rest) for _ in brick.controls] for brick in BRICKS]
        return spell(values[: len(BRICKS)], settings)

    def check(
        self,
        plan: str,
        prompt: str,
        seed: float,
        steps: float,
        guidance: float,
        size: float,
        solver: str,
        model: str,
    ) -> tuple[str, str, str]:
        """Say whether a plan fits a model; returns the verdict as HTML, the plan as Python and as JSON."""
        try:
            parsed = plans.parse(plan, self.studio.limits.plan)
            problems = self.studio.problems(model, parsed)
            wanted, _ = asked(self.studio.limits, model, prompt or "a red star", seed, steps, guidance, size, solver)
        except ValueError as error:
            return verdict([str(error)]), "", ""
        return verdict(problems), code.python(wanted, parsed), json.dumps(parsed.to_dict(), indent=2)

    def upload(self, file: bytes) -> str:
        """Read an uploaded plan file; returns the plan's text."""
        with told():
            return plans.uploaded(file, self.studio.limits.plan)

    def use_plan(self, plan: str) -> gr.Dropdown:
        """Offer a plan in Compare, and choose it there."""
        with told():
            parsed = plans.parse(plan, self.studio.limits.plan)
            gr.Info("Compare uses this plan now.", duration=3)
            return offer(parsed, f"yours · {plans.label(parsed)}")


def verdict(problems: list[str]) -> str:
    """Whether a plan fits, and every reason why not."""
    if not problems:
        return '<div class="verdict" role="status"><p>It fits: nothing stands against this plan.</p></div>'
    items = "".join(f"<li>{escape(problem)}</li>" for problem in problems)
    return f'<div class="verdict refused" role="status"><p>This plan would be refused:</p><ul>{items}</ul></div>'

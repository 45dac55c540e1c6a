"""Edit: paint over a part of a picture and have it drawn anew."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import gradio as gr

from accel.app import words
from accel.app.limits import Asked, asked, clamped
from accel.app.streaming import Stopped
from accel.app.studio import Waiting
from accel.app.tabs.common import IN_TURN, STOPPED, shown, stored, told, visitor, waiting
from accel.app.tabs.compare import BesideCompare
from accel.errors import AccelError

if TYPE_CHECKING:
    from PIL import Image

_NOTE = (
    "Plain inpainting: every step computes the whole picture. Recomputing only what an edit touches is not built yet, "
    "so an edit takes as long as a picture."
)
_CANVAS = (512, 512)


class Edit(BesideCompare):
    """A picture with a mask, and what is drawn there."""

    def layout(self) -> None:
        """Draw the tab and wire it up."""
        gr.HTML(f'<p class="quiet">{_NOTE}</p>', label="About this tab")
        with gr.Row():
            with gr.Column(min_width=300):
                self.canvas = gr.ImageEditor(
                    label="Paint over what is to be drawn anew",
                    type="pil",
                    format="png",
                    image_mode="RGBA",
                    sources=("upload",),
                    transforms=(),
                    layers=False,
                    canvas_size=_CANVAS,
                    fixed_canvas=True,
                    brush=gr.Brush(default_size=48, colors=["#ffffff"], color_mode="fixed"),
                    elem_id="canvas",
                )
                self.take = gr.Button("Take the plain picture from Compare")
            with gr.Column(min_width=300):
                self.prompt = gr.Textbox("a yellow heart", label="Prompt for the edit", max_length=500)
                self.strength = gr.Slider(0.1, 1, value=1, step=0.05, label="Strength")
                with gr.Row():
                    self.go = gr.Button("Edit", variant="primary", min_width=120)
                    self.halt = gr.Button("Stop editing", min_width=80)
                self.stage = gr.HTML(label="Progress of the edit")
                self.result = gr.Image(
                    label="Edited", type="pil", format="png", interactive=False, elem_classes=["picture", "pixels"]
                )
        self._wire()

    def _wire(self) -> None:
        compare = self.compare
        settings = [compare.seed, compare.steps, compare.guidance, compare.size]
        run = self.go.click(
            self.edit,
            [self.canvas, self.prompt, self.strength, *settings, self.model],
            [self.stage, self.result],
            api_name="edit",
            show_progress="hidden",
            **IN_TURN,
        )
        self.halt.click(self.stop, None, self.stage, cancels=[run], queue=False, api_name="stop_edit")
        self.take.click(self.take_over, compare.plain, self.canvas, api_name="take_picture")

    def edit(
        self,
        canvas: dict[str, Any],
        prompt: str,
        strength: float,
        seed: float,
        steps: float,
        guidance: float,
        size: float,
        model: str,
        request: gr.Request,
    ) -> Iterator[Any]:
        """Draw the painted part of a picture anew; what is outside of it keeps every bit.

        ``canvas`` holds the picture as ``background`` and what was painted as ``layers``.
        """
        with told():
            wanted, notes = asked(self.studio.limits, model, prompt, seed, steps, guidance, size, "own")
            share = clamped(notes, "strength", strength, 0.05, 1.0)
            events = self._edit(canvas, wanted, share, notes, visitor(request))
            yield from shown(events, lambda text: (text, gr.skip()))

    def _edit(
        self, canvas: dict[str, Any], wanted: Asked, strength: float, notes: list[str], who: str
    ) -> Iterator[Any]:
        from accel.app.editing import Edited, edit, mask_of  # torch and diffusers: after the page is there

        picture, mask = mask_of(canvas)
        most = self.studio.limits.size
        try:
            for event in self.studio.run(
                who,
                wanted.model,
                lambda model, tell: edit(model.pipe, wanted, picture, mask, strength, most, tell),
            ):
                if isinstance(event, Waiting):
                    yield waiting(event), gr.skip()
                elif isinstance(event, Edited):
                    text = f"Done in {event.seconds:.2f} s: {100 * event.masked:.0f} % of the picture drawn anew."
                    alt = words.alt("Edited", wanted.prompt, wanted.steps)
                    file = stored(event.picture, "edited", self.result)
                    yield words.message(text) + words.notes(notes), gr.Image(file, alt_text=alt)
                else:
                    yield words.progress(event.phase, event.number, event.steps, event.preview), gr.skip()
        except Stopped:
            yield words.message(STOPPED), gr.skip()

    def take_over(self, picture: Image.Image | None) -> str:
        """The plain picture of Compare as the picture to edit."""
        from PIL import Image

        with told():
            if picture is None:
                raise AccelError("there is no picture in Compare yet: press Compare there first")
            size = max(_CANVAS[0] // picture.width, 1) * picture.width
            edges = (size, size * picture.height // picture.width)
            return stored(picture.convert("RGB").resize(edges, Image.Resampling.NEAREST), "taken", self.canvas)

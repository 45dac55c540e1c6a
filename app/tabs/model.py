"""Model: which pipeline is used, and on what it runs."""

from __future__ import annotations

from html import escape
from typing import Any

import gradio as gr

from accel.app.studio import Studio
from accel.app.tabs.common import IN_TURN, told


class ModelTab:
    """The tab's components and what its buttons do. `model` is used by all the other tabs.

    Args:
        studio: The models.
    """

    def __init__(self, studio: Studio) -> None:
        self.studio = studio
        self.model = gr.Dropdown(
            list(studio.models),
            value=studio.models[0],
            label="Model",
            allow_custom_value=studio.allow_hub,
            info="The bundled pipeline, or a hub id (owner/name)."
            if studio.allow_hub
            else "This server's owner decides which are offered.",
            render=False,
        )

    def layout(self) -> None:
        """Draw the tab and wire it up."""
        with gr.Row():
            with gr.Column(scale=1, min_width=280):
                self.model.render()
                self.go = gr.Button("Load it now")
            with gr.Column(scale=2, min_width=300):
                self.about = gr.HTML('<p class="quiet">Load it to see what it is made of.</p>', label="About the model")
        self.go.click(self.load, self.model, self.about, api_name="load_model", **IN_TURN)

    def load(self, model: str) -> str:
        """Load a model that is offered here; returns what it is, and on what it runs, as HTML."""
        with told():
            loaded = self.studio.model(model)
        return table(facts(loaded.pipe))


def facts(pipe: Any) -> dict[str, str]:
    """What a visitor wants to know of a pipeline."""
    import torch

    import accel
    from accel.measure.solvers import solvers
    from accel.measure.timing import machine

    where = machine(pipe.device)
    target = accel.Target.of(pipe)
    denoisers = ", ".join(
        f"{d.name}: {type(d.module).__name__}, {sum(p.numel() for p in d.module.parameters()) / 1e6:.1f} M parameters"
        for d in target.denoisers
    )
    return {
        "Pipeline": type(pipe).__name__,
        "Denoiser": denoisers,
        "Solvers": f"{type(pipe.scheduler).__name__} ({', '.join(solvers(pipe))})",
        "Precision": str(pipe.dtype).removeprefix("torch."),
        "Device": f"{pipe.device}: {where['device']}",
        "Threads": f"{torch.get_num_threads()} of {where['cores']} cores",
        "Versions": f"torch {where['torch']}, diffusers {where['diffusers']}, accel {accel.__version__}",
    }


def table(rows: dict[str, str]) -> str:
    """Names and values as a table."""
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows.items()
    )
    return f'<table class="facts-table">{body}</table>'

"""The page: a header and its tabs."""

from __future__ import annotations

import gradio as gr

from accel.app.studio import Studio
from accel.app.tabs.build import Build
from accel.app.tabs.common import visitor
from accel.app.tabs.compare import Compare
from accel.app.tabs.edit import Edit
from accel.app.tabs.model import ModelTab
from accel.app.tabs.tune import Tune

TITLE = "accel: see what acceleration does to your picture"
_HEADER = """<header class="top"><h1>accel<span>.</span></h1><p>See what acceleration does to your picture: what it
saves, what it changes, and in which steps.</p></header>"""

_QUEUE = 32
"""Requests that wait at most; what comes then is told to come back."""

_KEPT = 3600
"""Seconds after which pictures are deleted from the server."""


def build_demo(studio: Studio) -> gr.Blocks:
    """The page over these models. Loads none of them."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(_KEPT, _KEPT)) as demo:
        gr.HTML(_HEADER, label="Header")
        chosen = ModelTab(studio)
        compare = Compare(studio, chosen.model)
        build = Build(studio, chosen.model, compare)
        with gr.Tabs():
            with gr.Tab("Compare"):
                compare.layout()
            with gr.Tab("Build a plan") as tab:
                build.layout(tab)
            with gr.Tab("Edit"):
                Edit(studio, chosen.model, compare).layout()
            with gr.Tab("Tune"):
                Tune(studio, chosen.model, compare).layout()
            with gr.Tab("Model"):
                chosen.layout()

        def left(request: gr.Request) -> None:
            studio.runs.stop(visitor(request))

        demo.load(lambda: studio.visited.set(), queue=False, show_progress="hidden", api_visibility="private")
        demo.unload(left)
    demo.queue(max_size=_QUEUE, default_concurrency_limit=4)
    return demo

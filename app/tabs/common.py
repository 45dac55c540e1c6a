"""What all tabs do alike: errors for people, who is asking, and events that use a model."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from accel.app import words
from accel.app.studio import Studio, Waiting
from accel.errors import AccelError

if TYPE_CHECKING:
    from PIL import Image

IN_TURN: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
"""Of every event that runs a model: one at a time, the others wait in the queue."""

STOPPED = "Stopped. The pipeline is as it was before."

_PATIENCE = 5.0
"""Seconds that a stop waits for the run to be over."""


class Tab:
    """A tab of the page: its components, and what its buttons do.

    Args:
        studio: The models.
        model: The component that says which model a visitor uses.
    """

    def __init__(self, studio: Studio, model: gr.Dropdown) -> None:
        self.studio, self.model = studio, model

    def stop(self, request: gr.Request) -> str:
        """Stop what this visitor runs; the pipeline is left as it was before."""
        who = visitor(request)
        if not self.studio.runs.stop(who, _PATIENCE):
            return words.message("Nothing of yours is running.")
        going = self.studio.runs.going(who)
        return words.message("Stopping after the step that is being computed …" if going else STOPPED)


@contextmanager
def told() -> Iterator[None]:
    """Inside, what a visitor can mend is shown to them; anything else stays an error of the server."""
    try:
        yield
    except AccelError as error:
        # The page shows errors as HTML.
        raise gr.Error(escape(str(error), quote=False), print_exception=False) from None


def shown(events: Iterator[Any], show: Callable[[str], Any]) -> Iterator[Any]:
    """Pass on ``events``; a visitor's mistake also stays on the page, as ``show(html)``, when its message has gone."""
    try:
        yield from events
    except AccelError as error:
        yield show(words.message(str(error), "problem"))
        raise


def visitor(request: gr.Request | None) -> str:
    """Who asks: one browser tab, or one client of the API."""
    return str(getattr(request, "session_hash", None) or "nobody")


def stored(picture: Image.Image, name: str, component: gr.components.Component) -> str:
    """Write a picture to a file of its own among those that gradio serves and deletes after a while; returns its path.

    A picture that gradio writes is named after its content and written anew each time it is shown, also while somebody
    is fetching it: they get half of it, or more than was announced. This name is new, and nobody knows it before the
    file is whole.
    """
    path = Path(component.GRADIO_CACHE) / f"{name}-{secrets.token_hex(16)}.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.save(path)
    return str(path)


def waiting(event: Waiting) -> str:
    """What the page shows while a run waits."""
    return words.message(f"Waiting: {event.why} …")

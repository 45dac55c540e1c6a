"""What all tabs do alike: errors for people, who is asking, and events that use a model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

import gradio as gr

from accel.app import words
from accel.app.studio import Studio, Waiting
from accel.errors import AccelError

IN_TURN: dict[str, Any] = {"concurrency_id": "model", "concurrency_limit": 1}
"""Of every event that runs a model: one at a time, the others wait in the queue."""

_PATIENCE = 5.0
"""Seconds that a stop waits for the run to be over."""


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


def stop(studio: Studio, request: gr.Request | None) -> str:
    """Stop this visitor's runs; returns what the page says about it."""
    if studio.runs.stop(visitor(request), _PATIENCE):
        return words.message("Stopped. The pipeline is as it was before.")
    return words.message("Nothing of yours is running.")


def waiting(event: Waiting) -> str:
    """What the page shows while a run waits."""
    return words.message(f"Waiting: {event.why} …")

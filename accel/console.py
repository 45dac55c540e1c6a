"""What the command line says beside its results: warnings as one line each, libraries' chatter left out."""

from __future__ import annotations

import logging
import os
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from accel.errors import AccelWarning

_NOTICES = ("requires torchvision",)
"""Parts of library messages that tell a user of this command nothing."""

_LONGEST = 400
"""Characters of a library's message that are shown."""


def one_line(message: object) -> str:
    """A message of several lines as one; listed points are joined by semicolons."""
    head, *rest = [line.strip().removeprefix("- ") for line in str(message).splitlines() if line.strip()] or [""]
    return f"{head} {'; '.join(rest)}".strip()


def say(kind: str, message: object) -> None:
    """One line on standard error: ``accel: error: …``."""
    print(f"accel: {kind}: {one_line(message)}", file=sys.stderr)


@contextmanager
def plain_warnings() -> Iterator[None]:
    """Inside, a warning is one line on standard error, and each is said once."""
    said: set[str] = set()

    def show(message: Any, *_: Any, **__: Any) -> None:
        text = one_line(message)
        if text not in said:
            said.add(text)
            say("warning", text)

    with warnings.catch_warnings():
        # Notices to developers of what a library will change; users of a command can do nothing about them.
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        warnings.simplefilter("always", AccelWarning)
        warnings.showwarning = show
        yield


@contextmanager
def quiet_libraries() -> Iterator[None]:
    """Inside, diffusers and transformers load without progress bars and notices, and real warnings are one line.

    What diffusers logs as a warning while a pipeline runs (a prompt that is too long, say) comes through as a warning.
    Loading is the noisy part: wrap it in `loading` besides.
    """
    # Read when transformers is imported, and its notices come from that very import.
    before = os.environ.get("TRANSFORMERS_VERBOSITY")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    log = logging.getLogger("diffusers")
    handlers, level, tokens = log.handlers[:], log.level, transformers_logging.get_verbosity()
    bars = diffusers_logging.is_progress_bar_enabled(), transformers_logging.is_progress_bar_enabled()
    log.handlers[:] = [_AsWarning(logging.WARNING)]
    diffusers_logging.disable_progress_bar()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        log.handlers[:] = handlers
        log.setLevel(level)
        transformers_logging.set_verbosity(tokens)
        for on, switch in zip(bars, (diffusers_logging, transformers_logging), strict=True):
            if on:
                switch.enable_progress_bar()
        if before is None:
            os.environ.pop("TRANSFORMERS_VERBOSITY", None)


@contextmanager
def loading() -> Iterator[list[str]]:
    """Inside, what diffusers and transformers log is collected; it is said afterwards if nothing was raised."""
    said: list[str] = []
    logs = [logging.getLogger(name) for name in ("diffusers", "transformers")]
    before = [(log.handlers[:], log.level) for log in logs]
    for log in logs:
        log.handlers[:] = [_Collect(said)]
        log.setLevel(logging.WARNING)
    try:
        yield said
    finally:
        for log, (handlers, level) in zip(logs, before, strict=True):
            log.handlers[:] = handlers
            log.setLevel(level)
    for text in said:
        warnings.warn(text, AccelWarning, stacklevel=2)


@contextmanager
def progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar on standard error for each phase, with the time left; nothing where nobody is watching.

    Call what is handed out with the phase, how much of it is done and how much there is.
    """
    from tqdm import tqdm

    bars: dict[str, Any] = {}

    def show(phase: str, done: int, total: int) -> None:
        if phase not in bars:
            for bar in bars.values():
                bar.close()
            # initial: what an earlier run has done already says nothing about the speed of this one
            bars[phase] = tqdm(desc=phase, total=total, initial=done, leave=False, disable=None)
        bars[phase].update(done - bars[phase].n)

    try:
        yield show
    finally:
        for bar in bars.values():
            bar.close()


class _Collect(logging.Handler):
    def __init__(self, into: list[str]):
        super().__init__(logging.WARNING)
        self.into = into

    def emit(self, record: logging.LogRecord) -> None:
        text = _short(record)
        if not any(notice in text for notice in _NOTICES):
            self.into.append(text)


class _AsWarning(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warnings.warn(_short(record), AccelWarning, stacklevel=2)


def _short(record: logging.LogRecord) -> str:
    """A library's message as one line without terminal colours; a long one loses its end."""
    text = one_line(re.sub(r"\x1b\[[0-9;]*m", "", record.getMessage()))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST].rstrip()} …"

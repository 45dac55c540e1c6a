"""One server with the bundled pipeline for all tests of the app, and a real browser where there is one."""

from __future__ import annotations

import shutil
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright

from accel.app.limits import Limits
from accel.app.server import start
from accel.app.studio import Studio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PATIENCE = 60_000
"""Milliseconds that a browser waits for what a loaded machine draws."""


@pytest.fixture(scope="session")
def studio() -> Studio:
    """The bundled pipeline, loaded."""
    studio = Studio(limits=Limits(steps=12, size=128, minutes=1), device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # diffusers' notices on loading, which the command line leaves out as well
        studio.model("tiny")
    return studio


@pytest.fixture(scope="session")
def url(studio: Studio) -> Iterator[str]:
    """Where the app is served, on a free port."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of gradio's own imports
        demo, url = start(studio)
    yield url
    demo.close()


class Gate:
    """Where the denoiser waits: a run stays open for as long as a test looks at it, however fast the machine is."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._free = 0

    def close(self, after: int = 0) -> None:
        """Let ``after`` more calls through, then none."""
        self._free = after
        self._open.clear()

    def open(self) -> None:
        """Let everything through."""
        self._open.set()

    def wait(self, *_: Any) -> None:
        """Called before each denoiser call."""
        self._free -= 1
        if self._free < 0:
            self._open.wait()


@pytest.fixture
def gate(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """Before the denoiser, open. It opens again when a run is stopped, once that run knows, and after the test."""
    gate, stop = Gate(), studio.runs.stop

    def stop_and_open(visitor: str, patience: float = 0.0) -> int:
        stopped = stop(visitor)
        if stopped:
            gate.open()
            stop(visitor, patience)
        return stopped

    monkeypatch.setattr(studio.runs, "stop", stop_and_open)
    hook = studio.model("tiny").pipe.unet.register_forward_pre_hook(gate.wait)
    try:
        yield gate
    finally:
        gate.open()
        hook.remove()


def holds(condition: Callable[[], bool], seconds: float = 300) -> bool:
    """Whether it comes to hold within that time."""
    pause = threading.Event()
    return any(condition() or pause.wait(0.05) for _ in range(int(seconds / 0.05)))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; as root it runs without its sandbox."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install -y --no-install-recommends chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()

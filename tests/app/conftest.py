"""One server with the bundled pipeline for all tests of the app, and a real browser where there is one."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator

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


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """Debian's Chromium; as root it runs without its sandbox."""
    if CHROMIUM is None:
        pytest.skip("there is no Chromium here: apt-get install -y --no-install-recommends chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()

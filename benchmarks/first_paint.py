"""How long after its start the app shows its page in a real browser.

    python benchmarks/first_paint.py

Each round starts a fresh server and opens a fresh, uncached page in a browser that runs already. Told are the seconds
from the start of ``python -m accel.app`` until the server answers, until the page's heading can be seen, and until a
comparison that is asked for at once has come out of the default model. Needs the dev extra and Chromium.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import gradio
import httpx
from common import write
from playwright.sync_api import Browser, sync_playwright

TITLE = "One picture, drawn twice"
PATIENCE = 120
"""Seconds."""


def main() -> None:
    """Measure, print, write ``results/first_paint.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        rounds = [first_paint(browser) for _ in range(options.rounds)]
        browser.close()
    medians = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
    print(", ".join(f"{name} {value:.2f} s" for name, value in medians.items()))
    print(write("first_paint", {"gradio": gradio.__version__, "medians": medians, "rounds": rounds}))


def first_paint(browser: Browser) -> dict[str, float]:
    """Seconds from the start of a server to each of its marks."""
    port = _free_port()
    url = f"http://127.0.0.1:{port}/"
    began = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "accel.app", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        _until(lambda: httpx.get(url, timeout=PATIENCE).is_success)
        answered = time.perf_counter()
        page = browser.new_page()
        page.goto(url, wait_until="commit")
        page.get_by_role("heading", name=TITLE).wait_for(timeout=1000 * PATIENCE)
        painted = time.perf_counter()
        page.get_by_role("button", name="Compare", exact=True).click()
        page.get_by_role("img", name="Plain picture of").first.wait_for(timeout=1000 * PATIENCE)
        drawn = time.perf_counter()
        page.close()
    finally:
        server.terminate()
        server.wait(PATIENCE)
    return {"answers": answered - began, "page": painted - began, "drawn": drawn - began}


def _until(holds: Callable[[], Any]) -> None:
    """Try until it holds; the first connections are refused."""
    deadline = time.perf_counter() + PATIENCE
    while time.perf_counter() < deadline:
        try:
            if holds():
                return
        except httpx.TransportError:
            time.sleep(0.01)
    raise TimeoutError("the server does not answer")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


if __name__ == "__main__":
    main()

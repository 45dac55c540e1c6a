"""The app's screenshots in ``docs/images``: desktop and phone, light and dark. Needs the dev extra and Chromium.

    python docs/screenshots.py

With ``--url`` a server that runs already is photographed, with ``--out`` the pictures go elsewhere.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

IMAGES = Path(__file__).with_name("images")
DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
PATIENCE = 300_000
"""Milliseconds: a loaded machine draws slowly."""


def main() -> None:
    """Take all of them."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--url", help="of a server that runs already")
    options.add_argument("--out", type=Path, default=IMAGES, help="folder (default: docs/images)")
    asked = options.parse_args()
    demo, url = (None, asked.url) if asked.url else _serve()
    asked.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for look in ("light", "dark"):
            _photograph(browser, url, look, asked.out)
        browser.close()
    if demo:
        demo.close()


def _serve():  # type: ignore[no-untyped-def]
    from accel.app.server import start
    from accel.app.studio import Studio

    return start(Studio())


def _photograph(browser: Browser, url: str, look: str, out: Path) -> None:
    page = browser.new_page(viewport=DESKTOP)
    page.goto(f"{url}?__theme={look}")
    compare(page)
    page.screenshot(path=out / f"app-compare-{look}.png", full_page=True)
    page.set_viewport_size(PHONE)
    page.wait_for_timeout(500)
    page.screenshot(path=out / f"app-phone-{look}.png", full_page=True)
    page.set_viewport_size(DESKTOP)
    page.get_by_role("tab", name="Build a plan").click()
    conflict(page)
    page.screenshot(path=out / f"app-build-{look}.png", full_page=True)
    page.close()


def compare(page: Page) -> None:
    """Draw the default prompt both ways, and wait until it was held against fewer steps."""
    page.get_by_role("button", name="Compare", exact=True).click()
    page.get_by_text("Done.").wait_for(timeout=PATIENCE)
    page.locator(".timeline [role=gridcell].predicted").first.hover()
    page.wait_for_timeout(500)  # the pictures come in


def conflict(page: Page) -> None:
    """Switch on two techniques that take over the same."""
    page.get_by_role("checkbox", name="When it changes").check()
    page.get_by_text("would be refused").wait_for(timeout=PATIENCE)


if __name__ == "__main__":
    main()

"""The page in a real browser: the main flows, by mouse and by keyboard, on a desktop and on a phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from PIL import Image
from playwright.sync_api import Browser, Page, expect

import accel
from accel.app.studio import Studio
from tests.app.conftest import PATIENCE, Gate, holds

_EARLY = re.compile(r"reading '(reset_layers|dimensions)'")
"""Gradio's own image editor, where it is given a value before its canvas has started: only on a slow machine."""

GRADIOS = [
    ("aria-prohibited-attr", 'aria-label="Empty value"'),  # its picture of no picture: a name without a role
]
"""Findings in what gradio draws, as (axe's rule, what the element looks like), each with its cause."""

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}
pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def app(chromium: Browser, url: str) -> Iterator[Page]:
    """The page, opened; afterwards: no script failed, and no other host was asked for anything."""
    failed: list[str] = []
    asked: set[str] = set()
    page = chromium.new_page(reduced_motion="reduce")
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    page.on("pageerror", lambda error: failed.append(str(error)))
    page.on("request", lambda request: asked.add(request.url))
    page.goto(url)
    page.get_by_role("heading", name="One picture, drawn twice").wait_for()
    yield page
    page.close()
    assert [text for text in failed if not _EARLY.search(text)] == []
    assert [each for each in asked if not each.startswith((url, "data:", "blob:"))] == []


def compare(app: Page, steps: int = 5) -> None:
    """Draw the default prompt in few steps, without the check against fewer."""
    app.get_by_role("button", name="More settings").click()
    app.get_by_role("spinbutton", name="Steps").first.fill(str(steps))
    app.get_by_role("checkbox", name="Hold against fewer steps").uncheck()
    app.get_by_role("button", name="Compare", exact=True).click()


def serious(page: Page) -> list[str]:
    """axe's findings that keep somebody from using the page, but for those that only gradio can mend."""
    found = Axe().run(page).response["violations"]
    return [
        f"{each['id']}: {node['html']}"
        for each in found
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
        if not any(each["id"] == rule and re.search(part, node["html"]) for rule, part in GRADIOS)
    ]


def look_as(page: Page, look: str) -> None:
    """Light or dark, once the page has changed to it and no colour is on its way."""
    page.emulate_media(color_scheme=look)  # type: ignore[arg-type]
    body = expect(page.locator("body"))
    (body.to_contain_class if look == "dark" else body.not_to_contain_class)("dark")
    page.wait_for_function("!document.getAnimations().some(each => each instanceof CSSTransition)")


def test_compare(app: Page, studio: Studio) -> None:
    assert holds(studio.visited.is_set)  # the page tells when it is there
    compare(app)
    expect(app.get_by_text("Done.")).to_be_visible()
    for name in ("Plain", "Accelerated"):
        picture = app.get_by_role("img", name=f"{name} picture of “two green squares and a red star”, 5 steps")
        expect(picture).to_be_visible()
        expect(picture).to_have_js_property("naturalWidth", 64)  # it has come
        assert picture.evaluate("each => each.clientWidth > 200")
    expect(app.get_by_text("Difference, amplified")).to_be_visible()
    assert app.locator(".hero .ratio strong").inner_text().endswith("×")
    cell = app.get_by_role("gridcell", name="deepcache · unet[level>=1], step 4 of 5: its site was predicted")
    cell.hover()
    expect(app.locator(".timeline .why")).to_have_text(cell.get_attribute("aria-label") or "none")
    assert serious(app) == []
    app.set_viewport_size(PHONE)
    app.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
    look_as(app, "dark")
    assert serious(app) == []


@pytest.mark.parametrize(
    "tab, text",
    [("Build a plan", "It fits"), ("Edit", "Plain inpainting"), ("Tune", "Draws plans"), ("Model", "Load it now")],
)
def test_everybody_can_use_the_tab(app: Page, tab: str, text: str) -> None:
    app.get_by_role("tab", name=tab).click()
    expect(app.get_by_text(text).first).to_be_visible()
    for look in ("light", "dark"):
        look_as(app, look)
        for size in (DESKTOP, PHONE):
            app.set_viewport_size(size)
            app.wait_for_function("document.documentElement.scrollWidth <= innerWidth")
            assert serious(app) == [], (look, size)


def test_by_keyboard_alone(app: Page) -> None:
    prompt = app.get_by_role("textbox", name="Prompt", exact=True)
    prompt.focus()
    app.keyboard.press("Control+A")
    app.keyboard.type("a red star")
    for _ in range(3):  # over the plan, to the button
        app.keyboard.press("Tab")
        if app.get_by_role("button", name="Compare", exact=True).evaluate("each => each == document.activeElement"):
            break
    app.keyboard.press("Enter")
    expect(app.get_by_role("img", name="Plain picture of “a red star”, 12 steps")).to_be_visible()
    expect(app.get_by_text("Done.")).to_be_visible()  # nothing is drawn anew from here on
    cells, why = app.locator('.timeline [role="gridcell"]'), app.locator(".timeline .why")
    app.locator('.timeline [role="gridcell"][tabindex="0"]').focus()
    expect(why).to_have_text(cells.nth(12).get_attribute("aria-label") or "none")  # below the times of the plain run
    for _ in range(3):
        app.keyboard.press("ArrowRight")
    expect(why).to_have_text(cells.nth(12 + 3).get_attribute("aria-label") or "none")
    app.keyboard.press("ArrowDown")
    expect(why).to_have_text(cells.nth(2 * 12 + 3).get_attribute("aria-label") or "none")


def test_building_a_plan_with_a_conflict(app: Page) -> None:
    app.get_by_role("tab", name="Build a plan").click()
    app.get_by_role("checkbox", name="When it changes").check()
    expect(app.get_by_text("deepcache and residual both take over block_outputs")).to_be_visible()
    app.get_by_role("checkbox", name="Deep features").uncheck()
    expect(app.get_by_text("It fits")).to_be_visible()
    expect(app.get_by_role("textbox", name="Plan as text")).to_have_value("guidance+residual")
    with app.expect_download() as saved:
        app.get_by_role("button", name="Download plan.json").click()
    plan = accel.Plan.load(saved.value.path().rename(saved.value.path().with_suffix(".json")))
    assert [technique.name for technique in plan.techniques] == ["guidance", "residual"]
    app.get_by_role("button", name="Use in Compare").click()
    app.get_by_role("tab", name="Compare").click()
    expect(app.get_by_role("combobox", name="Plan")).to_have_value("yours · guidance + residual")


def test_stopping_a_run(app: Page, studio: Studio, gate: Gate) -> None:
    gate.close(after=2)
    app.get_by_role("spinbutton", name="Seed").fill("31")
    compare(app, steps=12)
    app.get_by_text("step 2 of 12").wait_for()
    app.get_by_role("button", name="Stop", exact=True).click()
    expect(app.get_by_text("Stopped. The pipeline is as it was before.")).to_be_visible()
    assert accel.handles(studio.model("tiny").pipe) == []
    assert studio.runs.stop("anybody") == 0


def test_a_mistake_is_told_as_text(app: Page) -> None:
    plan = app.get_by_role("combobox", name="Plan")
    plan.fill("<img src=x onerror=document.title='hacked'>")
    plan.press("Enter")
    app.get_by_role("button", name="Compare", exact=True).click()
    expect(app.locator("p.problem")).to_contain_text('no preset or technique is called "<img src=x onerror')
    assert "hacked" not in app.title()


def test_painting_a_mask(app: Page, tmp_path: Path) -> None:
    picture = tmp_path / "picture.png"
    Image.new("RGB", (64, 64), (200, 30, 30)).save(picture)
    app.get_by_role("tab", name="Edit").click()
    app.locator("#canvas input[type=file]").set_input_files(picture)
    canvas = app.locator("#canvas canvas").first
    canvas.wait_for()
    app.get_by_role("button", name="Brush").first.click()
    box = canvas.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    app.mouse.move(x - 30, y)
    app.mouse.down()
    app.mouse.move(x + 30, y, steps=5)
    app.mouse.up()
    app.get_by_role("button", name="Edit", exact=True).click()
    expect(app.get_by_text("of the picture drawn anew")).to_be_visible()

"""Everything the page computes and says, as plain functions: limits, plans, numbers, the grid, the front, the code."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

import accel
from accel import registry
from accel.app import building, code, front, plans, reading, server, streaming, timeline, words
from accel.app.comparing import Fewer, Pair, difference
from accel.app.editing import kept_outside, mask_of, share
from accel.app.limits import Asked, Limits, asked
from accel.app.running import Run
from accel.errors import AccelError
from accel.report import TechniqueReport
from accel.tiny.verdict import Found

ASKED = Asked("tiny", "a red star", seed=7, steps=4)
EVIL = "<img src=x onerror=alert(1)> & 'quotes\" }"


class Read(HTMLParser):
    """Tags with their attributes, and the text between."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def run(value: float, seconds: float, steps: int = 4) -> Run:
    report = accel.Report("Pipe", "balanced", steps, steps).to_dict()
    return Run(torch.full((3, 16, 16), value), seconds, steps, [seconds / steps] * steps, report)


def pair(plain: float = 0.5, fast: float = 0.6, fewer: Fewer | None = None) -> Pair:
    return Pair(ASKED, accel.Plan.of("balanced"), run(plain, 2.0), run(fast, 1.0), reused=True, fewer=fewer)


class TestLimits:
    def ask(self, **changes: Any) -> tuple[Asked, list[str]]:
        given = {"prompt": " a star ", "seed": 1, "steps": 9, "guidance": 4, "size": 0, "solver": "own", **changes}
        return asked(Limits(), "tiny", **given)

    def test_what_is_within_passes(self) -> None:
        assert self.ask() == (Asked("tiny", "a star", 1, 9, 4.0, None, "own"), [])

    @pytest.mark.parametrize(
        "name, given, used",
        [("steps", 9_999, 50), ("steps", 0, 1), ("size", 100_000, 512), ("guidance", math.inf, 20), ("seed", -5, 0)],
    )
    def test_numbers_are_clamped_and_it_is_said(self, name: str, given: float, used: float) -> None:
        request, notes = self.ask(**{name: given})
        assert getattr(request, name) == used
        assert len(notes) == 1 and notes[0].startswith(name) and f"{used:g} was used" in notes[0]

    @pytest.mark.parametrize("wrong", [{"steps": "many"}, {"seed": None}, {"guidance": math.nan}, {"size": [1]}])
    def test_what_is_no_number_is_refused(self, wrong: dict[str, Any]) -> None:
        if wrong == {"size": [1]}:
            wrong = {"size": ["64"]}
        with pytest.raises(AccelError, match="must be a number"):
            self.ask(**wrong)

    @pytest.mark.parametrize("prompt, reason", [("  ", "empty"), (None, "empty"), ("x" * 501, "501 characters")])
    def test_prompts(self, prompt: Any, reason: str) -> None:
        with pytest.raises(AccelError, match=reason):
            self.ask(prompt=prompt)


class TestPlans:
    def test_names_and_promises_are_the_presets(self) -> None:
        assert plans.presets() == {name: accel.Plan.of(name).promise for name in accel.presets()}
        assert all(plans.parse(text, 1000).techniques for _, text in plans.choices())

    def test_every_form(self) -> None:
        spelled = plans.parse("deepcache(interval=3) + guidance", 1000)
        assert [str(each) for each in spelled.techniques] == ["deepcache(interval=3)", "guidance"]
        assert plans.parse(json.dumps(spelled.to_dict()), 1000) == spelled
        assert plans.parse("", 1000) == plans.parse("plain", 1000) == accel.Plan()

    def test_no_file_of_the_server_is_opened(self, tmp_path: Path) -> None:
        file = tmp_path / "plan.json"
        accel.Plan.of("balanced").save(file)
        for text in (str(file), f"deepcache+{file}", str(file).upper(), f"guidance+{file}+lossless"):
            with pytest.raises(AccelError, match="opens no file|no preset"):
                plans.parse(text, 1000)

    @pytest.mark.parametrize(
        "text",
        [
            "[" * 900 + "]" * 900,
            '{"techniques": ' + "[" * 9000 + "]" * 9000 + "}",
            "(" * 1500 + ")" * 1500,
            "deepcache(interval=__import__('os').getpid())",
            "{not json",
            '{"techniques": [{"name": "deepcache", "interval": 1e999}]}',
            "x" * 2001,
            "lossless+" * 8 + "lossless",
        ],
    )
    def test_nonsense_is_refused_in_one_line(self, text: str) -> None:
        with pytest.raises(AccelError) as refusal:
            plans.parse(text, 65_536)
        assert "\n" not in str(refusal.value)

    def test_too_long(self) -> None:
        with pytest.raises(AccelError, match="at most 10"):
            plans.parse("x" * 11, 10)

    def test_uploads(self) -> None:
        text = plans.uploaded(b"\xef\xbb\xbf" + json.dumps(accel.Plan.of("fast").to_dict()).encode(), 10_000)
        assert plans.parse(text, 10_000) == accel.Plan.of("fast")
        for data in (None, b"\xff\xfe\x00", b"balanced", b"{}"):
            with pytest.raises(AccelError):
                plans.uploaded(data, 10_000)


class TestBuilding:
    @pytest.mark.parametrize("brick", building.BRICKS, ids=lambda brick: brick.technique)
    def test_controls_are_settings_and_begin_at_the_default(self, brick: building.Brick) -> None:
        kind = registry.find(brick.technique)
        for control in brick.controls:
            assert getattr(kind(), control.setting) == control.choices[0]
            for value in control.choices:
                kind.from_settings({control.setting: value})

    def test_spelling(self) -> None:
        on = [brick.technique in ("deepcache", "lossless") for brick in building.BRICKS]
        values = [[control.choices[-1] for control in brick.controls] for brick in building.BRICKS]
        text = building.spell(on, values)
        assert text == "deepcache(interval=5, how=quadratic)+lossless"
        assert [each.name for each in plans.parse(text, 1000).techniques] == ["deepcache", "lossless"]
        assert building.spell([False] * len(on), values) == ""


class TestTimeline:
    report = accel.Report(
        "Pipe",
        EVIL,
        4,
        4,
        techniques={
            "deepcache": TechniqueReport(1, 2, 2, 0, "##..", {EVIL: 2}),
            "fora": TechniqueReport(16, 40, 24, 0, "#+=."),
        },
    ).to_dict()

    def test_a_cell_per_step_and_row_with_its_reason(self) -> None:
        read = Read(timeline.html(self.report, [0.02] * 4, [0.01, 0.02, 0.005, 0.005]))
        cells = [attributes for _, attributes in read.tags if attributes.get("role") == "gridcell"]
        assert len(cells) == 4 * 4
        assert [each["class"].split()[1] for each in cells[4:12]] == [
            *("computed", "computed", "predicted", "predicted"),
            *("computed", "mixed", "lighter", "predicted"),
        ]
        assert all(each["aria-label"] for each in cells)
        assert "step 3 of 4: its site was predicted" in cells[6]["aria-label"]
        assert cells[14]["aria-label"] == "accelerated, step 3 of 4: 5 ms"

    def grid(self, strips: dict[str, str], strip: str = "#+.") -> list[timeline.Row]:
        entry = TechniqueReport(len(strips), 5, 5, 0, strip, strips=strips)
        return timeline.rows(accel.Report("Pipe", "fora", 3, 3, techniques={"fora": entry}).to_dict(), [], [])

    def test_a_row_per_way_that_sites_went(self) -> None:
        first, second, third = self.grid(
            {"unet.0.attn1": "#..", "unet.1.attn1": "#..", "unet.0.ff": "###", "unet.2": "# ="}
        )
        assert [(row.name, row.detail) for row in (first, second, third)] == [
            ("fora · attn1", "2 sites, 67 % predicted"),
            ("fora · unet.0.ff", "1 site, computed"),
            ("fora · unet.2", "1 site, computed"),
        ]
        assert [kind for kind, _, _ in first.cells] == ["computed", "predicted", "predicted"]
        assert [kind for kind, _, _ in third.cells] == ["computed", "idle", "lighter"]
        assert first.cells[1][2].startswith("fora · attn1, step 2 of 3: its 2 sites were predicted")
        assert first.cells[1][2].endswith("(unet.0.attn1 to unet.1.attn1)")

    def test_many_ways_become_few_rows_and_it_is_said(self) -> None:
        strips = {f"unet.{i}.ff": "".join("#."[i >> bit & 1] for bit in (4, 3, 2, 1, 0)) for i in range(32)}
        made = self.grid(strips)
        assert len(made) == 12 and sum(int(row.detail.split()[0]) for row in made) == 32
        assert made[-1].name == "fora · others, in 21 ways"
        assert [kind for kind, _, _ in made[-1].cells] == ["mixed"] * 5
        assert len(self.grid(dict.fromkeys(strips, "#.#"))) == 1

    def test_what_a_preset_leaves_out_is_told(self) -> None:
        report = {**self.report, "omitted": ["lossless works on unet denoisers"]}
        assert "left out: lossless works on unet denoisers" in Read(timeline.html(report)).text

    def test_one_cell_is_in_the_tab_order(self) -> None:
        read = Read(timeline.html(self.report, [0.1] * 4, [0.1] * 4))
        assert [a["tabindex"] for _, a in read.tags if "tabindex" in a].count("0") == 1

    def test_a_plan_without_techniques_has_its_times(self) -> None:
        read = Read(timeline.html({**self.report, "techniques": {}}, [0.1] * 4, [0.2] * 4))
        assert [a["tabindex"] for _, a in read.tags if "tabindex" in a] == ["0", *["-1"] * 7]

    def test_bars_share_one_scale(self) -> None:
        read = Read(timeline.html(self.report, [0.4] * 4, [0.1] * 4))
        heights = [a["style"] for tag, a in read.tags if tag == "i"]
        assert heights == ["height:100%"] * 4 + ["height:25%"] * 4

    def test_text_is_text(self) -> None:
        read = Read(timeline.html(self.report))
        assert "img" not in [tag for tag, _ in read.tags]
        assert EVIL in read.text

    def test_without_a_plan(self) -> None:
        assert "computes everything" in timeline.html({"techniques": {}, "notes": [], "plan": "plain"})


class TestFront:
    points = [
        front.Point("plain, 10 steps", 1.0, -4.0, plain=True, sure=True),
        front.Point(EVIL, 0.5, 2.0, plain=False, sure=True, best=True),
        front.Point("slow", 2.0, 6.0, plain=False, sure=True, best=True),
        front.Point("rough", 1.5, 1.0, plain=False, sure=False),
    ]

    def test_every_point_is_drawn_and_named(self) -> None:
        read = Read(front.svg(self.points, "dB"))
        assert [tag for tag, _ in read.tags].count("circle") == 3
        assert [tag for tag, _ in read.tags].count("rect") == 1
        assert f"{EVIL}: 0.50 s, +2.0 dB" in read.text
        (line,) = [a["points"] for tag, a in read.tags if tag == "polyline"]
        (x1, y1), (x2, y2) = [tuple(map(float, p.split(","))) for p in line.split()]
        assert x1 < x2 and y1 > y2  # faster stands left, better stands up

    def test_nothing_and_one_point(self) -> None:
        assert "Nothing measured" in front.svg([], "dB")
        assert "polyline" in front.svg([front.Point("only", 0.0, 0.0, True, True, True)], "dB")


class TestWords:
    def test_numbers(self) -> None:
        told = words.numbers(pair(), factor=4)
        assert told["ratio"] == 2.0
        assert told["psnr"] == pytest.approx(20.0, abs=1e-4)
        assert told["plain"]["reused"] and told["fewer_steps"] is None
        assert json.loads(json.dumps(told)) == told

    def test_identical_pictures(self) -> None:
        told = words.numbers(pair(fast=0.5))
        assert told["psnr"] is None
        assert "every bit the same" in words.hero(told, "lossless")

    @pytest.mark.parametrize(
        "fewer, plan, verdict",
        [(30.0, 40.0, "the plan is the better"), (40.0, 30.0, "fewer steps are the better"), (30.0, 30.3, "as much")],
    )
    def test_the_honest_verdict(self, fewer: float, plan: float, verdict: str) -> None:
        told = words.numbers(pair(fewer=Fewer(run(0.5, 1.0, 2), 16, fewer, plan, 50.0)))
        html = words.hero(told, "balanced")
        assert verdict in html and "2 plain steps" in html and "of 16 steps" in html

    def test_unasked_and_unfinished_checks_are_said(self) -> None:
        assert "Not held against fewer steps" in words.hero(words.numbers(pair()), "x")
        assert "Drawing the plain picture with fewer" in words.hero(words.numbers(pair()), "x", busy=True)

    def test_captions(self) -> None:
        seen = {"seen": "a star", "facts": {"noun": True, "count": False}}
        read = Read(words.caption(words.numbers(pair(), (seen, seen)), "plain", 4))
        assert "2.00 s" in read.text and "drawn before and kept" in read.text and "a star" in read.text
        assert "noun ✓ holds" in read.text and "count ✗ does not hold" in read.text

    def test_text_is_text(self) -> None:
        html = words.hero(words.numbers(pair()), EVIL) + words.message(EVIL) + words.notes([EVIL])
        html += words.progress(EVIL, 1, 2)
        assert "img" not in [tag for tag, _ in Read(html).tags]
        assert Read(html).text.count(EVIL) == 4

    def test_difference_is_amplified_as_far_as_it_goes(self) -> None:
        a, b = torch.full((3, 8, 8), 0.5), torch.full((3, 8, 8), 0.55)
        image, factor = difference(a, b)
        assert factor == 16
        assert image.getpixel((0, 0)) == (round(0.05 * 16 * 255),) * 3
        image, factor = difference(a, a)
        assert image.getextrema() == ((0, 0),) * 3


def test_what_the_reader_sees_in_words() -> None:
    star = Found("star", "red", 10, 10, 20, 0.9)
    found = (star, star, Found("panda", None, 30, 30, 20, 0.8), Found(None, None, 50, 50, 20, 0.5))
    assert reading.in_words(found, "night") == "two red stars, a panda, something at night"
    assert reading.in_words((), "white") == "nothing it knows on a white background"
    assert len(reading.known()) == 72


class TestCode:
    @pytest.mark.parametrize("plan", ["balanced", "deepcache(interval=3)+guidance", "lossless"])
    def test_short_plans_are_spelled(self, plan: str) -> None:
        assert f"accelerate(pipe, '{plan}')" in code.python(ASKED, accel.Plan.of(plan))

    def test_others_are_written_out_and_come_back(self) -> None:
        plan = accel.Plan((registry.find("smoothcache")(rows={"attn": "1011"}),), name="mine")
        text = code.python(ASKED, plan)
        (literal,) = re.findall(r"accelerate\(pipe, (.*)\)$", text, re.M)
        assert eval(literal, {"accel": accel}) == plan

    def test_a_prompt_stays_a_literal(self) -> None:
        evil = "x', steps=1)\nimport os  # \" ''' \\"
        tree = compile(code.python(Asked("tiny", evil, size=64, solver="dpm++"), accel.Plan()), "made", "exec")
        assert evil in [const for c in (tree,) for const in c.co_consts]


class TestStreaming:
    def test_events_in_order_then_the_result(self) -> None:
        def work(tell: streaming.Tell) -> str:
            tell(1)
            tell(None)  # looks whether to go on, tells nothing
            tell(2)
            return "done"

        assert list(streaming.streamed(work, threading.Event())) == [1, 2, "done"]

    def test_errors_come_out(self) -> None:
        def work(tell: streaming.Tell) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            list(streaming.streamed(work, threading.Event()))

    def test_stopping_ends_the_work_inside(self) -> None:
        stop, ended = threading.Event(), []

        def work(tell: streaming.Tell) -> None:
            try:
                while True:
                    tell("step")
            finally:
                ended.append(True)

        events = streaming.streamed(work, stop)
        assert next(events) == "step"
        stop.set()
        with pytest.raises(streaming.Stopped):
            list(events)
        assert ended == [True]

    def test_closing_ends_the_work_as_well(self) -> None:
        ended = []

        def work(tell: streaming.Tell) -> None:
            try:
                while True:
                    tell("step")
            finally:
                ended.append(True)

        events = streaming.streamed(work, threading.Event())
        next(events)
        events.close()
        assert ended == [True]

    def test_a_visitor_stops_their_own_runs_only(self) -> None:
        runs = streaming.Runs()
        mine, other = runs.begin("me"), runs.begin("other")
        assert runs.stop("me") == 1 and runs.stop("nobody") == 0
        assert mine.is_set() and not other.is_set()
        runs.end("me", mine)
        assert runs.stop("me") == 0


class TestServer:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.9.9.9"])
    def test_this_machine_needs_no_password(self, host: str) -> None:
        server.check_bind(host, None, force=False)

    @pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "localhost.example.org"])
    def test_others_do(self, host: str, capsys: pytest.CaptureFixture[str]) -> None:
        with pytest.raises(AccelError, match="ACCEL_APP_AUTH=user:password"):
            server.check_bind(host, None, force=False)
        server.check_bind(host, ("me", "a long password"), force=False)
        server.check_bind(host, None, force=True)
        assert "no password" in capsys.readouterr().err

    def test_passwords_come_whole(self) -> None:
        assert server.auth({}) is None
        assert server.auth({"ACCEL_APP_AUTH": "me:long:password"}) == ("me", "long:password")
        for half in ("me", "me:", ":password", "me:short"):
            with pytest.raises(AccelError, match="at least 8"):
                server.auth({"ACCEL_APP_AUTH": half})


class TestEditing:
    def test_the_mask_is_what_was_painted(self) -> None:
        layer = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
        layer.paste((255, 255, 255, 255), (0, 0, 4, 8))
        picture, mask = mask_of({"background": Image.new("RGBA", (8, 8), (9, 9, 9, 255)), "layers": [layer]})
        assert picture.mode == "RGB" and share(mask) == 0.5

    @pytest.mark.parametrize(
        "value, reason",
        [
            (None, "no picture"),
            ({"background": None, "layers": []}, "no picture"),
            ({"background": Image.new("RGB", (8, 8)), "layers": [Image.new("RGBA", (8, 8))]}, "nothing is painted"),
        ],
    )
    def test_what_is_missing_is_said(self, value: Any, reason: str) -> None:
        with pytest.raises(AccelError, match=reason):
            mask_of(value)

    def test_outside_of_the_mask_every_bit_stays(self) -> None:
        before, after = Image.new("RGB", (4, 4), (1, 2, 3)), Image.new("RGB", (4, 4), (7, 8, 9))
        mask = Image.new("L", (4, 4))
        mask.paste(255, (2, 0, 4, 4))
        result = kept_outside(before, mask, after)
        assert result.getpixel((1, 1)) == (1, 2, 3) and result.getpixel((3, 3)) == (7, 8, 9)


def test_the_page_is_built_before_anything_heavy_is_loaded() -> None:
    program = "import sys; from accel.app.ui import build_demo; from accel.app.studio import Studio\n"
    program += "build_demo(Studio()); print({'torch', 'diffusers', 'transformers'} & {*sys.modules})"
    shown = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert shown.stdout.strip() == "set()"


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("look", [":root", ".dark"])
def test_colours_of_the_page_can_be_read(look: str) -> None:
    """WCAG 2: text 4.5 to 1, parts of a drawing 3 to 1."""
    css = (Path(server.__file__).parent / "app.css").read_text()
    colours = dict(re.findall(r"--([\w-]+): (#\w{6})", css[css.index(f"{look} {{") :].split("}")[0]))
    for text in ("ink", "soft", "accent", "warn", "good"):
        for ground in ("paper", "wash"):
            high, low = sorted((luminance(colours[text]), luminance(colours[ground])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (text, ground)

"""The served app through its API: every button, what the server refuses, and many visitors at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from gradio_client import Client, handle_file
from gradio_client.exceptions import AppError
from PIL import Image

import accel
from accel.app import timeline, tuning
from accel.app.server import start
from accel.app.studio import Studio
from accel.caches.deepcache import DeepCache
from accel.cli import main
from accel.errors import AccelError
from accel.measure.events import Event
from accel.measure.floor import Floor
from tests.app.conftest import Gate, holds

ROOT = Path(__file__).parents[2]
PROMPT = "a red star"
ENDPOINTS = {
    *("/compare", "/stop", "/dice", "/check", "/upload_plan", "/use_plan", "/load_model"),
    *("/edit", "/stop_edit", "/take_picture", "/tune", "/stop_tuning", "/use_point"),
}


PATIENT = {"timeout": 120}
"""The client gives up after five seconds, which a loaded machine needs."""


def visitor(url: str) -> Client:
    """Somebody else."""
    return Client(url, verbose=False, httpx_kwargs=PATIENT)


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[Client]:
    client = visitor(url)
    yield client
    client.close()


def compare(client: Client, **changes: Any) -> tuple[Any, ...]:
    given = {"prompt": PROMPT, "seed": 5, "steps": 4, "guidance": 4, "size": 0, "solver": "own", "plan": "balanced"}
    return client.predict(**{**given, "honest": False, "model": "tiny", **changes}, api_name="/compare")


def picture(path: str) -> Image.Image:
    with Image.open(path) as image:
        return image.convert("RGB")


def test_every_button_is_a_documented_endpoint(client: Client) -> None:
    assert set(client.view_api(return_format="dict", print_info=False)["named_endpoints"]) == ENDPOINTS
    page = (ROOT / "docs" / "app.md").read_text()
    assert all(f"`{name}`" in page for name in ENDPOINTS)


def test_compare(client: Client, studio: Studio) -> None:
    stage, _, plain, fast, plain_caption, _, hero, grid, slider, difference, program, told = compare(client)
    assert "Done" in stage and "The reader sees" in plain_caption and "Not held against" in hero
    pipe = studio.model("tiny").pipe
    image = pipe(PROMPT, num_inference_steps=4, guidance_scale=4.0, generator=torch.Generator().manual_seed(5)).images[
        0
    ]
    assert plain.endswith(".png") and picture(plain).tobytes() == image.tobytes()  # no bit was lost
    assert len(slider) == 2 and picture(difference).size == picture(fast).size == (64, 64)
    rows = timeline.rows(told["report"], [0.1] * 4, [0.1] * 4)
    assert grid.count('role="gridcell"') == 4 * len(rows) and "deepcache · unet[level&gt;=1]" in grid
    assert told["report"]["techniques"]["deepcache"]["predicted"] == 1
    assert told["request"] == {**told["request"], "prompt": PROMPT, "seed": 5, "steps": 4, "size": None}
    assert "manual_seed(5)" in program
    again = compare(client)[-1]
    assert again["plain"]["reused"] and again["psnr"] == pytest.approx(told["psnr"])


def test_the_honest_check(client: Client) -> None:
    told = compare(client, honest=True, solver="dpm++")[-1]
    assert told["fewer_steps"]["reference_steps"] == 16 and told["fewer_steps"]["steps"] >= 1


def test_numbers_beyond_the_limits(client: Client) -> None:
    """Either the component refuses them, or they are clamped: never are they done."""
    for beyond in ({"steps": 9_999}, {"size": 100_000}, {"guidance": 1e9}, {"seed": -1}):
        try:
            told = compare(client, **beyond)[-1]["request"]
        except AppError:
            continue
        assert told["steps"] <= 12 and (told["size"] or 64) <= 128 and told["guidance"] <= 20 and told["seed"] >= 0


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"prompt": "  "}, "the prompt is empty"),
        ({"plan": "nonsense"}, "no preset or technique"),
        ({"plan": "deepcache+residual"}, "both take over"),
        ({"plan": "/etc/plan.json"}, "opens no file"),
        ({"plan": "<b>x</b>"}, "&lt;b&gt;"),
        ({"size": 65}, "multiple of 8"),
        ({"solver": "dpm++", "model": "../../etc"}, "choices|offers tiny"),
    ],
)
def test_mistakes_are_said_and_nothing_stays(
    client: Client, studio: Studio, wrong: dict[str, Any], reason: str
) -> None:
    with pytest.raises(AppError, match=reason):
        compare(client, **wrong)
    pipe = studio.model("tiny").pipe
    assert accel.handles(pipe) == [] and type(pipe.scheduler).__name__ == "DDIMScheduler"


def test_plans(client: Client, tmp_path: Path) -> None:
    verdict, program, text = check(client, "deepcache(interval=3)+lossless")
    assert "It fits" in verdict and "'deepcache(interval=3)+lossless'" in program
    assert accel.Plan.from_dict(json.loads(text)) == accel.Plan.of("deepcache(interval=3)+lossless")
    verdict, _, _ = check(client, "deepcache+residual")
    assert "deepcache and residual both take over block_outputs" in verdict
    assert "&lt;i&gt;" in check(client, "<i>")[0]
    file = tmp_path / "mine.json"
    accel.Plan.of("fast").save(file)
    assert json.loads(client.predict(handle_file(file), api_name="/upload_plan"))["name"] == "fast"
    file.write_text("[]")
    with pytest.raises(AppError, match="not a plan"):
        client.predict(handle_file(file), api_name="/upload_plan")
    client.predict("fast", api_name="/use_plan")


def check(client: Client, plan: str) -> tuple[str, str, str]:
    given = {"prompt": PROMPT, "seed": 1, "steps": 4, "guidance": 4, "size": 0, "solver": "own", "model": "tiny"}
    return client.predict(plan, **given, api_name="/check")


def test_edit(client: Client, tmp_path: Path) -> None:
    background, layer = tmp_path / "picture.png", tmp_path / "layer.png"
    Image.new("RGB", (64, 64), (200, 30, 30)).save(background)
    painted = Image.new("RGBA", (64, 64))
    painted.paste((255, 255, 255, 255), (32, 0, 64, 64))
    painted.save(layer)
    canvas = {"background": handle_file(background), "layers": [handle_file(layer)], "composite": None}
    rest = {"prompt": PROMPT, "strength": 1, "seed": 1, "steps": 3, "guidance": 4, "size": 0, "model": "tiny"}
    stage, result = client.predict(canvas, **rest, api_name="/edit")
    path = result["value"] if isinstance(result, dict) else result
    edited = picture(path)
    assert "50 % of the picture" in stage
    assert edited.getpixel((5, 5)) == (200, 30, 30) and edited.size == (64, 64)
    with pytest.raises(AppError, match="nothing is painted"):
        client.predict({**canvas, "layers": []}, **rest, api_name="/edit")


def test_the_rest_of_the_buttons(client: Client) -> None:
    assert 0 <= client.predict(api_name="/dice") < 2**31
    assert "Threads" in client.predict("tiny", api_name="/load_model")
    assert "Nothing of yours" in client.predict(api_name="/stop_edit")
    with pytest.raises(AppError, match="tune first"):
        client.predict("", api_name="/use_point")


TUNE = dict(floor=20, metric="dB", steps=4, minutes=0.5, count=16, prompts="", model="tiny")


IDLE = pytest.mark.filterwarnings("ignore:.* saved nothing in this run:accel.errors.AccelWarning")
"""`accel.tune` leaves that out, but what a thread leaves out comes back when another one restores its filters."""


def few_plans(monkeypatch: pytest.MonkeyPatch) -> None:
    """One instead of all that there are."""
    monkeypatch.setattr("accel.measure.tune.plans", lambda pipe: [accel.Plan.of(DeepCache(interval=3))])


@IDLE
@pytest.mark.timeout(600)
@pytest.mark.parametrize("floor, unit", [({}, "dB"), ({"floor": 40, "metric": "points"}, "points")])
def test_a_tuned_point_is_picked_and_used(
    client: Client, monkeypatch: pytest.MonkeyPatch, floor: dict[str, Any], unit: str
) -> None:
    few_plans(monkeypatch)
    _, plot, picked, found = client.predict(**{**TUNE, **floor}, api_name="/tune")
    assert f"{unit} above the floor" in plot and ("<circle" in plot or "<rect" in plot)
    assert all(label.endswith(unit) for label, _ in picked["choices"])
    assert picked["value"] in [value for _, value in picked["choices"]]
    plan, steps, solver = client.predict(picked["value"], api_name="/use_point")
    assert (steps, solver) == (found["steps"], found["solver"])
    assert json.loads(plan["value"])["techniques"] == found["plan"]["techniques"]
    told = compare(client, plan=plan["value"], steps=steps, solver=solver)[-1]
    assert told["plan"]["techniques"] == found["plan"]["techniques"] and told["request"]["steps"] == steps


@pytest.mark.parametrize(
    "wrong, reason",
    [
        ({"floor": 5, "metric": "points"}, "8 prompts to judge by cannot tell a loss of 5 points: give 40"),
        ({"floor": 40, "metric": "points", "prompts": "a red star\n" * 16}, "what your prompts state"),
        ({"metric": "miles"}, "choices"),
        ({"prompts": "a red star"}, "tuning takes from 16 to 200"),
    ],
)
def test_floors_that_cannot_be_told_are_explained(client: Client, wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(AppError, match=reason):
        client.predict(**{**TUNE, **wrong}, api_name="/tune")


@IDLE
@pytest.mark.timeout(600)
def test_tuning_streams_and_stops(client: Client, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(event: Event, floor: Floor) -> tuning.Progress:
        if event.points:
            gate.close()
        return progress(event, floor)

    few_plans(monkeypatch)
    progress = tuning.progress
    monkeypatch.setattr(tuning, "progress", told)
    job = client.submit(**TUNE, api_name="/tune")
    assert holds(lambda: any("<circle" in each[1] or "<rect" in each[1] for each in job.outputs()))
    assert "Stopped" in client.predict(api_name="/stop_tuning")
    assert "Stopped" in job.result(timeout=200)[0]


@pytest.mark.timeout(600)
def test_stopping_is_a_visitors_own_affair(client: Client, url: str, gate: Gate) -> None:
    other = visitor(url)
    gate.close(after=2)
    job = client.submit(PROMPT, 11, 12, 4, 0, "own", "balanced", False, "tiny", api_name="/compare")
    assert holds(lambda: any("step 2 of 12" in str(each[0]) for each in job.outputs()))
    assert "Nothing of yours" in other.predict(api_name="/stop")
    assert "Stopped" in client.predict(api_name="/stop")
    assert "Stopped" in job.result(timeout=200)[0]
    assert compare(client, seed=11)[-1]["plain"]["reused"] is False  # a broken-off run is not kept
    other.close()


def test_a_stop_does_not_promise_more_than_it_saw(
    client: Client, studio: Studio, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(studio.runs, "stop", lambda visitor, patience: 1)
    monkeypatch.setattr(studio.runs, "going", lambda visitor: True)
    assert "Stopping after the step" in client.predict(api_name="/stop")


@pytest.mark.timeout(600)
def test_fifty_requests_finish_or_are_refused(url: str) -> None:
    clients = [visitor(url) for _ in range(5)]
    jobs = [
        (plan, clients[seed % 5].submit(PROMPT, seed, 5, 4, 0, "own", plan, False, "tiny", api_name="/compare"))
        for seed in range(50)
        for plan in (("lossless", "balanced")[seed % 2],)
    ]
    finished = {"lossless": 0, "balanced": 0}
    for plan, job in jobs:
        try:
            result = job.result(timeout=500)
        except Exception as error:
            assert "queue is full" in str(error).lower(), error
            continue
        same = picture(result[2]).tobytes() == picture(result[3]).tobytes()
        assert same == (plan == "lossless")  # nobody's plan reached another one's picture
        finished[plan] += 1
    assert min(finished.values()) > 0
    for each in clients:
        each.close()


def test_equal_requests_at_once_all_get_whole_pictures(url: str) -> None:
    """The plan changes nothing, so that there is one content for all of these files."""
    clients = [visitor(url) for _ in range(6)]
    asked = (PROMPT, 77, 2, 4, 0, "own", "lossless", True, "tiny")
    jobs = [each.submit(*asked, api_name="/compare") for each in clients for _ in range(3)]
    results = [job.result(timeout=500) for job in jobs]
    drawn = {picture(path).tobytes() for result in results for path in (*result[2:4], *result[8])}
    assert len(drawn) == 1
    for each in clients:
        each.close()


def test_a_picture_is_written_once(url: str) -> None:
    """What is served under a name never changes: each run has files of its own, also where the pictures are equal."""
    plainly = Client(url, verbose=False, download_files=False, httpx_kwargs=PATIENT)
    first, second = (compare(plainly, seed=77, plan="lossless") for _ in range(2))
    paths = [Path(image["path"]) for result in (first, second) for image in (result[2], result[3], result[9])]
    assert len({*paths}) == 6 and all(path.is_file() for path in paths)
    assert paths[0].read_bytes() == paths[1].read_bytes() == paths[3].read_bytes()
    assert [image["path"] for image in first[8]] == [str(path) for path in paths[:2]]
    plainly.close()


class TestServer:
    @pytest.mark.parametrize(
        "path",
        [
            "gradio_api/file=/etc/passwd",
            f"gradio_api/file={ROOT / 'pyproject.toml'}",
            "gradio_api/file=../../etc/passwd",
            "gradio_api/file=app/server.py",
            "gradio_api/monitoring",
            "monitoring",
        ],
    )
    def test_nothing_else_is_served(self, url: str, path: str) -> None:
        assert httpx.get(url + path).status_code in (400, 401, 403, 404)

    def test_no_file_of_the_server_comes_in_as_a_picture(self, client: Client) -> None:
        payload = {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}}
        with pytest.raises(Exception, match="(?i)error|not allowed|invalid"):
            client.predict(payload, api_name="/take_picture")

    def test_uploads_are_limited(self, url: str) -> None:
        sent = httpx.post(f"{url}gradio_api/upload", files={"files": ("big.json", b"0" * 11_000_000)}, timeout=60)
        assert sent.status_code == 413

    def test_switches(self, url: str) -> None:
        config = httpx.get(f"{url}config").json()
        assert config["analytics_enabled"] is False
        assert httpx.get(url, headers={"Origin": "https://evil.example"}).headers.get(
            "access-control-allow-origin"
        ) not in ("*", "https://evil.example")

    def test_the_page_names_no_other_host(self, url: str) -> None:
        page = httpx.get(url).text
        assert "fonts.googleapis" not in page and "https://cdn" not in page

    def test_a_password_from_the_environment(self, studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACCEL_APP_AUTH", "me:long-password")
        demo, url = start(studio)
        try:
            assert httpx.get(f"{url}config").status_code == 401
            assert httpx.post(f"{url}login", data={"username": "me", "password": "wrong"}).status_code == 400
            signed_in = httpx.Client()
            assert (
                signed_in.post(f"{url}login", data={"username": "me", "password": "long-password"}).status_code == 200
            )
            assert signed_in.get(f"{url}config").status_code == 200
        finally:
            demo.close()

    def test_a_taken_port(self, studio: Studio, url: str) -> None:
        port = int(url.rstrip("/").rpartition(":")[2])
        with pytest.raises(AccelError, match="cannot start.*try another --port"):
            start(studio, port=port)


class TestCommand:
    def test_public_without_a_password(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["app", "--host", "0.0.0.0"]) == 2
        said = capsys.readouterr().err
        assert "ACCEL_APP_AUTH" in said and "--force-public" in said and len(said.splitlines()) == 1

    def test_without_gradio(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert main(["app"]) == 2
        assert 'pip install "diffusers-accel[app]"' in capsys.readouterr().err

"""The command line, in this process: exit codes, one line per mistake, the files, and that numbers agree."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import StableDiffusionPipeline
from PIL import Image

from accel import console, pictures
from accel.cli import main
from accel.commands.comparing import fitting
from accel.commands.drawing import unknown_words
from accel.errors import AccelError
from accel.parsers import COMMANDS
from accel.staging import output_folder
from accel.tiny.tokens import make_tokenizer
from tests.schedulers.small import small

PROMPT = "two green squares and a red star"
QUICK = ("--steps", "6", "--guidance", "4", "--seed", "7")


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a small pipeline that reads the bundled pipeline's words; its weights are seeded."""
    folder = tmp_path_factory.mktemp("models") / "small"
    small().save_pretrained(folder)
    return str(folder)


@pytest.fixture
def broken(model: str, tmp_path: Path) -> Path:
    """A copy of the model to spoil."""
    return Path(shutil.copytree(model, tmp_path / "broken"))


def generate(model: str, out: Path, *more: str, prompt: str = PROMPT) -> int:
    return main(["generate", prompt, "--model", model, "--out", str(out), *QUICK, *more])


def report(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_text())


def pixels(file: Path) -> torch.Tensor:
    return torch.from_numpy(np.asarray(Image.open(file), dtype=np.float32) / 255).permute(2, 0, 1)[None]


def mistake(capsys: pytest.CaptureFixture[str], code: int) -> str:
    """The one line of a mistake."""
    said = capsys.readouterr()
    assert code == 2
    assert said.out == ""
    assert said.err.startswith("accel: error: ") and said.err.count("\n") == 1, said.err
    return said.err


# --- help ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argv", [["--help"], *([name, "--help"] for name in COMMANDS)])
def test_help_fits_a_terminal(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: accel")
    assert max(map(len, text.splitlines())) <= 120


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == "accel 0.1.0\n"


def test_help_imports_nothing_heavy() -> None:
    show = "import sys; from accel.cli import main; main(['--help']); print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", show], check=True, capture_output=True, text=True)
    assert {"torch", "numpy", "PIL", "diffusers", "transformers"}.isdisjoint(run.stdout.splitlines()[-1].split())


def test_runs_as_a_module() -> None:
    run = subprocess.run([sys.executable, "-m", "accel", "generat"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr == "accel: error: no command is called 'generat': did you mean generate?\n"


def test_plans_lists_everything(capsys: pytest.CaptureFixture[str]) -> None:
    from accel import registry
    from accel.plan import presets

    assert main(["plans"]) == 0
    said = capsys.readouterr()
    assert said.err == ""
    for name in (*presets(), *registry.names()):
        assert f"\n{name} " in said.out or said.out.startswith(f"{name} ")
        if name not in presets():
            assert registry.find(name).summary in said.out and registry.find(name).source in said.out
    assert "interval=2, warm_up=3" in said.out


# --- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "text"),
    [
        ([], "COMMAND"),
        (["generate"], "prompt"),
        (["drawing"], f"no command is called 'drawing': there are {', '.join(COMMANDS)}"),
        (["generate", " "], "the prompt is empty"),
        (["generate", "x", "--steps", "0"], "--steps: must be a whole number from 1 to 1000, not '0'"),
        (["generate", "x", "--steps", "2.5"], "--steps: must be a whole number from 1 to 1000, not '2.5'"),
        (["generate", "x", "--seed", "-1"], "--seed: must be a whole number from 0"),
        (["generate", "x", "--repeats", "0"], "--repeats: must be a whole number from 1 to 100"),
        (["generate", "x", "--batch", "0"], "--batch/--n: must be a whole number from 1"),
        (["generate", "x", "--guidance", "nan"], "--guidance: must be a number from 0"),
        (["generate", "x", "--size", "0"], "--size: must be a whole number from 1"),
        (["generate", "x", "--dtype", "int8"], "--dtype: invalid choice: 'int8'"),
        (["generate", "x", "--compar"], "unrecognized arguments: --compar"),
        (["generate", "x", "--plan", "balancd"], "'balancd': did you mean balanced?"),
        (["generate", "x", "--plan", "deepcache+tgat"], "'tgat': did you mean tgate?"),
        (["generate", "x", "--plan", "zzz"], "presets are balanced, fast, techniques"),
        (["generate", "x", "--plan", "none.json"], "plan file none.json cannot be read: No such file"),
        (["generate", "x", "--solver", "ddim"], "no solver 'ddim' for StableDiffusionPipeline: there are own, dpm++"),
        (
            ["generate", "x", "--model", "no-such"],
            "no pipeline no-such: it is neither bundled (tiny, tiny-dit) nor a folder",
        ),
        (["generate", "x", "--model", "no/such"], "no/such is no folder here, is not in the local cache"),
        (["check", "no-such"], "no pipeline no-such"),
        (["check", "no-such", "--plan", "balancd"], "did you mean balanced?"),
        (["generate", "x", "--model", "no-such", "--device", "abacus"], "device abacus cannot be used here"),
    ],
)
def test_mistakes_are_one_line(
    argv: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert text in mistake(capsys, main(argv))
    assert not list(tmp_path.iterdir())


def test_the_solver_changes_the_picture_and_is_the_one_asked_for(model: str, tmp_path: Path) -> None:
    for name in ("own", "dpm++"):
        assert generate(model, tmp_path / name, "--solver", name) == 0
    own, other = (report(tmp_path / name) for name in ("own", "dpm++"))
    assert (own["scheduler"], other["scheduler"]) == ("DDIMScheduler", "DPMSolverMultistepScheduler")
    pictures = [pixels(tmp_path / name / "accelerated.png") for name in ("own", "dpm++")]
    assert not torch.equal(*pictures)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (["--size", "21"], "--size 21 is not a multiple of 8 as the model needs: try 24"),
        (["--size", "1"], "try 8"),
        (["--plan", "deepcache+deepcache"], "deepcache and deepcache both take over block_outputs"),
        (["--steps", "1000", "--plan", "bad.json"], "plan file bad.json is not a plan: deepcache has no setting speed"),
    ],
)
def test_what_the_model_cannot_do(
    more: list[str],
    text: str,
    model: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.json").write_text('{"techniques": [{"name": "deepcache", "speed": 9}]}')
    assert text in mistake(capsys, generate(model, tmp_path / "a" / "b", *more))
    assert not (tmp_path / "a").exists()


def test_every_reason_of_a_refusal_is_told(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plan = tmp_path / "deep.json"
    plan.write_text('{"techniques": [{"name": "deepcache", "level": 9}, {"name": "deepcache"}]}')
    line = mistake(capsys, generate(model, tmp_path / "out", "--plan", str(plan)))
    assert "was refused" in line and "both take over" in line and "deepcache: unet has no deep part to skip" in line
    assert not (tmp_path / "out").exists()


def test_no_pipeline_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = mistake(capsys, main(["generate", "x", "--model", str(tmp_path), "--out", str(tmp_path / "out")]))
    assert "is not a diffusers pipeline: it has no model_index.json" in line


def test_cut_off_weights(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = broken / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    assert "broken cannot be loaded" in mistake(capsys, generate(str(broken), tmp_path / "out"))


def test_weights_that_lack_something(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from safetensors.torch import load_file, save_file

    file = broken / "unet" / "diffusion_pytorch_model.safetensors"
    weights = load_file(file)
    del weights["conv_norm_out.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    line = mistake(capsys, generate(str(broken), tmp_path / "out"))
    assert "has incomplete weights, conv_norm_out.weight is missing" in line


def test_missing_component(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(broken / "tokenizer")
    assert "broken is incomplete: it has no folder tokenizer" in mistake(
        capsys, generate(str(broken), tmp_path / "out")
    )


def test_unreadable_index(broken: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (broken / "model_index.json").write_text("{")
    assert "its model_index.json cannot be read" in mistake(capsys, generate(str(broken), tmp_path / "out"))


def test_output_is_checked_before_anything_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    for out, reason in ((file, "it is a file"), (file / "below", "Not a directory")):
        assert f"{out} cannot be written: {reason}" in mistake(capsys, generate("no-such", out))


def test_interrupted(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(StableDiffusionPipeline, "decode_latents", interrupt, raising=False)
    monkeypatch.setattr("diffusers.AutoencoderKL.decode", interrupt)
    assert generate(model, tmp_path / "out") == 130
    assert capsys.readouterr().err.splitlines()[-1] == "accel: interrupted"
    assert not (tmp_path / "out").exists()


# --- what comes out --------------------------------------------------------------------------------------------------


def test_a_picture_alone(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, tmp_path) == 0
    said = capsys.readouterr()
    assert said.err == ""
    told = report(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["accelerated.png", "report.json"]
    assert told["files"] == ["accelerated.png"] and told["format"] == 1
    assert told["request"]["seed"] == 7 and told["plan"]["name"] == "balanced"
    assert told["report"]["steps_run"] == 6 and told["report"]["techniques"]["deepcache"]["predicted"] > 0
    assert f"balanced: 6 steps in {told['accelerated']['seconds']:.2f} s" in said.out
    assert "deepcache" in said.out and "###." in said.out


def test_a_seed_is_a_picture(model: str, tmp_path: Path) -> None:
    for name, seed in (("a", "7"), ("b", "7"), ("c", "8")):
        assert generate(model, tmp_path / name, "--seed", seed) == 0
    a, b, c = ((tmp_path / name / "accelerated.png").read_bytes() for name in "abc")
    assert a == b != c


def test_a_batch_is_its_singles(model: str, tmp_path: Path) -> None:
    assert generate(model, tmp_path / "both", "--n", "2", "--size", "24", "--negative", "a blue moon") == 0
    assert generate(model, tmp_path / "one", "--seed", "8", "--size", "24", "--negative", "a blue moon") == 0
    assert pixels(tmp_path / "both" / "accelerated-1.png").shape[-2:] == (24, 24)
    apart = pixels(tmp_path / "both" / "accelerated-2.png") - pixels(tmp_path / "one" / "accelerated.png")
    assert apart.abs().max() <= 1.5 / 255  # another batch size rounds otherwise


def test_compare(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, tmp_path, "--compare", "--repeats", "2") == 0
    said = capsys.readouterr()
    told = report(tmp_path)
    fast, plain, same = told["accelerated"], told["plain"], told["plain_in_the_same_time"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*told["files"], "report.json"])
    assert told["files"] == ["plain.png", "accelerated.png", "side-by-side.png"]

    one, other = pixels(tmp_path / "plain.png"), pixels(tmp_path / "accelerated.png")
    assert not torch.equal(one, other)
    assert fast["psnr_to_plain"] > 25
    assert fast["psnr_to_plain"] == pytest.approx(-10 * np.log10((one - other).square().mean().item()), abs=0.5)

    assert len(plain["runs"]) == len(fast["runs"]) == len(same["runs"]) == 2
    rounds = [slow / quick for slow, quick in zip(plain["runs"], fast["runs"], strict=True)]
    assert told["speed_up"]["value"] == pytest.approx(np.median(rounds))
    assert told["reference"]["steps"] == 24
    assert f"({fast['seconds']:.2f} s vs {plain['seconds']:.2f} s), {fast['psnr_to_plain']:.1f} dB from it" in said.out
    assert f"plain in the same time ({same['steps']} steps, {same['seconds']:.2f} s vs" in said.out
    assert f"{same['psnr_to_reference']:.1f} dB from the 24-step plain run" in said.out
    assert f"balanced: {fast['psnr_to_reference']:.1f} dB" in said.out
    assert said.err == ""  # not even that the warm-up saves nothing


def test_plan_stored_beside_the_pipeline(broken: Path, tmp_path: Path) -> None:
    (broken / "plan.json").write_text('{"name": "own", "techniques": [{"name": "deepcache"}]}')
    assert generate(str(broken), tmp_path / "own") == 0
    assert generate(str(broken), tmp_path / "other", "--plan", "guidance") == 0
    assert report(tmp_path / "own")["plan"]["name"] == "own"
    assert list(report(tmp_path / "other")["report"]["techniques"]) == ["guidance"]


def test_unknown_words_are_named(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, tmp_path, prompt="a Red zeppelin, a star and quux") == 0
    err = capsys.readouterr().err
    assert err == "accel: warning: the model does not know 'zeppelin', 'quux': expect a picture without it\n"


def test_short_runs_say_that_nothing_was_saved(model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate(model, tmp_path, "--steps", "2", "--plan", "deepcache") == 0
    assert capsys.readouterr().err.startswith("accel: warning: deepcache saved nothing in this run")


def test_check(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check", model, "--plan", "balanced", "--steps", "6"]) == 0
    out = capsys.readouterr().out
    assert "FAIL" not in out and "checks passed, everything holds" in out.splitlines()[-1]


def test_check_of_a_refused_plan(model: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["check", model, "--plan", "deepcache+deepcache"]) == 1
    out = capsys.readouterr().out
    assert "both take over" in out and "0 of 1 checks passed" in out


def test_the_bundled_pipeline_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["generate", PROMPT, "--out", str(tmp_path), "--steps", "8"]) == 0
    told = report(tmp_path)
    assert told["model"] == "tiny" and told["request"]["guidance"] == 4.0
    assert pixels(tmp_path / "accelerated.png").shape == (1, 3, 64, 64)


# --- the pieces ------------------------------------------------------------------------------------------------------


def test_unknown_words_only_where_the_vocabulary_is_closed() -> None:
    class Open:
        def __len__(self) -> int:
            return 49408

    assert unknown_words(make_tokenizer(), "A red star; a ZEBRA_zebra 7up") == ["zebra", "7up"]
    assert unknown_words(Open(), "zebra") == unknown_words(None, "zebra") == []


@pytest.mark.parametrize(("steps", "ratio", "expected"), [(25, 1.7, 15), (25, 0.5, 50), (3, 100.0, 1), (25, 0.01, 99)])
def test_steps_that_fit(steps: int, ratio: float, expected: int) -> None:
    assert fitting(steps, ratio, limit=99) == expected


def test_output_folder_is_all_or_none(tmp_path: Path) -> None:
    target = tmp_path / "a" / "b"
    with pytest.raises(ZeroDivisionError), output_folder(target) as stage:
        (stage / "half.txt").touch()
        1 / 0
    assert not list(tmp_path.iterdir())
    with output_folder(target) as stage:
        (stage / "whole.txt").touch()
    assert [path.name for path in target.iterdir()] == ["whole.txt"]


def test_side_by_side_leaves_pixels_alone() -> None:
    one, other = torch.zeros(2, 3, 64, 64), torch.ones(2, 3, 64, 64)
    sheet = pictures.side_by_side([("short", one), ("a caption that is too long for one line " * 2, other)])
    assert sheet.width == 12 + 2 * (384 + 12)
    assert sheet.getpixel((20, 20)) == (0, 0, 0) and sheet.getpixel((sheet.width - 20, 420)) == (255, 255, 255)
    assert pictures.wrap("aa bb cc", 5, len) == ["aa bb", "cc"]


def test_one_line() -> None:
    error = AccelError("a plan was refused:\n  - this\n  - that")
    assert console.one_line(error) == "a plan was refused: this; that"
    assert console.one_line("") == ""

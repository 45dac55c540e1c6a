"""Schedules at work: calibrated plans and FORA on every family, what rows are called, other projects' files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

import accel
from accel import AccelError, Plan, Refused, console
from accel.caches.fora import Fora
from accel.caches.schedule.names import assign
from accel.caches.schedule.stretching import stretch
from accel.caches.smoothcache import SmoothCache
from accel.commands import calibrate as command
from accel.target import Target
from tests.families import case, run
from tests.test_schedules import calls, measured, pipeline

FAMILIES = ("sd", "pixart", "flux", "wan", "wan-two-experts", "stable-audio", "audioldm2")
"""Pictures, video and sound, by UNets and transformers."""


# --- running ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FAMILIES)
def test_a_calibrated_plan_runs_as_it_says(name: str) -> None:
    """What is predicted are the schedule's cells, in each run alike, with every branch of guidance in step."""
    pipe, curves = pipeline(name), measured(name)
    plan = SmoothCache.fitted(curves, target_share=0.7)
    (technique,) = plan.techniques
    branches = 2 if name.startswith("wan") else 1

    def predicted(steps: int) -> int:
        rows = {kind: stretch(row, steps) for kind, row in technique.cells.items()}
        return branches * sum(row.count("0") * len(curves.members(kind)) for kind, row in rows.items())

    outs, cells = [], []
    with accel.accelerate(pipe, plan) as handle:
        for _ in range(3):
            outs.append(run(case(name), pipe, steps=6))
            part = handle.report().techniques["smoothcache"]
            cells.append((part.computed, part.predicted))
            assert part.sites == len(curves.kinds) and handle.report().cache_bytes == 0
        if name == "wan-two-experts":  # each site runs in its expert's steps only
            assert 0 < cells[0][1] < predicted(6)
        else:
            assert cells[0][1] == predicted(6) > 0 and part.declined == {}
            run(case(name), pipe, steps=9)
            later = handle.report().techniques["smoothcache"]
            assert later.predicted + sum(later.declined.values()) == predicted(9) > 0
    assert len(set(cells)) == 1
    assert outs[0].isfinite().all() and torch.equal(outs[0], outs[1]) and torch.equal(outs[0], outs[2])
    assert plan.fingerprint.quality["computed"] <= 0.7


def test_a_tighter_threshold_stays_closer_to_the_plain_picture() -> None:
    """With errors below what is measured anywhere nothing is predicted, and not a bit changes."""
    pipe, curves = pipeline("pixart"), measured("pixart", 10)
    plain = run(case("pixart"), pipe, steps=10)
    off = []
    for share in (0.9, 0.4):
        with accel.accelerate(pipe, SmoothCache.fitted(curves, target_share=share, how="reuse")):
            off.append(float((run(case("pixart"), pipe, steps=10) - plain).abs().mean()))
    assert 0 < off[0] < off[1]
    with accel.accelerate(pipe, SmoothCache.fitted(curves, alpha=0.0)), pytest.warns(accel.AccelWarning, match="saved"):
        assert torch.equal(run(case("pixart"), pipe, steps=10), plain)


def test_another_model_is_refused_and_another_solver_warned_of(tmp_path: Path) -> None:
    SmoothCache.fitted(measured("pixart"), target_share=0.7).save(tmp_path / "plan.json")
    plan = Plan.load(tmp_path / "plan.json")
    assert accel.check(pipeline("pixart"), plan) == []
    with pytest.raises(Refused, match="tuned for PixArtTransformer2DModel, this is FluxTransformer2DModel"):
        accel.accelerate(pipeline("flux"), plan)
    by_site = SmoothCache.fitted(measured("pixart"), target_share=0.7, by="site").techniques
    problems = accel.check(pipeline("wan"), by_site)
    assert len(problems) == len(measured("pixart").kinds) and "'transformer.transformer_blocks.0.attn1'" in problems[0]


def test_the_stretch_that_deepcache_skips_can_be_scheduled_too() -> None:
    for name in ("pixart", "sd"):
        plan = SmoothCache.calibrated(pipeline(name), calls(name), target_share=0.7, steps=6, kinds=("region",))
        assert list(plan.techniques[0].cells) == ["region"]
        with accel.accelerate(pipeline(name), plan) as handle:
            assert run(case(name), pipeline(name), steps=6).isfinite().all()
            part = handle.report().techniques["smoothcache"]
            assert part.strip == plan.techniques[0].cells["region"].replace("1", "#").replace("0", ".")


# --- FORA ------------------------------------------------------------------------------------------------------------


def test_fora_computes_every_intervalth_step() -> None:
    pipe = pipeline("dit")
    assert Fora().table(5).rows["ff"].cells == "10101"
    with accel.accelerate(pipe, Fora(interval=3)) as handle:
        run(case("dit"), pipe, steps=7)
        part = handle.report().techniques["fora"]
        assert (part.sites, part.strip) == (2 * 4, "#..#..#")


def test_the_embedded_timestep_is_never_an_old_one() -> None:
    """Z-Image's timestep embedder has a layer called ``mlp``: it is part of no block, and runs in every step."""
    pipe = pipeline("z-image")
    assert not any("t_embedder" in site.name for site in Target.of(pipe).of_kind("ff"))
    seen: list[int] = []
    hook = pipe.transformer.t_embedder.mlp[0].register_forward_hook(lambda *_: seen.append(1))
    for technique in (Fora(), SmoothCache({"mlp": "1010"})):
        seen.clear()
        with accel.accelerate(pipe, technique):
            run(case("z-image"), pipe, steps=4)
        assert len(seen) == 4
    hook.remove()


# --- rows and names --------------------------------------------------------------------------------------------------


def sites(name: str, rows: dict[str, str]) -> dict[str, str]:
    """Site → cells, as the technique would run them."""
    found, problems = assign(list(rows), Target.of(pipeline(name)))
    assert problems == []
    return {site.name.partition(".")[2]: rows[row] for site, row in found.items()}


def test_rows_are_found_by_kind_module_word_block_and_name() -> None:
    attn1 = {f"transformer_blocks.{i}.attn1": "10" for i in range(4)}
    assert sites("pixart", {"self_attn": "10"}) == sites("pixart", {"attn1": "10"}) == attn1
    assert sites("pixart", {"attn": "10"}) == attn1
    assert sites("pixart", {"attn-2": "10"}) == {"transformer_blocks.2.attn1": "10"}
    assert sites("pixart", {"cross-0": "10"}) == {"transformer_blocks.0.attn2": "10"}
    own = sites("pixart", {"transformer.transformer_blocks.1.attn1": "11", "attn": "10"})
    assert own == {**attn1, "transformer_blocks.1.attn1": "11"}
    assert sites("flux", {"attn-4": "10"}) == {"single_transformer_blocks.1.attn": "10"}  # in order of execution
    assert list(sites("flux", {"mlp-0": "10"})) == ["transformer_blocks.0.ff", "transformer_blocks.0.ff_context"]
    assert len(sites("wan-two-experts", {"ffn-0": "10"})) == 1  # both experts have one; the names here leave them out


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("pixart", {}, r"no schedule to follow: make one with SmoothCache.calibrated\(pipe"),
        ("pixart", {"mlp-4": "10"}, "nothing here is called 'mlp-4': transformer .PixArt.* in blocks 0 to 3"),
        ("sd", {"attn-0": "10"}, "'attn-0': unet .UNet2DConditionModel. has .*, and no numbered blocks"),
        ("flux", {"cross_attn": "10"}, "nothing here is called 'cross_attn'.*joint_attn"),
        ("flux", {"mlp-5": "10"}, "nothing here is called 'mlp-5'"),
        ("pixart", {"attn": "10", "attn-1": "11"}, "rows 'attn' and 'attn-1' both mean .*blocks.1.attn1: keep one"),
    ],
)
def test_rows_that_fit_nothing_are_refused_by_name(name: str, rows: dict[str, str], message: str) -> None:
    with pytest.raises(Refused, match=f"smoothcache: .*{message}"):
        accel.accelerate(pipeline(name), SmoothCache(rows))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"ff": "0101"}, "begins with 1"),
        ({"ff": "10x"}, "not a text of 1"),
        ({"ff": [1, 0]}, "not a text of 1"),
        ({"ff": "10", "attn": "101"}, "for 2 and 3 steps"),
        ([("ff", "10"), ("ff", "11")], "same name"),
        ("1010", "a mapping from names"),
        (7, "a mapping from names"),
    ],
)
def test_bad_rows_are_refused(rows: Any, message: str) -> None:
    with pytest.raises(AccelError, match=message):
        SmoothCache(rows)
    with pytest.raises(AccelError, match=message):
        Plan.from_dict({"techniques": [{"name": "smoothcache", "rows": json.loads(json.dumps(rows))}]})


def test_a_schedule_survives_json_and_text() -> None:
    technique = SmoothCache({"attn": "1101", "mlp-0": "1011"}, how="linear", axis="sigma")
    data = json.loads(json.dumps(Plan.of(technique).to_dict()))
    assert data["techniques"][0]["rows"] == {"attn": "1101", "mlp-0": "1011"}
    assert Plan.from_dict(data).techniques == (technique,) == Plan.of(str(technique)).techniques
    assert hash(technique) == hash(Plan.from_dict(data).techniques[0])
    assert Plan.of(f"{technique} + guidance").techniques[0] == technique
    long = SmoothCache({f"attn-{i}": "10" * 25 for i in range(28)})
    assert str(long) == "smoothcache(28 rows of 50 steps, 50% computed, how=reuse)"


def test_claims_are_those_of_the_rows() -> None:
    assert SmoothCache({"attn-3": "10"}).claims == {"self_attn_outputs"}
    assert SmoothCache({"cross_attn": "10", "mlp": "10"}).claims == {"cross_attn_outputs", "block_outputs"}
    assert SmoothCache({"attn2": "10"}).claims == Fora().claims  # whatever a module of that name may be


# --- files of other projects -----------------------------------------------------------------------------------------


def test_smoothcache_and_l2c_files_load_as_they_are(tmp_path: Path) -> None:
    """By component, and by component and block, for steps that are stretched where a run has others."""
    file = tmp_path / "50-N-3.json"
    file.write_text(json.dumps({"attn1": [1, 0, 1, 0, 0, 1]}))
    assert SmoothCache.load(file) == SmoothCache({"attn1": "101001"})
    l2c = {f"{part}-{i}": [1, int(i > 1), 1, 0] for i in range(4) for part in ("attn", "mlp")}
    file.write_text(json.dumps(l2c))
    technique = SmoothCache.load(file)
    assert len(technique.cells) == 8 and technique.cells["mlp-3"] == "1110"
    with accel.accelerate(pipeline("dit"), technique) as handle:
        run(case("dit"), pipeline("dit"), steps=4)
        part = handle.report().techniques["smoothcache"]
        assert (part.sites, part.predicted, part.strip) == (8, 4 + 8, "#+#.")


def _masks(tmp_path: Path, logits: torch.Tensor) -> dict[str, Path]:
    """One learned table [step, block, component] in every form of file."""
    files = {"json": tmp_path / "a.json", "st": tmp_path / "b.safetensors", "routers": tmp_path / "c.safetensors"}
    files["json"].write_text(json.dumps({"logits": logits.tolist()}))
    save_file({"mask": (logits.sigmoid() > 0.1).to(torch.uint8)}, files["st"])
    last = len(logits) - 1  # HarmoniCa counts timesteps upwards: the router executed first is the last
    save_file({f"{last - step}.prob": row.flatten().contiguous() for step, row in enumerate(logits)}, files["routers"])
    return files


def test_learned_masks_load_from_json_and_safetensors(tmp_path: Path) -> None:
    logits = torch.full((4, 4, 2), 5.0)
    logits[1, :, 0] = -5.0  # attention is not computed in the second step
    logits[2, 3, 1] = -2.3  # sigmoid 0.091
    logits[3, 3, 1] = -2.1  # sigmoid 0.109
    for file in _masks(tmp_path, logits).values():
        technique = SmoothCache.load(file)
        assert technique.cells["attn-0"] == technique.cells["attn-3"] == "1011", file
        assert (technique.cells["mlp-0"], technique.cells["mlp-3"]) == ("1111", "1101"), file
        with accel.accelerate(pipeline("dit"), technique) as handle:
            run(case("dit"), pipeline("dit"), steps=4)
            assert handle.report().predicted == 4 + 1
    assert SmoothCache.load(tmp_path / "a.json", threshold=0.5).cells["mlp-3"] == "1100"
    three = {"components": ["attn1", "attn2", "ff"], "mask": [[[1, 1, 1]], [[0, 1, 0]]]}
    (tmp_path / "three.json").write_text(json.dumps(three))
    assert SmoothCache.load(tmp_path / "three.json").cells == {"attn1-0": "10", "attn2-0": "11", "ff-0": "10"}


def test_a_pickle_is_refused_with_the_way_to_convert_it(tmp_path: Path) -> None:
    """What the message says to do works, without running anything that the file may hold."""
    file = tmp_path / "router.pt"
    routers = {f"{i}.prob": torch.tensor([5.0, 5.0 if i else -5.0]) for i in range(2)}
    torch.save({"routers": routers, "args": argparse.Namespace(lr=0.01)}, file)
    with pytest.raises(AccelError, match="is a pickle, which may run any code.* convert it once") as refusal:
        SmoothCache.load(file)
    recipe = str(refusal.value).partition("with ")[2]
    assert "weights_only=True" in recipe
    with torch.serialization.safe_globals([argparse.Namespace]):
        save_file(torch.load(file, weights_only=True)["routers"], file.with_suffix(".safetensors"))
    assert SmoothCache.load(file.with_suffix(".safetensors")).cells == {"attn-0": "11", "mlp-0": "10"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 0]", "holds no SmoothCache or L2C schedule"),
        ("{}", "holds no SmoothCache"),
        ("{", "cannot be used"),
        ('{"attn1": [1, 2]}', "row attn1 is not a list of 1"),
        ('{"attn1": "compute"}', "cannot be used"),
        ('{"attn1": [0, 1]}', "begins with 1"),
        ('{"mask": [[1, 0]]}', r"its shape is \[1, 2\], not \[step, block, 2\]"),
        ('{"mask": [[[1, 0]]], "more": [1]}', "it holds mask, more"),
        ('{"techniques": []}', "it is a plan: hand it to accel.accelerate"),
        ('{"fingerprint": {}}', "it holds error curves: SmoothCache.fitted"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "schedule.json"
    file.write_text(content)
    with pytest.raises(AccelError, match=message) as refusal:
        SmoothCache.load(file)
    assert "\n" not in str(refusal.value)


def test_missing_and_broken_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(AccelError, match="cannot be read"):
        SmoothCache.load(tmp_path / "none.json")
    (tmp_path / "bad.safetensors").write_bytes(b"no tensors")
    with pytest.raises(AccelError, match="cannot be used"):
        SmoothCache.load(tmp_path / "bad.safetensors")
    save_file({"0.prob": torch.ones(2), "2.prob": torch.ones(2)}, tmp_path / "gap.safetensors")
    with pytest.raises(AccelError, match="some are missing"):
        SmoothCache.load(tmp_path / "gap.safetensors")


# --- command line ----------------------------------------------------------------------------------------------------


def test_the_command_writes_a_plan_that_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "schedule.json"
    said = {"model": "tiny", "device": "cpu", "dtype": "float32", "prompts": "bundled", "n": 1, "guidance": None}
    goal = {
        "alpha": None,
        "target": 0.6,
        "target_db": None,
        "how": None,
        "steps": 6,
        "lookahead": 3,
        "seed": 0,
        "size": 32,
    }
    with console.plain_warnings():
        assert command.run(argparse.Namespace(**said, solver="own", **goal, out=str(out))) == 0
    text = capsys.readouterr().out
    plan = Plan.load(out)
    assert f"wrote the plan to {out}" in text and "self_attn" in text
    assert plan.fingerprint.steps == 6 and plan.fingerprint.quality["computed"] <= 0.6
    pipe = case("tiny").build()
    with accel.accelerate(pipe, plan) as handle:
        run(case("tiny"), pipe, steps=6)
        assert handle.report().predicted > 0
    with pytest.raises(AccelError, match="name a .json file"):
        command.run(argparse.Namespace(**said, solver="own", **goal, out=str(tmp_path)))

"""Metrics that need weights, and what happens without them: nothing is downloaded, nothing breaks half way."""

from __future__ import annotations

import json
import sys
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor, CLIPTokenizer

import accel
from accel import AccelWarning, Plan, cli
from accel.errors import AccelError
from accel.measure import results, tabulate
from accel.measure.bench import Bench, Setup
from accel.measure.clip import ClipScore
from accel.measure.metrics import Distance, lpips
from accel.measure.quality import ms_ssim, ssim


def pictures(count: int, size: int = 64, seed: int = 0) -> torch.Tensor:
    coarse = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return nn.functional.interpolate(coarse, size=(size, size), mode="bilinear")


# MS-SSIM


def test_ms_ssim_where_there_is_room_for_it() -> None:
    picture = pictures(2, 176)
    noisy = (picture + 0.1 * torch.randn(picture.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 1)
    assert ms_ssim(picture, picture).tolist() == pytest.approx([1.0, 1.0])
    assert (ms_ssim(noisy, picture) > ssim(noisy, picture)).all()  # noise goes away on coarser scales
    assert (ms_ssim(noisy, picture) < 0.999).all()
    assert ms_ssim(noisy, picture)[:1].tolist() == pytest.approx(ms_ssim(noisy[:1], picture[:1]).tolist())
    with pytest.raises(AccelError, match="176 pixels a side and more, not 2x3x175x200"):
        ms_ssim(torch.rand(2, 3, 175, 200), torch.rand(2, 3, 175, 200))


# CLIPScore


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random CLIP model with a processor that splits words into letters."""
    folder = tmp_path_factory.mktemp("clip")
    letters = [*"abcdefghijklmnopqrstuvwxyz", *(f"{letter}</w>" for letter in "abcdefghijklmnopqrstuvwxyz")]
    vocabulary = {token: i for i, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[])
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    text = {"vocab_size": len(vocabulary), "max_position_embeddings": 16, "eos_token_id": vocabulary["<|endoftext|>"]}
    config = CLIPConfig(
        text_config={**size, **text}, vision_config={**size, "image_size": 32, "patch_size": 8}, projection_dim=8
    )
    with torch.random.fork_rng():
        torch.manual_seed(3)
        CLIPModel(config).save_pretrained(folder)
    images = CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    CLIPProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def test_clip_score_is_a_hundred_times_the_cosine(clip: Path) -> None:
    score = ClipScore(clip)
    prompts = ["a red star", "star", "blue"]
    values = score(pictures(3), pictures(3), prompts)
    assert values.shape == (3,) and ((0 < values) & (values <= 100)).all() and len(set(values.tolist())) == 3
    model, processor = CLIPModel.from_pretrained(clip).eval(), CLIPProcessor.from_pretrained(clip)
    shown = [(picture * 255).round().byte().permute(1, 2, 0).numpy() for picture in pictures(3)]
    with torch.no_grad():
        out = model(**processor(text=prompts, images=shown, return_tensors="pt", padding=True))
    cosines = (out.logits_per_image / model.logit_scale.exp()).diagonal()
    torch.testing.assert_close(values, 100 * cosines.clamp(min=0))
    alone = score(pictures(3)[1:], pictures(2), prompts[1:])
    torch.testing.assert_close(alone, values[1:], atol=1e-3, rtol=0)  # each picture for itself
    with torch.no_grad():
        score._model.visual_projection.weight.neg_()
    assert score(pictures(3), pictures(3), prompts).tolist() == [0.0, 0.0, 0.0]  # never below 0


def test_a_long_prompt_is_read_from_the_beginning_and_said_to_be(clip: Path) -> None:
    score, long = ClipScore(clip), "abcdefghijklmnop"
    with pytest.warns(AccelWarning, match="reads the first 16 tokens: 1 of 2 prompts are longer"):
        score.check(["star", long])
    assert score(pictures(1), pictures(1), [long]).isfinite().all()


def test_a_folder_without_a_whole_clip_model_is_refused(clip: Path, tmp_path: Path) -> None:
    with pytest.raises(AccelError, match="neither a folder nor a hub id"):
        ClipScore(tmp_path / "nowhere")
    with pytest.raises(AccelError, match="it lacks config.json"):
        ClipScore(tmp_path)
    for file in clip.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(AccelError, match="it lacks tokenizer.json or vocab.json"):
        ClipScore(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((clip / "tokenizer.json").read_bytes())
    from safetensors.torch import load_file, save_file

    weights = load_file(clip / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(AccelError, match="lacks weights of a CLIP model, visual_projection.weight among them"):
        ClipScore(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(AccelError, match="cannot be loaded"):
        ClipScore(tmp_path)


# LPIPS


def test_lpips_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(AccelError, match="needs torchvision for its backbone: pip install torchvision, or bring"):
        lpips()
    with pytest.raises(AccelError, match="no backbone 'resnet': there are alex, vgg, squeeze"):
        lpips("resnet")
    torchvision_with_weights(monkeypatch, tmp_path)
    (tmp_path / "checkpoints" / "alexnet-1.pth").unlink()
    with pytest.raises(AccelError, match="weights of alex, which are not at hand: put https://x/alexnet-1.pth into"):
        lpips()


def test_lpips_by_a_backbone_that_is_at_hand(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    torchvision_with_weights(monkeypatch, tmp_path)
    distance = lpips()
    picture = pictures(2)
    noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(1))
    equal, near, far = (distance(picture + scale * noise, picture, ["", ""]) for scale in (0.0, 0.05, 0.3))
    assert equal.tolist() == [0.0, 0.0] and (near > 0).all() and (far > near).all()
    assert distance(picture[:1] + 0.3 * noise[:1], picture[:1], [""]).tolist() == pytest.approx([far[0].item()])
    assert (distance.name, distance.about) == ("LPIPS (alex)", "alexnet-1.pth")


def torchvision_with_weights(monkeypatch: pytest.MonkeyPatch, hub: Path) -> None:
    """A torchvision whose weights are cached, with an AlexNet of random weights."""
    (hub / "checkpoints").mkdir(exist_ok=True)
    (hub / "checkpoints" / "alexnet-1.pth").touch()
    url = SimpleNamespace(DEFAULT=SimpleNamespace(url="https://x/alexnet-1.pth"))
    models = SimpleNamespace(AlexNet_Weights=url)
    monkeypatch.setitem(sys.modules, "torchvision.models", models)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(hub))
    monkeypatch.setattr("torchmetrics.image.lpip._TORCHVISION_AVAILABLE", True)
    monkeypatch.setattr("torchmetrics.functional.image.lpips._get_tv_model_features", _alexnet)


def _alexnet(net: str, pretrained: bool) -> nn.Sequential:
    sizes = [(3, 64, 11, 4, 2), (64, 192, 5, 1, 2), (192, 384, 3, 1, 1), (384, 256, 3, 1, 1), (256, 256, 3, 1, 1)]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for i, size in enumerate(sizes):
            layers += [nn.Conv2d(*size), nn.ReLU()]
            layers += [nn.MaxPool2d(3, 2)] if i in (0, 1, 4) else []
        return nn.Sequential(OrderedDict((str(i), layer) for i, layer in enumerate(layers)))


# In a measurement


SETUP = Setup("tiny", ["a red star", "a blue square"], [], steps=2, rounds=1, batch=2, call={"height": 32, "width": 32})


def test_metrics_are_kept_tabulated_and_compared(tmp_path: Path, clip: Path) -> None:
    pipe = accel.load("tiny", Plan())
    pipe.set_progress_bar_config(disable=True)
    l1 = Distance(lambda one, other: (one - other).abs().mean((1, 2, 3)), "L1")
    score = ClipScore(clip)
    bench = Bench(pipe, SETUP, tmp_path / "journal", metrics=[score, l1])
    items = bench.run()
    rows = results.rows(SETUP, items)
    assert bench.head["metrics"] == {"CLIPScore": score.about, "L1": ""}
    assert all(row.metrics.keys() == {"CLIPScore", "L1"} and row.ms_ssim is None and row.side == 32 for row in rows)
    assert rows[-1].metrics["L1"].value == 0 < rows[0].metrics["L1"].value  # the reference is the last
    said = tabulate.text(rows, 2)
    assert "CLIPScore" in said and "MS-SSIM takes pictures of 176 pixels a side and more; these have 32." in said
    assert "| CLIPScore | L1 |" in tabulate.page("title", bench.head, rows)
    document = json.loads(json.dumps(results.document(SETUP, bench.head, items, rows)))
    assert len(document["arms"]["plain, 2 steps"]["metrics"]["L1"]) == 2
    changed = json.loads(json.dumps(document))
    one = changed["arms"]["plain, 2 steps"]["metrics"]
    one["L1"] = [value + 0.01 for value in one["L1"]]
    lines = tabulate.changes(document, changed).splitlines()
    assert lines[0].split(" | ")[-2:] == ["CLIPScore", "L1 |"] and "MS-SSIM" not in lines[0]
    assert "**" in lines[2].split(" | ")[-1] and "(noise)" in lines[3].split(" | ")[-1]
    with pytest.raises(AccelError, match="other settings"):
        Bench(pipe, SETUP, tmp_path / "journal", metrics=[l1])
    with pytest.raises(AccelError, match="no metric can be called 'psnr'"):
        Bench(pipe, SETUP, tmp_path / "other", metrics=[Distance(l1.distance, "psnr")])


def test_a_metric_that_fails_leaves_what_was_measured(tmp_path: Path) -> None:
    pipe = accel.load("tiny", Plan())
    pipe.set_progress_bar_config(disable=True)
    calls: list[int] = []

    def broken(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        calls.append(len(one))
        return torch.zeros(len(one)) if len(calls) == 1 else torch.full((len(one),), torch.nan)

    bench = Bench(pipe, SETUP, tmp_path / "journal", metrics=[Distance(broken, "mine")])
    with pytest.raises(AccelError, match="plain, 4 steps, prompts 1 to 2: mine must be one finite number per picture"):
        bench.run()
    assert [(item["arm"], item["mine"]) for item in bench.journal.of("picture")] == [("plain, 2 steps", 0.0)] * 2


def test_missing_weights_are_told_before_anything_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, hint in [(["--clip", str(tmp_path)], "holds no CLIP model"), (["--lpips", "vgg"], "torchvision")]:
        assert cli.main(["bench", "--out", str(tmp_path / "out"), *arguments]) == 2
        error = capsys.readouterr().err
        assert hint in error and error.count("\n") == 1
        assert list((tmp_path / "out").iterdir()) == []


# Distances of sets


class Real:
    """A judge whose real pictures have normal features."""

    def real(self) -> torch.Tensor:
        return torch.randn(64, 4, generator=torch.Generator().manual_seed(9))


def test_fid_stands_beside_that_of_real_pictures() -> None:
    names = [f"prompt {i}" for i in range(32)]
    setup = Setup("planted", names, [Plan.of("deepcache")], steps=4, rounds=1)
    items = []
    for arm in setup.arms:
        found = torch.randn(32, 4, generator=torch.Generator().manual_seed(5)) + (2.0 if arm.plan else 0.0)
        for row in range(32):
            quality = {"psnr": 30.0, "ssim": 0.9, "facts": {"noun": True}, "features": found[row].tolist()}
            items.append({"kind": "picture", "arm": arm.name, "prompt": row, **quality})
        items.append({"kind": "cost", "arm": arm.name, "flops": 1, "peak_bytes": None, "predicted": 1})
    items.append({"kind": "round", "seconds": {arm.name: 1.0 for arm in setup.arms}})
    rows = results.rows(setup, items, Real())
    plan, plain = next(row for row in rows if row.arm.plan), rows[0]
    assert plain.fid == pytest.approx(plain.fid_floor, abs=1.5) and plan.fid > plain.fid_floor + 10  # |shift|² = 16
    assert {row.fid_floor for row in rows} == {plain.fid_floor}
    assert f"FID (real: {plain.fid_floor:.1f})" in tabulate.text(rows, 32)
    few = Setup("planted", names[:3], setup.plans, steps=4, rounds=1)
    kept = [item for item in items if item.get("prompt", 0) < 3]
    assert all(row.fid is None for row in results.rows(few, kept, Real()))

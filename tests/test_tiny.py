"""The bundled pipeline: its world, its training and what its weights draw."""

from __future__ import annotations

import re
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch

import accel.tiny
from accel.tiny import train
from accel.tiny.models import make_text_encoder, make_unet, make_vae
from accel.tiny.render import render
from accel.tiny.scenes import make_scene
from accel.tiny.tokens import MAX_TOKENS, make_tokenizer
from accel.tiny.training.dit import DitTask
from accel.tiny.training.evaluate import score
from accel.tiny.training.flat import FlatWeights
from accel.tiny.training.latents import tokenize
from accel.tiny.training.loop import Loop, Settings
from accel.tiny.training.text import TextTask, object_facts
from accel.tiny.training.unet import UnetTask
from accel.tiny.training.vae import VaeTask
from accel.tiny.transformer import make_dit, with_projection
from accel.tiny.world import BACKGROUNDS, COLOURS, NAMES, NUMBERS, PLACES, plural, visible, words

SCENES = [make_scene(seed, held_out=None) for seed in range(1500)]


# Scenes


def test_scenes_are_the_same_everywhere() -> None:
    captions = zlib.crc32("\n".join(scene.caption for scene in SCENES[:200]).encode())
    assert captions == 3138861109
    assert make_scene(7) == make_scene(7) != make_scene(8)
    assert np.array_equal(render(make_scene(7)), render(make_scene(7)))


def test_captions_say_exactly_the_facts() -> None:
    """Read every caption back with a parser of its own."""
    for scene in SCENES:
        text = scene.caption
        stated = [b for b in BACKGROUNDS if text.endswith(f" on a {b} background")]
        stated += [name for name, end in LANDSCAPE_ENDS.items() if text.endswith(end)]
        assert stated == ([scene.background] if scene.background_stated else [])
        text = re.sub(r" (on a \w+ background|in a meadow|at night|at the beach)$", "", text)
        relation = next((r for r in ("to the left of", "above") if f" {r} " in text), None)
        assert relation == scene.relation
        mentions = re.split(r", | and | to the left of | above ", text)
        assert [read_mention(mention) for mention in mentions] == [
            (item.count, item.scale, item.name, item.place) for item in scene.objects
        ]


LANDSCAPE_ENDS = {"meadow": " in a meadow", "night": " at night", "beach": " at the beach"}


def read_mention(text: str) -> tuple[int, str | None, str, str | None]:
    """``"a big red star"`` to count, scale, name and place."""
    places = {"at the top": "top", "at the bottom": "bottom", "on the left": "left", "on the right": "right"}
    places |= {"in the center": "center"} | {p: p for p in PLACES if " " in p}
    place = next((said for said in places if text.endswith(f" {said}")), None)
    text = text.removesuffix(f" {place}")
    number, _, name = text.partition(" ")
    count = {"a": 1, "an": 1, "two": 2, "three": 3, "four": 4}[number]
    scale = next((word for word in ("big", "small") if name.startswith(f"{word} ")), None)
    name = name.removeprefix(f"{scale} ")
    if count > 1:
        name = {plural(known): known for known in NAMES}[name]
    return count, scale, name, places.get(place or "")


def test_facts_hold_in_the_picture() -> None:
    for scene in SCENES:
        boxes = [box for item in scene.objects for box in item.boxes]
        assert all(0 <= v - s // 2 and v - s // 2 + s <= 64 for x, y, s in boxes for v in (x, y))
        assert all(len(item.boxes) == item.count and visible(item.name, scene.background) for item in scene.objects)
        for i, (x, y, s) in enumerate(boxes):
            assert all(max(abs(x - u), abs(y - v)) >= 0.7 * max(s, t) for u, v, t in boxes[:i]), scene.caption
    left = [scene for scene in SCENES if scene.relation == "to the left of"]
    above = [scene for scene in SCENES if scene.relation == "above"]
    assert left and all(s.objects[0].boxes[0][0] < s.objects[1].boxes[0][0] - 15 for s in left)
    assert above and all(s.objects[0].boxes[0][1] < s.objects[1].boxes[0][1] - 15 for s in above)


def test_shapes_have_their_colour_and_plain_backgrounds_too() -> None:
    for scene in SCENES:
        image = render(scene).astype(int)
        for item in scene.objects:
            if item.colour and item.noun in ("circle", "square", "heart", "star", "triangle", "cross"):
                x, y, _ = item.boxes[0]
                assert np.abs(image[y, x] - COLOURS[item.colour]).max() <= 2, scene.caption
        if scene.background in BACKGROUNDS:
            corners = image[[0, 0, -1, -1], [0, -1, 0, -1]]
            assert (corners == BACKGROUNDS[scene.background]).all(axis=1).any()


def test_held_out_compositions_never_occur_in_training() -> None:
    trained = {make_scene(seed).composition for seed in range(3000)}
    held_out = {make_scene(seed, held_out=True).composition for seed in range(1000)}
    assert not trained & held_out and len(held_out) > 300
    assert 0.05 < np.mean([scene.held_out for scene in SCENES]) < 0.15
    assert {len(scene.objects) for scene in SCENES} == {1, 2, 3, 4, 5}
    assert {item.count for scene in SCENES for item in scene.objects} == {1, *NUMBERS}


# Tokenizer


def test_every_word_of_the_grammar_is_one_token() -> None:
    tokenizer = make_tokenizer()
    assert all(len(tokenizer.tokenize(word)) == 1 for word in words())
    said = {word for scene in SCENES for word in re.findall(r"\w+", scene.caption)}
    assert said <= set(words())
    assert max(len(tokenizer(scene.caption).input_ids) for scene in SCENES) <= MAX_TOKENS
    assert tokenizer.decode(tokenizer("two green squares and a red star").input_ids[1:-1]) == (
        "two green squares and a red star"
    )
    assert len(tokenizer.tokenize("zebra")) > 1


def colour_distance(text_encoder, tokenizer) -> float:
    """How far "red" and "blue" lie apart in the encoder's output, as a share of its norm."""
    with torch.inference_mode():
        red, blue = text_encoder(tokenize(tokenizer, ["a red star", "a blue star"])).last_hidden_state
    return float((red[2] - blue[2]).norm() / red[2].norm())


def test_words_are_told_apart_before_training() -> None:
    tokenizer = make_tokenizer()
    assert colour_distance(make_text_encoder(tokenizer), tokenizer) > 1.0


def test_tokens_are_asked_for_the_facts_they_have_read() -> None:
    """Every mention's last word is asked for its object; the last tokens restate all of them."""
    tokenizer = make_tokenizer()
    for scene in SCENES[:300]:
        ids = tokenizer(scene.caption).input_ids
        facts = object_facts(scene)
        mentions, slots = facts[: len(scene.objects)], facts[len(scene.objects) :]
        for item, (at, said) in zip(scene.objects, mentions, strict=True):
            assert tokenizer.decode([ids[at]]).strip() == item.phrase.split()[-1]
            assert (said["noun"], said["colour"], said["count"]) == (item.noun, item.colour, item.count)
        assert [at for at, _ in slots] == (list(range(35, 40)) if len(ids) <= 35 else [])
        assert [said["noun"] for _, said in slots[: len(scene.objects)]] in ([], [i.noun for i in scene.objects])
    related = next(scene for scene in SCENES if scene.relation == "above")
    assert [said["role"] for _, said in object_facts(related)[2:5]] == [("above", 0), ("above", 1), None]


# Training


def small_text_task() -> TextTask:
    torch.manual_seed(3)
    return TextTask(make_text_encoder(make_tokenizer(), layers=1))


def small_unet_task() -> UnetTask:
    torch.manual_seed(3)
    tokenizer = make_tokenizer()
    captions = [scene.caption for scene in SCENES[:8]]
    data = {"latents": torch.randn(8, 4, 16, 16), "tokens": tokenize(tokenizer, captions)}
    (empty,) = tokenize(tokenizer, [""])
    return UnetTask(make_unet((16, 32, 32), 8), make_text_encoder(tokenizer, layers=1), data, empty)


def small_dit_task() -> DitTask:
    torch.manual_seed(3)
    tokenizer = make_tokenizer()
    data = {"latents": torch.randn(8, 16, 8, 8), "tokens": tokenize(tokenizer, [scene.caption for scene in SCENES[:8]])}
    (empty,) = tokenize(tokenizer, [""])
    return DitTask(make_dit(1), with_projection(make_text_encoder(tokenizer, layers=1)), data, empty)


def small_vae_task() -> VaeTask:
    torch.manual_seed(3)
    return VaeTask(make_vae((8, 8, 8), groups=4))


def trained(task: UnetTask | DitTask | VaeTask | TextTask, out: Path, stop: int, steps: int = 6) -> FlatWeights:
    """Train ``task`` from the checkpoint in ``out`` to step ``stop`` of a run of ``steps``."""
    settings = Settings(out=out, learning_rate=1e-3, batch=2, steps=steps, seed=5)
    out.mkdir(exist_ok=True)
    weights = FlatWeights(task.modules())
    loop = Loop(task, weights, settings, 0, 1)
    loop.run(stop=stop)
    return weights


@pytest.mark.parametrize("make", [small_unet_task, small_dit_task, small_vae_task, small_text_task])
def test_an_interrupted_run_ends_in_the_same_state(make, tmp_path: Path) -> None:
    through = trained(make(), tmp_path / "through", stop=6).state()
    trained(make(), tmp_path / "broken", stop=3)
    resumed = trained(make(), tmp_path / "broken", stop=6).state()
    half = trained(make(), tmp_path / "half", stop=3).state()
    assert through.keys() == resumed.keys() >= {"master", "ema", "exp_avg", "exp_avg_sq"}
    assert all(torch.equal(through[name], resumed[name]) for name in through)
    assert not torch.equal(through["master"], half["master"])


@pytest.mark.parametrize("make", [small_vae_task, small_text_task])
def test_training_lowers_the_loss(make, tmp_path: Path) -> None:
    task = make()
    before = float(task.loss(8, seed=99).detach())
    trained(task, tmp_path / "run", stop=60, steps=60)
    assert float(task.loss(8, seed=99).detach()) < 0.7 * before


def test_bf16_weights_follow_their_float32_master() -> None:
    module = torch.nn.Linear(4, 4)
    weights = FlatWeights([module], dtype=torch.bfloat16)
    before = weights.master.detach().clone()
    module(torch.ones(2, 4, dtype=torch.bfloat16)).float().square().sum().backward()
    weights.step(1e-4, ema_decay=0.5)
    assert module.weight.dtype == torch.bfloat16 and not torch.equal(before, weights.master)
    assert torch.equal(module.weight.flatten(), weights.master[:16].bfloat16())
    assert torch.allclose(weights.ema, (before + weights.master.detach()) / 2)


def test_what_is_missing_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, hint in [
        (["unet", "--steps", "1"], "run the stage 'latents' first"),
        (["export"], "give --to FOLDER"),
        (["vae", "--steps", "1", "--minutes", "1"], "either steps or minutes"),
    ]:
        assert train.main([*arguments, "--out", str(tmp_path / "run")]) == 1
        error = capsys.readouterr().err
        assert hint in error and error.count("\n") == 1


def test_training_goes_on_from_the_shipped_weights_alone(tmp_path: Path) -> None:
    """Every stage by its command, from the committed folder to a new one that loads and has moved."""
    from diffusers import DiffusionPipeline

    run, new, start = str(tmp_path / "run"), tmp_path / "new", str(accel.tiny.path())
    assert train.main(["latents", "--out", run, "--init", start, "--scenes", "8"]) == 0
    assert train.main(["unet", "--out", run, "--init", start, "--steps", "2", "--batch", "2"]) == 0
    assert train.main(["export", "--out", run, "--to", str(new)]) == 0
    before, after = (DiffusionPipeline.from_pretrained(folder) for folder in (start, new))
    assert after.vae.config.scaling_factor == pytest.approx(before.vae.config.scaling_factor)
    pairs = list(zip(before.unet.parameters(), after.unet.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in pairs)
    assert all(torch.allclose(a, b, atol=1e-2) for a, b in pairs)
    assert all(torch.equal(a, b) for a, b in zip(before.vae.parameters(), after.vae.parameters(), strict=True))


# The shipped folder


def test_names_and_paths() -> None:
    assert accel.tiny.names() == ("tiny", "tiny-dit")
    assert (accel.tiny.path() / "model_index.json").is_file()
    with pytest.raises(ValueError, match="'huge'.*use one of tiny, tiny-dit"):
        accel.tiny.path("huge")


def test_missing_weights_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accel.tiny, "_WEIGHTS", tmp_path)
    with pytest.raises(FileNotFoundError, match="reinstall"):
        accel.tiny.path()


def test_finding_the_folder_imports_nothing_heavy() -> None:
    code = "import sys, accel.tiny; accel.tiny.path(); assert not {'torch', 'diffusers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.fixture(scope="module")
def pipe():
    from diffusers import DiffusionPipeline

    pipe = DiffusionPipeline.from_pretrained(accel.tiny.path())
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_the_pictures_show_what_the_prompts_state(pipe) -> None:
    """Shares of held-out prompts by kind of fact; the model card has the figures of a larger set."""
    scores = score(pipe, count=24, steps=12, batch=12).by_difficulty
    for difficulty, floors in FLOORS.items():
        facts = scores[difficulty].facts
        assert all(facts[kind] >= floor for kind, floor in floors.items()), (difficulty, facts)


# What the shipped weights reach, less what 24 prompts may scatter.
FLOORS = {
    "one": {"noun": 0.7, "colour": 0.85, "count": 0.85, "background": 0.9},
    "two": {"noun": 0.65, "colour": 0.7, "count": 0.8, "background": 0.9, "relation": 0.85},
}


def test_shipped_tokenizer_is_the_one_the_builder_makes(pipe) -> None:
    assert pipe.tokenizer.get_vocab() == make_tokenizer().get_vocab()
    assert pipe.tokenizer.model_max_length == MAX_TOKENS


def test_training_keeps_words_apart(pipe) -> None:
    """An encoder that maps all objects to one point leaves the denoiser nothing to draw."""
    assert colour_distance(pipe.text_encoder, pipe.tokenizer) > 0.5


def test_sampled_latents_stay_close_to_their_mean(pipe) -> None:
    """img2img samples the posterior; an untrained variance would drown the picture in noise."""
    image = torch.from_numpy(render(make_scene(1))).permute(2, 0, 1)[None].float() / 127.5 - 1
    with torch.inference_mode():
        posterior = pipe.vae.encode(image).latent_dist
    assert float(posterior.std.max()) < 0.1 < float(posterior.mean.std())


def test_the_folder_is_small_and_holds_no_pickle() -> None:
    files = [file for file in accel.tiny.path().rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 22_000_000
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".md", ".txt"}

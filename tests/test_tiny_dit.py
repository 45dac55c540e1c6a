"""The bundled transformer: its parts, its training, and what its weights draw."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from diffusers import (
    DiffusionPipeline,
    SD3Transformer2DModel,
    StableDiffusion3Img2ImgPipeline,
    StableDiffusion3InpaintPipeline,
    StableDiffusion3Pipeline,
)
from PIL import Image
from torch import nn
from transformers import CLIPTextModel

import accel.tiny
from accel.tiny import train
from accel.tiny.models import make_text_encoder, make_vae
from accel.tiny.render import render
from accel.tiny.scenes import make_scene
from accel.tiny.tokens import make_tokenizer
from accel.tiny.training.dit import SILENT_TOKENS, DitTask, MergedZeros, draw_sigmas
from accel.tiny.training.evaluate import score
from accel.tiny.training.latents import tokenize
from accel.tiny.training.vae import start_from
from accel.tiny.transformer import (
    make_dit,
    make_dit_vae,
    make_silent_t5,
    make_silent_t5_tokenizer,
    make_silent_text_encoder,
    with_projection,
)

TOKENIZER = make_tokenizer()
CAPTIONS = ["a red star on a blue background", "two cats", "a circle above a moon", ""]


def small_dit(layers: int = 2) -> SD3Transformer2DModel:
    """Weights that are not zero anywhere: as built, a block does nothing."""
    torch.manual_seed(4)
    dit = make_dit(layers)
    for parameter in dit.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.05)
    return dit.eval()


@torch.no_grad()
def test_one_token_stands_for_all_missing_ones() -> None:
    dit = small_dit()
    noise = torch.Generator().manual_seed(0)
    latents = torch.randn(2, 16, 8, 8, generator=noise)
    text, pooled = torch.randn(2, 40, 136, generator=noise), torch.randn(2, 136, generator=noise)
    times = torch.tensor([300.0, 800.0])
    full = dit(latents, F.pad(text, (0, 0, 0, SILENT_TOKENS)), pooled, times).sample
    dit.set_attn_processor(MergedZeros())
    merged = dit(latents, F.pad(text, (0, 0, 0, 1)), pooled, times).sample
    torch.testing.assert_close(merged, full, atol=1e-5, rtol=0)
    dit.set_attn_processor(MergedZeros(1))
    assert (dit(latents, F.pad(text, (0, 0, 0, 1)), pooled, times).sample - full).abs().max() > 1e-3


@torch.no_grad()
def test_the_text_encoder_reads_as_it_does_for_the_unet() -> None:
    own = make_text_encoder(TOKENIZER).eval()
    ids = tokenize(TOKENIZER, CAPTIONS)
    expected, found = own(ids, output_hidden_states=True), with_projection(own)(ids, output_hidden_states=True)
    assert torch.equal(found.hidden_states[-2], expected.hidden_states[-1])
    assert torch.equal(found.text_embeds, expected.pooler_output)


@torch.no_grad()
def test_the_second_text_encoder_is_silent() -> None:
    silent = make_silent_text_encoder(make_text_encoder(TOKENIZER))
    said = silent(tokenize(TOKENIZER, CAPTIONS), output_hidden_states=True)
    assert not said.text_embeds.any() and not said.hidden_states[-2].any()


def test_training_sees_what_the_pipeline_shows_the_denoiser() -> None:
    own, silent = make_text_encoder(TOKENIZER).eval(), make_silent_t5_tokenizer()
    dit = small_dit()
    pipe = StableDiffusion3Pipeline(
        transformer=dit,
        scheduler=None,
        vae=make_dit_vae(),
        text_encoder=with_projection(own),
        tokenizer=TOKENIZER,
        text_encoder_2=make_silent_text_encoder(own),
        tokenizer_2=TOKENIZER,
        text_encoder_3=make_silent_t5(silent),
        tokenizer_3=silent,
    )
    text, _, pooled, _ = pipe.encode_prompt(CAPTIONS, None, None, do_classifier_free_guidance=False)
    assert text.shape == (4, 40 + SILENT_TOKENS, 136) and not text[:, 40:].any()
    latents = torch.randn(4, 16, 8, 8, generator=torch.Generator().manual_seed(1))
    sigma = torch.tensor([0.9, 0.5, 0.2, 0.7])
    with torch.no_grad():
        expected = dit(latents, text, pooled, 1000 * sigma).sample
        found = small_task(dit, own)._predict(latents, sigma, tokenize(TOKENIZER, CAPTIONS))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def small_task(dit: SD3Transformer2DModel, text_encoder: CLIPTextModel) -> DitTask:
    noise = torch.Generator().manual_seed(7)
    data = {"latents": torch.randn(4, 16, 8, 8, generator=noise), "tokens": tokenize(TOKENIZER, CAPTIONS)}
    return DitTask(dit, with_projection(text_encoder), data, tokenize(TOKENIZER, [""])[0])


def test_half_of_the_noise_levels_lie_where_the_caption_decides() -> None:
    sigmas = draw_sigmas(20_000, torch.Generator().manual_seed(0))
    assert 0 <= float(sigmas.min()) and float(sigmas.max()) <= 1
    high = float(((sigmas > 0.6) & (sigmas < 0.95)).float().mean())
    assert high == pytest.approx(0.5 * 0.35 + 0.5 * 0.79, abs=0.02)


@torch.no_grad()
def test_a_deeper_autoencoder_starts_from_the_filters_of_a_shallower_one() -> None:
    shallow, deep = make_vae(), make_dit_vae()
    start_from(deep, shallow)
    pairs = [
        (deep.encoder.down_blocks[1], shallow.encoder.down_blocks[1]),
        (deep.decoder.up_blocks[3], shallow.decoder.up_blocks[2]),
        (deep.decoder.conv_out, shallow.decoder.conv_out),
    ]
    for mine, theirs in pairs:
        ours, source = mine.state_dict(), theirs.state_dict()
        assert ours.keys() == source.keys() and all(torch.equal(ours[name], source[name]) for name in ours)
    assert deep.encode(torch.zeros(1, 3, 64, 64)).latent_dist.mean.shape == (1, 16, 8, 8)


# The shipped folder


@pytest.fixture(scope="module")
def pipe() -> DiffusionPipeline:
    pipe = DiffusionPipeline.from_pretrained(accel.tiny.path("tiny-dit"))
    pipe.set_progress_bar_config(disable=True)
    return pipe


def test_the_pictures_show_what_the_prompts_state(pipe: DiffusionPipeline) -> None:
    """Shares of held-out prompts by kind of fact; the model card has the figures of a larger set."""
    scores = score(pipe, count=16, steps=8, batch=16).by_difficulty
    for difficulty, floors in FLOORS.items():
        facts = scores[difficulty].facts
        assert all(facts[kind] >= floor for kind, floor in floors.items()), (difficulty, facts)


# What the shipped weights reach, less what 16 prompts may scatter.
FLOORS = {"one": {"background": 0.8, "colour": 0.6}, "two": {"background": 0.8}}


def test_it_is_a_standard_pipeline_for_pictures_from_pictures_too(pipe: DiffusionPipeline) -> None:
    """img2img starts from the picture, inpainting keeps what lies outside of the mask."""
    picture = Image.fromarray(render(make_scene(2, held_out=True)))
    white = Image.new("L", (64, 64), 0)
    white.paste(255, (0, 0, 64, 32))
    call = {"image": picture, "num_inference_steps": 4, "generator": torch.Generator().manual_seed(0)}
    assert type(pipe) is StableDiffusion3Pipeline
    near = StableDiffusion3Img2ImgPipeline(**pipe.components)("a red star", strength=0.5, **call).images[0]
    edited = StableDiffusion3InpaintPipeline(**pipe.components)("a red star", mask_image=white, strength=1.0, **call)
    own, kept = np.asarray(picture, float), np.asarray(edited.images[0], float)
    assert np.abs(np.asarray(near, float) - own).mean() < 60
    assert np.abs(kept - own)[40:].mean() < 12 < np.abs(kept - own)[:28].mean()


def test_training_goes_on_from_the_shipped_weights_alone(tmp_path: Path) -> None:
    run, new, start = str(tmp_path / "run"), tmp_path / "new", str(accel.tiny.path("tiny-dit"))
    here = ["--model", "tiny-dit", "--out", run]
    assert train.main(["latents", *here, "--init", start, "--scenes", "8"]) == 0
    assert train.main(["dit", *here, "--init", start, "--steps", "2", "--batch", "2"]) == 0
    assert train.main(["export", *here, "--to", str(new)]) == 0
    before, after = (DiffusionPipeline.from_pretrained(folder) for folder in (start, new))
    assert after.vae.config.scaling_factor == pytest.approx(before.vae.config.scaling_factor)
    pairs = list(zip(before.transformer.parameters(), after.transformer.parameters(), strict=True))
    assert not all(torch.equal(a, b) for a, b in pairs)
    assert all(torch.allclose(a, b, atol=1e-2) for a, b in pairs)
    for name in ("vae", "text_encoder", "text_encoder_2", "text_encoder_3"):
        parts = (getattr(each, name).parameters() for each in (before, after))
        assert all(torch.equal(a, b) for a, b in zip(*parts, strict=True))


def test_all_bundled_weights_together_are_small() -> None:
    files = [file for file in accel.tiny.path().parent.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 45 * 2**20
    assert {file.suffix for file in files} <= {".json", ".safetensors", ".md", ".txt"}

"""Families that make sound: Stable Audio and AudioLDM2."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AudioLDM2Pipeline,
    AudioLDM2UNet2DConditionModel,
    AutoencoderOobleck,
    DDIMScheduler,
    DiffusionPipeline,
    EDMDPMSolverMultistepScheduler,
    StableAudioDiTModel,
    StableAudioPipeline,
    StableAudioProjectionModel,
)
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    SpeechT5HifiGan,
    SpeechT5HifiGanConfig,
    T5Config,
    T5EncoderModel,
)

from tests.families.core import Case, audios, quiet
from tests.families.seeding import TOKENS, batched, sampling, seed_weights, text
from tests.families.unets import BETAS, vae

TEXT_DIM = 32
GENERATED_DIM = 16
MEL_BINS = 16
LENGTH = 32


def _stable_audio() -> DiffusionPipeline:
    model = StableAudioDiTModel(
        sample_size=LENGTH,
        in_channels=4,
        out_channels=4,
        num_layers=4,
        attention_head_dim=16,
        num_attention_heads=2,
        num_key_value_attention_heads=1,
        cross_attention_dim=TEXT_DIM,
        cross_attention_input_dim=TEXT_DIM,
        global_states_input_dim=2 * TEXT_DIM,
        time_proj_dim=32,
    )
    coder = AutoencoderOobleck(
        encoder_hidden_size=4,
        decoder_channels=4,
        decoder_input_channels=4,
        downsampling_ratios=[2, 2],
        channel_multiples=[1, 1],
        sampling_rate=64,
    )
    pipe = StableAudioPipeline(
        vae=seed_weights(coder, 28),
        text_encoder=None,
        tokenizer=None,
        projection_model=seed_weights(StableAudioProjectionModel(TEXT_DIM, TEXT_DIM, 0, 8), 29),
        transformer=seed_weights(model, 30, damped="proj_out"),
        scheduler=EDMDPMSolverMultistepScheduler(
            sigma_min=0.1, sigma_max=8.0, sigma_data=1.0, prediction_type="v_prediction"
        ),
    )
    return quiet(pipe)


def _audioldm2_unet() -> AudioLDM2UNet2DConditionModel:
    """Three attention stacks behind each ResNet: self, language model, T5."""
    model = AudioLDM2UNet2DConditionModel(
        sample_size=16,
        block_out_channels=(16, 32, 32),
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=[[None, GENERATED_DIM, TEXT_DIM]] * 3,
        attention_head_dim=4,
    )
    return seed_weights(model, 31)


def _vocoder() -> SpeechT5HifiGan:
    config = SpeechT5HifiGanConfig(
        model_in_dim=MEL_BINS,
        sampling_rate=16,
        upsample_initial_channel=8,
        upsample_rates=[2, 2],
        upsample_kernel_sizes=[4, 4],
        resblock_kernel_sizes=[3],
        resblock_dilation_sizes=[[1, 3]],
        normalize_before=False,
    )
    return seed_weights(SpeechT5HifiGan(config), 32)


def _audioldm2() -> DiffusionPipeline:
    """The two language models are only asked for their number type here."""
    t5 = T5Config(d_model=TEXT_DIM, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=16)
    ends = {"vocab_size": 16, "bos_token_id": 0, "eos_token_id": 0}
    gpt2 = GPT2Config(n_embd=GENERATED_DIM, n_layer=1, n_head=2, n_positions=16, **ends)
    names = ("text_encoder", "projection_model", "tokenizer", "tokenizer_2", "feature_extractor")
    pipe = AudioLDM2Pipeline(
        vae=vae(in_channels=1, out_channels=1),
        text_encoder_2=seed_weights(T5EncoderModel(t5), 33),
        language_model=seed_weights(GPT2LMHeadModel(gpt2), 34),
        unet=_audioldm2_unet(),
        scheduler=DDIMScheduler(**BETAS, clip_sample=False, steps_offset=1),
        vocoder=_vocoder(),
        **dict.fromkeys(names),
    )
    return quiet(pipe)


def _stable_audio_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """The length of the latents is the model's own."""
    if size not in (None, LENGTH):
        raise ValueError(f"Stable Audio makes {LENGTH} latents only, not {size}")
    out = sampling(steps, seed, batch, guidance_scale=2.0 if guidance else 1.0)
    return {**out, **text(seed, batch, TEXT_DIM, guidance=guidance), "audio_end_in_s": 1.5}


def _audioldm2_inputs(
    steps: int = 6,
    batch: int = 1,
    size: int | None = None,
    guidance: bool = True,
    seed: int = 0,
) -> dict[str, Any]:
    """``size`` is the number of mel frames; there are 16 frames per vocoder rate unit."""
    out = sampling(steps, seed, batch, guidance_scale=4.0 if guidance else 1.0)
    out |= text(seed, batch, TEXT_DIM, guidance=guidance)
    for sign in ("", "negative_") if guidance else ("",):
        generated = batched(f"{sign}generated", seed, batch, TOKENS, GENERATED_DIM)
        out[f"{sign}generated_prompt_embeds"] = generated
        out[f"{sign}attention_mask"] = torch.ones(batch, TOKENS, dtype=torch.long)
    return {**out, "audio_length_in_s": (size or LENGTH) * 4 / 16}


AUDIO_CASES = [
    Case(
        name="stable-audio",
        family="dit",
        build=_stable_audio,
        inputs=_stable_audio_inputs,
        guidance="batched",
        output=audios,
        sizes=(LENGTH,),
        denoisers=("transformer",),
    ),
    Case(
        name="audioldm2",
        family="unet",
        build=_audioldm2,
        inputs=_audioldm2_inputs,
        guidance="batched",
        output=audios,
        sizes=(LENGTH, 48),
    ),
]

"""Stage 4: the trained parts as one standard pipeline folder, loadable without this package."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from diffusers import AutoencoderKL, DiffusionPipeline, StableDiffusion3Pipeline, StableDiffusionPipeline
from safetensors.torch import load_file
from torch import nn

import accel.tiny
from accel.tiny.models import make_scheduler, make_unet, make_vae
from accel.tiny.tokens import make_tokenizer
from accel.tiny.training import text
from accel.tiny.training.latents import load_latents
from accel.tiny.training.loop import load_average
from accel.tiny.transformer import (
    make_dit,
    make_dit_vae,
    make_flow_scheduler,
    make_silent_t5,
    make_silent_t5_tokenizer,
    make_silent_text_encoder,
    with_projection,
)


def assemble(out: Path) -> StableDiffusionPipeline:
    """`tiny` of a run's last checkpoints (their moving averages), in float32."""
    unet = make_unet()
    load_average((unet,), out / "unet" / "checkpoint.pt")
    return StableDiffusionPipeline(
        vae=_trained(make_vae(), out),
        text_encoder=text.load(out).eval(),
        tokenizer=make_tokenizer(),
        unet=_detached(unet),
        scheduler=make_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def assemble_dit(out: Path) -> StableDiffusion3Pipeline:
    """`tiny-dit` of a run's last checkpoints (their moving averages), in float32."""
    transformer = make_dit()
    load_average((transformer,), out / "dit" / "checkpoint.pt")
    text_encoder, tokenizer_3 = text.load(accel.tiny.path("tiny")), make_silent_t5_tokenizer()
    return StableDiffusion3Pipeline(
        transformer=_detached(transformer),
        scheduler=make_flow_scheduler(),
        vae=_trained(make_dit_vae(), out),
        text_encoder=with_projection(text_encoder),
        tokenizer=make_tokenizer(),
        text_encoder_2=make_silent_text_encoder(text_encoder),
        tokenizer_2=make_tokenizer(),
        text_encoder_3=make_silent_t5(tokenizer_3),
        tokenizer_3=tokenizer_3,
    )


def _trained(vae: AutoencoderKL, out: Path) -> AutoencoderKL:
    """The run's autoencoder and its scale. Not loaded by folder: its path would be written into the config."""
    vae.load_state_dict(load_file(out / "vae" / "diffusion_pytorch_model.safetensors"))
    vae.register_to_config(scaling_factor=float(load_latents(out)["scale"]))
    return vae.eval()


_ASSEMBLE: dict[str, Callable[[Path], DiffusionPipeline]] = {"tiny": assemble, "tiny-dit": assemble_dit}


def export(out: Path, folder: Path, name: str = "tiny") -> Path:
    """Write the pipeline ``name`` of run ``out`` to ``folder``.

    Denoiser and autoencoder are stored as bfloat16. Text encoders stay float32: transformers
    loads a model in the type it was saved in while diffusers defaults to float32, and a folder
    that mixes the two needs every user to pass a dtype.
    """
    pipe = _ASSEMBLE[name](out)
    for part in (pipe.components.get("unet"), pipe.components.get("transformer"), pipe.vae):
        if part is not None:
            part.to(torch.bfloat16)
    card = folder / "README.md"
    kept = card.read_text(encoding="utf-8") if card.exists() else None
    if folder.exists():
        shutil.rmtree(folder)
    pipe.save_pretrained(folder, safe_serialization=True)
    if kept is not None:
        card.write_text(kept, encoding="utf-8")
    return folder


def _detached(module: nn.Module) -> nn.Module:
    """The module with weights of its own instead of views of a shared buffer."""
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()
        parameter.grad = None
    return module.eval()

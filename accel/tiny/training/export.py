"""Stage 4: the trained parts as one standard pipeline folder, loadable without this package."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from diffusers import StableDiffusionPipeline
from safetensors.torch import load_file
from torch import nn

from accel.tiny.models import make_scheduler, make_unet, make_vae
from accel.tiny.tokens import make_tokenizer
from accel.tiny.training import text
from accel.tiny.training.latents import load_latents
from accel.tiny.training.loop import load_average


def assemble(out: Path) -> StableDiffusionPipeline:
    """The pipeline of a run's last checkpoints (their moving averages), in float32."""
    unet = make_unet()
    load_average((unet,), out / "unet" / "checkpoint.pt")
    # Built anew, not loaded by folder: a loaded model would write that folder's path into its config.
    vae = make_vae()
    vae.load_state_dict(load_file(out / "vae" / "diffusion_pytorch_model.safetensors"))
    vae.register_to_config(scaling_factor=float(load_latents(out)["scale"]))
    return StableDiffusionPipeline(
        vae=vae.eval(),
        text_encoder=text.load(out).eval(),
        tokenizer=make_tokenizer(),
        unet=_detached(unet),
        scheduler=make_scheduler(),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def export(out: Path, folder: Path) -> Path:
    """Write the pipeline of run ``out`` to ``folder``.

    Denoiser and autoencoder are stored as bfloat16. The text encoder stays float32: transformers
    loads a model in the type it was saved in while diffusers defaults to float32, and a folder
    that mixes the two needs every user to pass a dtype.
    """
    pipe = assemble(out)
    for part in (pipe.unet, pipe.vae):
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

"""Stage 2: many scenes become latents and token ids, once, so that the denoiser never waits."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import CLIPTokenizer

from accel.tiny.render import render
from accel.tiny.scenes import make_scene
from accel.tiny.tokens import MAX_TOKENS, make_tokenizer
from accel.tiny.training.vae import to_tensor

FIRST_SEED = 1_000_000_000
"""Scenes of the data set start here, away from the seeds the autoencoder saw."""

CAPTION_DROP = 0.1
"""Share of samples trained without a caption, for classifier-free guidance."""

_CHUNK = 64


def latents_file(out: Path) -> Path:
    """Where stage 2 leaves the data set of a run."""
    return out / "latents.safetensors"


def encode(
    out: Path, count: int, *, init: Path | None = None, parts: Sequence[str] = ("vae",), device: str = "cpu"
) -> Path:
    """Render ``count`` training scenes and write their scaled latents and token ids.

    The file holds ``latents`` ``(N, C, H, W)`` float16 (unit variance), ``tokens`` ``(N, T)``
    int16 and ``scale`` ``(1,)``, the factor that gave the unit variance.

    Args:
        out: Folder of the run, with the trained ``vae`` in it.
        count: How many scenes.
        init: Pipeline folder whose ``parts`` the run takes over instead.
        parts: Folders in ``init``, the autoencoder's among them.
        device: Where to encode.
    """
    vae = AutoencoderKL.from_pretrained(init or out, subfolder="vae", torch_dtype=torch.float32).to(device)
    if init:
        for part in parts:
            shutil.copytree(init / part, out / part, dirs_exist_ok=True)
    tokenizer = make_tokenizer()
    chunks: list[Tensor] = []
    tokens: list[Tensor] = []
    for start in range(0, count, _CHUNK):
        scenes = [make_scene(FIRST_SEED + i) for i in range(start, min(start + _CHUNK, count))]
        chunks.append(_encode_images(vae, np.stack([render(scene) for scene in scenes])))
        tokens.append(tokenize(tokenizer, [scene.caption for scene in scenes]))
        if start % (64 * _CHUNK) == 0:
            print(f"encoded {start} of {count} scenes", flush=True)
    latents = torch.cat(chunks)
    scale = vae.config.scaling_factor if init else 1 / float(latents.float().std())
    data = {
        "latents": (latents.float() * scale).half().contiguous(),
        "tokens": torch.cat(tokens).to(torch.int16),
        "scale": torch.tensor([scale]),
    }
    save_file(data, latents_file(out))
    return latents_file(out)


def tokenize(tokenizer: CLIPTokenizer, captions: list[str]) -> Tensor:
    """Captions to ids, ``(B, 40)`` int64, padded as a pipeline pads prompts."""
    return tokenizer(
        captions, padding="max_length", max_length=MAX_TOKENS, truncation=True, return_tensors="pt"
    ).input_ids


def load_latents(out: Path) -> dict[str, Tensor]:
    """Read stage 2's file.

    Raises:
        ValueError: if it is missing.
    """
    path = latents_file(out)
    if not path.exists():
        raise ValueError(f"no latents in {out}: run the stage 'latents' first")
    return load_file(path)


def sample(data: dict[str, Tensor], empty: Tensor, batch: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Clean latents ``(batch, C, H, W)`` and token ids ``(batch, T)`` of random scenes, some of them uncaptioned.

    Args:
        data: What `encode` wrote.
        empty: Token ids of the empty prompt, ``(T,)``.
        batch: How many.
        generator: Decides which, and which lose their caption.
    """
    rows = torch.randint(len(data["latents"]), (batch,), generator=generator)
    tokens = data["tokens"][rows].long()
    tokens[torch.rand(batch, generator=generator) < CAPTION_DROP] = empty
    return data["latents"][rows].float(), tokens


@torch.inference_mode()
def _encode_images(vae: AutoencoderKL, images: np.ndarray) -> Tensor:
    return vae.encode(to_tensor(images).to(vae.device)).latent_dist.mean.half().cpu()

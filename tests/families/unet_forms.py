"""Stable Diffusion started from a picture, or with something attached to its UNet."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from diffusers import (
    ControlNetModel,
    DiffusionPipeline,
    StableDiffusionAdapterPipeline,
    StableDiffusionControlNetPipeline,
    StableDiffusionImg2ImgPipeline,
    StableDiffusionInpaintPipeline,
    T2IAdapter,
    UNet2DConditionModel,
)

from tests.families.core import quiet
from tests.families.seeding import normal, picture, seed_weights
from tests.families.unets import CHANNELS, SIZES, TEXT_DIM, sd, sd_inputs, unet_case

IMAGE_EMBED_DIM = 24


def _controlnet() -> ControlNetModel:
    model = ControlNetModel(
        block_out_channels=CHANNELS,
        layers_per_block=1,
        norm_num_groups=8,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        cross_attention_dim=TEXT_DIM,
        attention_head_dim=4,
        conditioning_embedding_out_channels=(8, 16),
    )
    return seed_weights(model, 4)


def _adapter() -> T2IAdapter:
    model = T2IAdapter(channels=list(CHANNELS), num_res_blocks=1, downscale_factor=2, adapter_type="full_adapter")
    return seed_weights(model, 5)


def _attention_shapes(unet: UNet2DConditionModel) -> dict[str, tuple[int, int]]:
    """(output, input) sizes of the key projection of each attention, by module name."""
    names = [name.removesuffix(".processor") for name in unet.attn_processors]
    return {name: tuple(unet.get_submodule(name).to_k.weight.shape) for name in names}


def load_lora(pipe: DiffusionPipeline, rank: int = 4) -> DiffusionPipeline:
    """Load a clearly felt LoRA on all key and value projections of the UNet."""
    weights = {}
    for name, (out, inner) in _attention_shapes(pipe.unet).items():
        for part in ("to_k", "to_v"):
            key = f"unet.{name}.{part}"
            weights[f"{key}.lora_A.weight"] = normal(f"{key}.A", 0, rank, inner) * inner**-0.5
            weights[f"{key}.lora_B.weight"] = normal(f"{key}.B", 0, out, rank) * rank**-0.5
    pipe.load_lora_weights(weights, adapter_name="tiny")
    return quiet(pipe)


def _sd_lora() -> DiffusionPipeline:
    return load_lora(sd())


def _ip_adapter_weights(unet: UNet2DConditionModel) -> dict[str, dict[str, torch.Tensor]]:
    """Random weights in the layout of the published IP-Adapter files (four image tokens)."""
    size = 4 * TEXT_DIM
    projection = normal("ip.proj", 0, size, IMAGE_EMBED_DIM) * IMAGE_EMBED_DIM**-0.5
    image = {"proj.weight": projection, "proj.bias": torch.zeros(size)}
    image |= {"norm.weight": torch.ones(TEXT_DIM), "norm.bias": torch.zeros(TEXT_DIM)}
    shapes = [s for name, s in _attention_shapes(unet).items() if name.endswith("attn2")]
    layers = {}
    for index, shape in enumerate(shapes):
        for part in ("to_k_ip", "to_v_ip"):
            weight = normal(f"ip.{index}.{part}", 0, *shape) * TEXT_DIM**-0.5
            layers[f"{2 * index + 1}.{part}.weight"] = weight
    return {"image_proj": image, "ip_adapter": layers}


def load_ip_adapter(pipe: DiffusionPipeline) -> DiffusionPipeline:
    """Load an IP-Adapter with random weights, at a scale at which it is clearly felt."""
    weights = _ip_adapter_weights(pipe.unet)
    pipe.load_ip_adapter(weights, subfolder=None, weight_name=None, image_encoder_folder=None)
    pipe.set_ip_adapter_scale(0.6)
    return quiet(pipe)


def _sd_ip_adapter() -> DiffusionPipeline:
    return load_ip_adapter(sd(image_encoder=lambda: None))


def _sd_image_inputs(
    batch: int = 1,
    size: int | None = None,
    seed: int = 0,
    mask: bool = False,
    control: bool = False,
    **kw: Any,
) -> dict[str, Any]:
    """Inputs with a picture: to start from, to fill in, or to follow."""
    size = size or SIZES[0]
    out = sd_inputs(batch=batch, size=size, seed=seed, sized=mask, **kw)
    out["image"] = picture("start", seed, batch, size)
    if mask:
        hole = (torch.arange(size) < size // 2).float().expand(batch, 1, size, size)
        out["mask_image"] = hole.contiguous()
    return out if control else {**out, "strength": 0.7}


def _ip_inputs(batch: int = 1, guidance: bool = True, seed: int = 0, **kw: Any) -> dict[str, Any]:
    """The picture prompt is the same for every sample: the pipeline repeats a single one."""
    out = sd_inputs(batch=batch, guidance=guidance, seed=seed, **kw)
    rows = [normal("ip.image", 0, 1, 1, IMAGE_EMBED_DIM)]
    rows = [torch.zeros_like(rows[0]), *rows] if guidance else rows
    return {**out, "ip_adapter_image_embeds": [torch.cat(rows)]}


def _adapter_inputs(batch: int = 1, seed: int = 0, **kw: Any) -> dict[str, Any]:
    out = _sd_image_inputs(batch=batch, seed=seed, control=True, **kw)
    return {**out, "height": out["image"].shape[-2], "width": out["image"].shape[-1]}


_inpaint = partial(_sd_image_inputs, mask=True)
_follow = partial(_sd_image_inputs, control=True)
_img2img = partial(sd, StableDiffusionImg2ImgPipeline)
_sd_inpaint = partial(sd, StableDiffusionInpaintPipeline)
_sd_controlnet = partial(sd, StableDiffusionControlNetPipeline, controlnet=_controlnet)
_sd_adapter = partial(sd, StableDiffusionAdapterPipeline, adapter=_adapter)

UNET_FORM_CASES = [
    unet_case("sd-img2img", _img2img, _sd_image_inputs),
    unet_case("sd-inpaint", _sd_inpaint, _inpaint),
    unet_case("sd-controlnet", _sd_controlnet, _follow),
    unet_case("sd-lora", _sd_lora),
    unet_case("sd-ip-adapter", _sd_ip_adapter, _ip_inputs),
    unet_case("sd-t2i-adapter", _sd_adapter, _adapter_inputs),
]

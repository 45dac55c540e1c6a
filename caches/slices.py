"""Along which dimension a module's work falls into independent parts, and which of its arguments carry it.

A video UNet runs its spatial layers on (batch · frames) rows and its temporal attention on (batch · pixels) rows; both
know nothing of other rows. Layers that normalise over all frames of a video are independent from video to video only.
Feed-forward layers are independent from token to token. Only classes that are known to be so are cut, an argument
whose rows are not known stops the cutting, and so does an attention processor that may look across rows.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import torch
from diffusers.models.attention import BasicTransformerBlock, FeedForward, TemporalBasicTransformerBlock
from diffusers.models.downsampling import Downsample2D
from diffusers.models.resnet import ResnetBlock2D, ResnetBlockCondNorm2D, SpatioTemporalResBlock, TemporalConvLayer
from diffusers.models.transformers.transformer_2d import Transformer2DModel
from diffusers.models.transformers.transformer_temporal import TransformerSpatioTemporalModel, TransformerTemporalModel
from diffusers.models.unets.unet_motion_model import AnimateDiffTransformer3D
from diffusers.models.upsampling import Upsample2D
from torch import nn

from accel.tensors import Tree, map_tensors, tensors

Bound = inspect.BoundArguments


class Uncut(Exception):
    """A call cannot be made in parts; the message says why."""


@dataclass(frozen=True)
class Cut:
    """A call that can be made in parts: ``units`` independent ones, along dimension ``dim`` of what it returns."""

    units: int
    part: Callable[[int, int], Bound]
    """The arguments for the units ``start … stop-1``."""
    dim: int = 0


Rule = Callable[[Bound], Cut]
"""Reads a call's arguments; raises `Uncut`."""


def rule(module: nn.Module, is_feed_forward: bool = False) -> Rule | None:
    """How calls of ``module`` are cut, ``None`` when it is not known to be independent along anything."""
    found = _RULES.get(type(module))
    return found or (_samples if is_feed_forward else None)


def bind(module: nn.Module, args: Any, kwargs: Any) -> Bound:
    """The arguments of a call of ``module`` by the names of its parameters."""
    kind: Any = type(module)
    return _signature(kind).bind(module, *args, **kwargs)


def mixes_rows(module: nn.Module) -> bool:
    """Is there an attention processor inside that may look across rows: one of a pipeline or a user, or for PAG?"""
    kinds = {type(sub.processor) for sub in module.modules() if hasattr(sub, "processor")}
    own = "diffusers.models.attention_processor"
    return any(kind.__module__ != own or kind.__name__.startswith("PAG") for kind in kinds)


def in_pieces(cut: Cut, pieces: int, forward: Callable[..., Tree]) -> Tree:
    """What ``forward`` returns for all units, computed ``pieces`` times for a share of them.

    Each piece is written into the whole at once, so that no more than one of them is alive.
    """
    whole: Tree = None
    for start, stop in pairwise(cut.units * i // pieces for i in range(pieces + 1)):
        bound = cut.part(start, stop)
        whole = _written(whole, forward(*bound.args[1:], **bound.kwargs), cut, start, stop)
    return whole


# --- rules -----------------------------------------------------------------------------------------------------------


def _rows(*carriers: str, frames: Callable[[Bound], int] | None = None) -> Rule:
    """Independent along dimension 0, row by row or, where ``frames`` tells their number, video by video."""

    def read(bound: Bound) -> Cut:
        arguments = {name: value for name, value in bound.arguments.items() if name != "self"}
        units = next(tensors(arguments[carriers[0]])).shape[0] // (frames(bound) if frames else 1)
        for name, value in arguments.items():
            for tensor in tensors(value):
                _check(name, tensor, units, name in carriers)
        return Cut(units, lambda start, stop: _replaced(bound, _share(arguments, units, start, stop)))

    return read


def _tokens(bound: Bound) -> Cut:
    """Independent in every dimension but the last: cut along the longest."""
    hidden = bound.arguments["hidden_states"]
    dim = max(range(hidden.ndim - 1), key=lambda i: hidden.shape[i])

    def part(start: int, stop: int) -> Bound:
        return _replaced(bound, {"hidden_states": hidden.narrow(dim, start, stop - start)})

    return Cut(hidden.shape[dim], part, dim)


def _samples(bound: Bound) -> Cut:
    """Some other feed-forward layer: independent from sample to sample."""
    given = {name: value for name, value in bound.arguments.items() if isinstance(value, torch.Tensor)}
    every = [tensor for name, value in bound.arguments.items() if name != "self" for tensor in tensors(value)]
    if len(given) != 1 or len(every) != 1 or every[0].ndim < 3:
        raise Uncut("a feed-forward layer is given something else than one tensor of (batch, tokens, channels)")
    return Cut(len(every[0]), lambda start, stop: _replaced(bound, {name: t[start:stop] for name, t in given.items()}))


def _pixels(bound: Bound) -> Cut:
    """A temporal block that is given (batch · frames, pixels, channels), and text for every pixel or none."""
    hidden, text = bound.arguments["hidden_states"], bound.arguments.get("encoder_hidden_states")
    pixels = hidden.shape[1]
    batch = hidden.shape[0] // bound.arguments["num_frames"]
    if text is not None and text.shape[0] != batch * pixels:
        raise Uncut(f"encoder_hidden_states has {text.shape[0]} rows for {batch * pixels} pixels")

    def part(start: int, stop: int) -> Bound:
        replaced = {"hidden_states": hidden[:, start:stop]}
        if text is not None:
            replaced["encoder_hidden_states"] = text.unflatten(0, (batch, pixels))[:, start:stop].flatten(0, 1)
        return _replaced(bound, replaced)

    return Cut(pixels, part, dim=1)


def _indicated(bound: Bound) -> int:
    return bound.arguments["image_only_indicator"].shape[-1]


def _told(bound: Bound) -> int:
    return bound.arguments.get("num_frames", 1)


_resnet = _rows("input_tensor", "temb")
_sampler = _rows("hidden_states")
_video = _rows("hidden_states", "encoder_hidden_states", frames=_told)
_transformer = _rows(
    "hidden_states",
    "encoder_hidden_states",
    "attention_mask",
    "encoder_attention_mask",
    "timestep",
    "class_labels",
    "added_cond_kwargs",
)

_RULES: dict[type, Rule] = {
    ResnetBlock2D: _resnet,
    ResnetBlockCondNorm2D: _resnet,
    Downsample2D: _sampler,
    Upsample2D: _sampler,
    Transformer2DModel: _transformer,
    BasicTransformerBlock: _transformer,
    FeedForward: _tokens,
    TemporalBasicTransformerBlock: _pixels,
    TemporalConvLayer: _video,
    TransformerTemporalModel: _video,
    AnimateDiffTransformer3D: _video,
    SpatioTemporalResBlock: _rows("hidden_states", "temb", "image_only_indicator", frames=_indicated),
    TransformerSpatioTemporalModel: _rows(
        "hidden_states", "encoder_hidden_states", "image_only_indicator", frames=_indicated
    ),
}


# --- arguments and results -------------------------------------------------------------------------------------------


@cache
def _signature(kind: Any) -> inspect.Signature:
    return inspect.signature(kind.forward)


def _check(name: str, tensor: torch.Tensor, units: int, carries: bool) -> None:
    """Only what is known to carry the rows may be cut, and only into whole shares."""
    if not carries:
        raise Uncut(f"{name} is a tensor, and it is not known which rows it belongs to")
    if tensor.ndim and tensor.shape[0] > 1 and tensor.shape[0] % units:
        raise Uncut(f"{name} has {tensor.shape[0]} rows for {units}")


def _share(tree: Tree, units: int, start: int, stop: int) -> Tree:
    """The rows of ``units`` start … stop-1; a single row is meant for all of them."""

    def take(tensor: torch.Tensor) -> torch.Tensor:
        each = tensor.shape[0] // units if tensor.ndim else 0
        return tensor[start * each : stop * each] if each else tensor

    return map_tensors(take, tree)


def _replaced(bound: Bound, changed: dict[str, Any]) -> Bound:
    return inspect.BoundArguments(bound.signature, bound.arguments | changed)


def _written(whole: Tree, piece: Tree, cut: Cut, start: int, stop: int) -> Tree:
    if whole is None:
        whole = map_tensors(lambda t: _room(t, cut.dim, t.shape[cut.dim] // (stop - start) * cut.units), piece)

    def write(tensor: torch.Tensor, room: torch.Tensor) -> None:
        each = room.shape[cut.dim] // cut.units
        room.narrow(cut.dim, start * each, (stop - start) * each).copy_(tensor)

    map_tensors(write, piece, whole)
    return whole


def _room(piece: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """An empty tensor for ``size`` rows of what ``piece`` has some of, laid out alike (channels may come last)."""
    shape = [size if i == dim else length for i, length in enumerate(piece.shape)]
    order = sorted(range(piece.ndim), key=piece.stride, reverse=True)
    return torch.empty_permuted(shape, order, dtype=piece.dtype, device=piece.device)

"""Reading a denoiser's structure: every place whose output can be reused, predicted or replaced.

Nothing here knows a model by name. UNets are told by their down/mid/up blocks, transformers by lists of blocks that
contain attention, attention kinds by how the module is built.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from torch import nn

Kind = Literal["resnet", "block", "self_attn", "cross_attn", "joint_attn", "ff", "sampler", "region"]
Family = Literal["unet", "dit"]
Named = tuple[str, nn.Module]

_FEED_FORWARD = {"ff", "ffn", "mlp", "feed_forward", "ff_context"}
_SAMPLERS = {"downsamplers", "upsamplers"}


@dataclass(frozen=True)
class Site:
    """One place in a denoiser.

    ``module`` is the one whose output stands for the site; ``interior`` are modules that nothing outside the site
    listens to, so that they need not run when the output is predicted (only regions have an interior).
    """

    name: str
    kind: Kind
    depth: int
    """UNet: level, 0 is the full resolution. Transformer: index of the block in order of execution."""
    module: nn.Module
    interior: tuple[Named, ...] = ()

    @property
    def denoiser(self) -> str:
        """Name of the denoiser it is in."""
        return re.split(r"[.\[]", self.name, maxsplit=1)[0]


class Unreadable(Exception):
    """The module's structure is not one that is understood; the message says what is missing."""


def family(module: nn.Module) -> Family:
    """``"unet"`` or ``"dit"``; raises `Unreadable` for anything else."""
    downs, ups = getattr(module, "down_blocks", None), getattr(module, "up_blocks", None)
    if downs is not None and ups is not None:
        if len(downs) == len(ups) and all(hasattr(block, "resnets") for block in (*downs, *ups)):
            return "unet"
        raise Unreadable("its down and up blocks are not mirrored lists of residual blocks")
    if blocks(module):
        return "dit"
    raise Unreadable("it has neither down/up blocks nor a list of blocks with attention")


def blocks(module: nn.Module) -> list[Named]:
    """The blocks of a DiT as (dotted name, module), in order of registration, which is that of execution."""
    found = []
    for list_name, child in module.named_children():
        if isinstance(child, nn.ModuleList) and any(_attentions(block) for block in child):
            found += [(f"{list_name}.{index}", block) for index, block in enumerate(child)]
    return found


def sites(name: str, module: nn.Module, kind: Family) -> list[Site]:
    """Every site of the denoiser called ``name``, outermost first."""
    found = []
    for path, sub in module.named_modules():
        what = _kind(path, sub, module)
        if what is not None:
            found.append(Site(f"{name}.{path}", what, _depth(path, module, kind), sub))
    return found


def region(name: str, module: nn.Module, kind: Family, start: int, stop: int | None = None) -> Site:
    """A stretch of the denoiser as one site.

    UNet: everything below level ``start`` (its output is what the up path hands to that level). Transformer: the blocks
    ``start … stop-1`` (negative numbers count from the end). Raises `Unreadable` when there is no such stretch or
    something outside it listens to its inside.
    """
    return _below(name, module, start) if kind == "unet" else _stretch(name, module, start, stop)


def _below(name: str, unet: nn.Module, level: int) -> Site:
    downs, ups = list(unet.down_blocks), list(unet.up_blocks)  # type: ignore[arg-type]
    if not 1 <= level < len(downs):
        raise Unreadable(f"it has {len(downs)} levels, so the deep part starts at 1 to {len(downs) - 1}, not {level}")
    if not hasattr(downs[level - 1], "downsamplers"):
        raise Unreadable(f"its {type(downs[level - 1]).__name__} does not say where it goes down a level")
    last = len(ups) - 1 - level  # the up block whose output enters level `level - 1`
    inside: list[Named] = [
        (f"down_blocks.{level - 1}.downsamplers.{i}", sampler)
        for i, sampler in enumerate(downs[level - 1].downsamplers or [])
    ]
    inside += [(f"down_blocks.{i}", downs[i]) for i in range(level, len(downs))]
    if getattr(unet, "mid_block", None) is not None:
        inside.append(("mid_block", unet.mid_block))  # type: ignore[arg-type]
    inside += [(f"up_blocks.{i}", ups[i]) for i in range(last)]
    return Site(f"{name}[level>={level}]", "region", level, ups[last], tuple(inside))


def _stretch(name: str, dit: nn.Module, start: int, stop: int | None) -> Site:
    every = blocks(dit)
    chosen = range(len(every))[start:stop]
    if not chosen:
        raise Unreadable(f"it has {len(every)} blocks, and none of them lies between {start} and {stop}")
    if any("skip" in inspect.signature(type(block).forward).parameters for _, block in every):
        raise Unreadable("its blocks have long skip connections, so later blocks listen to the inside of a stretch")
    title = f"{name}[blocks {chosen.start}:{chosen.stop}]"
    return Site(title, "region", chosen.start, every[chosen.stop - 1][1], tuple(every[chosen.start : chosen.stop - 1]))


def _kind(path: str, sub: nn.Module, root: nn.Module) -> Kind | None:
    parts = path.split(".")
    if _is_attention(sub):
        return _attention_kind(parts, sub, root)
    if len(parts) > 1 and parts[-2] in _SAMPLERS:
        return "sampler"
    if len(parts) > 1 and parts[-2] == "resnets":
        return "resnet"
    if parts[-1].isdigit() and any(True for _ in _own_attentions(sub)):
        return "block"
    if parts[-1] in _FEED_FORWARD and _beside_attention(parts, root):
        return "ff"
    return None


def _beside_attention(parts: list[str], root: nn.Module) -> bool:
    """Embedders of the timestep and of the text have layers of the same names, which are no part of any block."""
    return len(parts) > 1 and bool(_attentions(root.get_submodule(".".join(parts[:-1]))))


def _attention_kind(parts: list[str], sub: nn.Module, root: nn.Module) -> Kind:
    if getattr(sub, "add_q_proj", None) is not None:
        return "joint_attn"
    if getattr(sub, "is_cross_attention", "cross" in parts[-1] or parts[-1] == "attn2"):
        return "cross_attn"
    # A block that takes the text but has no second attention slot sends text and picture through the same one.
    parent = root.get_submodule(".".join(parts[:-1]))
    takes_text = "encoder_hidden_states" in inspect.signature(type(parent).forward).parameters
    return "joint_attn" if takes_text and not hasattr(parent, "attn2") else "self_attn"


def _depth(path: str, module: nn.Module, kind: Family) -> int:
    parts = path.split(".")
    if kind == "dit":
        order = [block_path for block_path, _ in blocks(module)]
        return order.index(".".join(parts[:2])) if ".".join(parts[:2]) in order else 0
    levels = len(module.down_blocks)  # type: ignore[arg-type]
    if parts[0] == "down_blocks":
        return int(parts[1])
    return levels - 1 - int(parts[1]) if parts[0] == "up_blocks" else levels - 1


def _is_attention(module: nn.Module) -> bool:
    return any(hasattr(module, name) for name in ("to_q", "to_query", "to_qkv", "to_qkv_mlp_proj"))


def _attentions(module: nn.Module) -> list[nn.Module]:
    return [sub for sub in module.modules() if _is_attention(sub)]


def _own_attentions(module: nn.Module) -> Iterator[nn.Module]:
    return (child for child in module.children() if _is_attention(child))

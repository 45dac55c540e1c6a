"""Where in a network things stay the same from call to call: read off its structure, in four parts.

``text``        the projections of the text: outside the blocks, and the keys and values of cross-attention
``modulation``  what is made of the timestep and of pooled conditions
``positions``   position tables: modules without weights that are named so
``control``     what a ControlNet makes of the picture it follows

A module is taken whole when it needs one input only; of one that mixes several, such as timestep and text, the parts
are. Nothing that is found here is trusted to be constant: a memo looks at its inputs.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from torch import nn

from accel import sites
from accel.sites import Site
from accel.target import Target, unwrap

Part = Literal["text", "modulation", "positions", "control"]
How = Literal["memory", "bits", "table"]
"""How inputs are compared: by memory alone, also by their bits, or as a table's (see `accel.caches.lossless.memo`)."""

_POSITIONS = re.compile(r"rope|rotary|pos_emb")
_NAMES: dict[Part, re.Pattern[str]] = {
    "control": re.compile(r"controlnet_(cond|x)_embed|input_hint|pos_embed_input"),
    "modulation": re.compile(r"time|^t_|temb|adaln|modulation|guidance|class_emb|add_emb", re.IGNORECASE),
    "text": re.compile(r"text|caption|^cap_|encoder_hid|cross_attention_proj|image_embedder|global_proj"),
}
"""Modules outside the blocks, by name. A ``context`` is a text."""
_BLOCK_MODULATION = re.compile(r"modulation$|_mod$", re.IGNORECASE)
"""Modules of a block that are handed the embedded timestep and nothing else."""
_KEYS_AND_VALUES = ("norm_cross", "to_k", "to_v", "to_kv", "norm_k")
_IMAGE_PROMPT = ("to_k_ip", "to_v_ip")
_UNET_BLOCKS = {"down_blocks", "mid_block", "up_blocks"}


@dataclass(frozen=True)
class Place:
    """One module whose outputs are remembered."""

    name: str
    module: nn.Module
    part: Part
    how: How


@dataclass(frozen=True)
class Network:
    """A denoiser, or a ControlNet that steers it."""

    name: str
    module: nn.Module
    sites: tuple[Site, ...]
    component: Callable[[], Any]
    """What now stands in the pipeline with it inside."""
    steers: bool = False

    @property
    def compiled(self) -> bool:
        """Is it, or a part of it? A memo inside breaks the graph, and what it keeps may be memory of that graph."""
        now = self.component()
        if not isinstance(now, nn.Module):
            return False
        return unwrap(now) is not now or any(getattr(sub, "_compiled_call_impl", None) for sub in now.modules())

    def places(self, parts: Collection[Part]) -> list[Place]:
        """Where something may stay the same, of these parts."""
        found = [*_outside(self.name, self.module, _blocks(self.module)), *self._inside()]
        by_module = {place.module: place for place in found}  # shared ones have one memo
        wanted = {*parts} if self.steers else {*parts} - {"control"}
        return [place for place in by_module.values() if place.part in wanted]

    def _inside(self) -> Iterator[Place]:
        crossing = {site.name.rpartition(".")[0] for site in self.sites if site.kind == "cross_attn"}
        for site in self.sites:
            if site.kind == "cross_attn":
                yield from _of_attention(site)
            if site.kind == "block":
                yield from _of_block(site, crosses=site.name in crossing)


def networks(target: Target) -> list[Network]:
    """The denoisers of a pipeline and the ControlNets beside them."""

    def now(name: str) -> Callable[[], Any]:
        return lambda: getattr(target.pipe, name, None)

    found = [Network(d.name, d.module, d.sites, now(d.name)) for d in target.denoisers]
    for name, component in target.pipe.components.items():
        if name.startswith("controlnet") and isinstance(component, nn.Module):
            found += [
                Network(path, module, _sites(path, module), now(name), steers=True)
                for path, module in _controlnets(name, unwrap(component))
            ]
    return found


def _controlnets(name: str, module: nn.Module) -> list[tuple[str, nn.Module]]:
    """One network, or each of several."""
    nets = getattr(module, "nets", None)
    if not isinstance(nets, nn.ModuleList):
        return [(name, module)]
    return [(f"{name}.nets.{index}", unwrap(net)) for index, net in enumerate(nets)]


def _sites(name: str, module: nn.Module) -> tuple[Site, ...]:
    return tuple(sites.sites(name, module, "unet" if hasattr(module, "down_blocks") else "dit"))


# --- outside the blocks ----------------------------------------------------------------------------------------------


def _blocks(module: nn.Module) -> set[str]:
    """Names of the direct children that hold the blocks."""
    return _UNET_BLOCKS | {path.partition(".")[0] for path, _ in sites.blocks(module)}


def _outside(name: str, module: nn.Module, skip: Collection[str], part: Part | None = None) -> Iterator[Place]:
    """Modules below ``module`` whose name says that they see no sample; ``part`` is what a parent's name said."""
    for child_name, child in module.named_children():
        path = f"{name}.{child_name}"
        if child_name in skip:
            continue
        told = next((p for p, pattern in _NAMES.items() if pattern.search(child_name)), part)
        if told != "control" and _POSITIONS.search(child_name):
            if next(child.parameters(), None) is None:  # others embed the sample as well
                yield Place(path, child, "positions", "table")
        elif told and _inputs(type(child).forward) == 1:
            yield Place(path, _base(child), told, "bits")
        else:
            yield from _outside(path, child, (), told)


@cache
def _inputs(forward: Callable[..., Any]) -> int:
    """How many inputs a module with this method must be given."""
    parameters = list(inspect.signature(forward).parameters.values())[1:]
    return sum(p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD for p in parameters)


# --- inside ----------------------------------------------------------------------------------------------------------


def _of_attention(site: Site) -> Iterator[Place]:
    """What a cross-attention makes of the text, and of an image prompt."""
    for name in _KEYS_AND_VALUES:
        if isinstance(module := getattr(site.module, name, None), nn.Module):
            yield Place(f"{site.name}.{name}", _base(module), "text", "memory")
    for name in _IMAGE_PROMPT:
        for index, module in enumerate(getattr(getattr(site.module, "processor", None), name, ())):
            yield Place(f"{site.name}.processor.{name}.{index}", _base(module), "text", "memory")


def _of_block(site: Site, crosses: bool) -> Iterator[Place]:
    """What a block makes of the timestep, and of the text before its cross-attention."""
    for name, module in site.module.named_children():
        if _BLOCK_MODULATION.search(name):
            yield Place(f"{site.name}.{name}", module, "modulation", "memory")
        if crosses and "context" in name and _inputs(type(module).forward) == 1:
            yield Place(f"{site.name}.{name}", module, "text", "memory")


def _base(module: nn.Module) -> nn.Module:
    """The projection that a LoRA adds to: it stays where it is when LoRAs come and go."""
    base = getattr(module, "base_layer", None)
    return base if isinstance(base, nn.Module) else module

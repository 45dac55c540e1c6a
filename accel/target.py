"""A pipeline through one lens: its denoisers, what they are made of, and where they can be changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from diffusers import DiffusionPipeline
from torch import nn

from accel import sites
from accel.errors import Refused
from accel.sites import Family, Kind, Site, Unreadable

_TIMESTEP = {"timestep", "timesteps", "timestep_ratio", "t"}
_HELPERS = ("controlnet", "adapter")  # they take a timestep too, but only steer the denoiser


@dataclass(frozen=True)
class Denoiser:
    """One noise-predicting network of a pipeline: ``unet``, ``transformer``, ``transformer_2``, ``prior``, …"""

    name: str
    module: nn.Module
    family: Family
    sites: tuple[Site, ...] = field(repr=False)

    @property
    def depth(self) -> int:
        """Number of levels (UNet) or blocks (transformer)."""
        return len(self.module.down_blocks) if self.family == "unet" else len(sites.blocks(self.module))  # type: ignore[arg-type]

    def region(self, start: int, stop: int | None = None) -> Site:
        """A stretch as one site, see `accel.sites.region`; raises `Unreadable` with the reason."""
        return sites.region(self.name, self.module, self.family, start, stop)

    def deep(self, level: int = 1, blocks: tuple[int, int | None] = (1, -1)) -> Site:
        """A UNet's part below ``level``, or a transformer's ``blocks[start:stop]``; `Unreadable` as for `region`."""
        return self.region(level) if self.family == "unet" else self.region(*blocks)

    def of_kind(self, *kinds: Kind) -> list[Site]:
        """The sites of these kinds, in order of execution."""
        return [site for site in self.sites if site.kind in kinds]


@dataclass(frozen=True)
class Target:
    """What a technique sees of a pipeline. Made by `Target.of`; reads structure, never model names."""

    pipe: Any
    denoisers: tuple[Denoiser, ...]
    unread: tuple[str, ...] = ()
    """Which further denoisers cannot be read, and why: they run plainly."""

    @classmethod
    def of(cls, pipe: Any) -> Target:
        """Read ``pipe`` (a diffusers pipeline); raises `Refused` when it has no denoiser that can be read."""
        if not hasattr(pipe, "components"):
            raise Refused(
                type(pipe).__name__, ["it is not a diffusers pipeline: pass the object that `from_pretrained` returned"]
            )
        _check_driven_here(pipe)
        found, unread = [], []
        for name, module in _candidates(pipe):
            try:
                kind = sites.family(module)
                found.append(Denoiser(name, module, kind, tuple(sites.sites(name, module, kind))))
            except Unreadable as reason:
                unread.append(f"{name} ({type(module).__name__}) cannot be read: {reason}")
        if not found:
            raise Refused(
                type(pipe).__name__, unread or ["none of its components takes a timestep, so it has no denoiser"]
            )
        return cls(pipe, tuple(found), tuple(unread))

    def lacking(self, find: Callable[[Denoiser], Site], what: str) -> list[str]:
        """Which denoisers have no such site, and why."""
        problems = []
        for denoiser in self.denoisers:
            try:
                find(denoiser)
            except Unreadable as reason:
                problems.append(f"{denoiser.name} has no {what}: {reason}")
        return problems

    @property
    def family(self) -> Family:
        """Family of the (first) denoiser."""
        return self.denoisers[0].family

    @property
    def scheduler(self) -> Any:
        """The pipeline's scheduler *now*: users swap it."""
        return self.pipe.scheduler

    @property
    def helpers(self) -> list[str]:
        """Components beside the denoisers that are given a timestep too, such as a ControlNet."""
        own = {denoiser.name for denoiser in self.denoisers}
        return [name for name, part in self.pipe.components.items() if name not in own and _takes_a_timestep(part)]

    def of_kind(self, *kinds: Kind) -> list[Site]:
        """The sites of these kinds in every denoiser."""
        return [site for denoiser in self.denoisers for site in denoiser.of_kind(*kinds)]


def unwrap(module: nn.Module) -> nn.Module:
    """The module that ``torch.compile(module)`` wraps, or the module itself."""
    return getattr(module, "_orig_mod", module)


def _check_driven_here(pipe: Any) -> None:
    """Refuse a pipeline that does not run the loop itself, or not with ``pipe.scheduler``: no clock could follow it."""
    if parts := [name for name, part in vars(pipe).items() if isinstance(part, DiffusionPipeline)]:
        names = " or ".join(f"pipe.{name}" for name in parts)
        raise Refused(type(pipe).__name__, [f"it only calls other pipelines: accelerate {names}"])
    scheduler = getattr(pipe, "scheduler", None)
    if not all(hasattr(scheduler, method) for method in ("set_timesteps", "step")):
        raise Refused(type(pipe).__name__, ["it has no `scheduler` with set_timesteps and step to follow"])


def _candidates(pipe: Any) -> Iterable[tuple[str, nn.Module]]:
    for name, component in pipe.components.items():
        if not name.startswith(_HELPERS) and _takes_a_timestep(component):
            yield name, unwrap(component)


def _takes_a_timestep(component: Any) -> bool:
    if not isinstance(component, nn.Module):
        return False
    return bool(_TIMESTEP & set(inspect.signature(type(unwrap(component)).forward).parameters))

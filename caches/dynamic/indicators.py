"""What is looked at to tell how much a stretch of blocks is about to change.

    first_block  what the blocks in front of the stretch add; ParaAttention's first-block cache, DBCache
    tea          what the first attention is given: normalised, and modulated by the timestep; TeaCache
    sea          the latent without its noise; SeaCache

In a UNet nothing in front of the stretch has its shape: `first_block` and `tea` look at what goes down into it.

What is kept from one moment to a later one is a copy: blocks may write into what they are given or have returned.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Any, Protocol

import torch
from torch import nn

from accel.caches.dynamic.spectrum import filtered, space
from accel.caches.dynamic.streams import Ear, Inputs, minus, named, pair
from accel.clock import Clock
from accel.hooks import install
from accel.runs import main_input
from accel.sites import blocks
from accel.target import Denoiser
from accel.technique import Detach
from accel.tensors import Tree, map_tensors

LABEL = "residual.ear"


class Unseen(Exception):
    """There is nothing to look at in this call; the message says why."""


class Indicator(Protocol):
    """Looks at one denoiser."""

    def attach(self, clock: Clock) -> Detach:
        """Listen where it must; returns what undoes it."""

    def look(self, inputs: Inputs, sample: Tree) -> Tree:
        """What is to be compared, in tensors with the batch's rows, as the stretch is entered with ``inputs``.

        ``sample`` is the denoiser's main input. Raises `Unseen`.
        """

    def forget(self) -> None:
        """The call is over."""


def indicator(kind: str, denoiser: Denoiser, front: int, power: float) -> Indicator | None:
    """The indicator called ``kind`` for ``denoiser``, of which ``front`` blocks always run; ``None`` for ``mag``."""
    if kind == "mag":
        return None
    if kind == "sea":
        return Latent(getattr(getattr(denoiser.module, "config", None), "in_channels", None), power)
    if denoiser.family == "unet":
        return Below()
    every = blocks(denoiser.module)
    if kind == "first_block":
        return Front(every[0][1], every[front - 1][1])
    return Modulated(attention(denoiser))


def attention(denoiser: Denoiser) -> nn.Module:
    """The first attention of a transformer's first block; the block itself where it has none."""
    path, block = blocks(denoiser.module)[0]
    first = f"{denoiser.name}.{path}."
    sites = denoiser.of_kind("self_attn", "joint_attn", "cross_attn")
    return next((site.module for site in sites if site.name.startswith(first)), block)


class Below:
    """What a UNet's stretch is given."""

    def attach(self, clock: Clock) -> Detach:
        return _nothing

    def look(self, inputs: Inputs, sample: Tree) -> Tree:
        return next(iter(inputs.values()))

    def forget(self) -> None: ...


class Front:
    """What the blocks from ``first`` to ``last`` add to what they are given; what they return where that is no sum."""

    def __init__(self, first: nn.Module, last: nn.Module):
        self.first, self.last = first, last
        self.inputs: Inputs = {}
        self.added: Tree = None

    def attach(self, clock: Clock) -> Detach:
        with ExitStack() as undo:
            undo.callback(self.forget)
            undo.callback(install(self.first, Ear(clock, given=self._given), LABEL))
            undo.callback(install(self.last, Ear(clock, returned=self._returned), LABEL))
            return undo.pop_all().close

    def look(self, inputs: Inputs, sample: Tree) -> Tree:
        if self.added is None:
            raise Unseen("the blocks in front of the stretch did not run before it")
        return self.added

    def forget(self) -> None:
        self.inputs, self.added = {}, None

    def _given(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.inputs = {name: value.clone() for name, value in named(module, args, kwargs).items()}

    def _returned(self, output: Tree) -> None:
        added = minus(output, self.inputs, pair(self.inputs, output))
        self.added, self.inputs = map_tensors(torch.Tensor.clone, added), {}


class Modulated:
    """What an attention layer is given."""

    def __init__(self, module: nn.Module):
        self.module = module
        self.input: Tree = None

    def attach(self, clock: Clock) -> Detach:
        with ExitStack() as undo:
            undo.callback(self.forget)
            undo.callback(install(self.module, Ear(clock, given=self._given), LABEL))
            return undo.pop_all().close

    def look(self, inputs: Inputs, sample: Tree) -> Tree:
        if self.input is None:
            raise Unseen("the first attention did not run before the stretch")
        return self.input

    def forget(self) -> None:
        self.input = None

    def _given(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.input = map_tensors(torch.Tensor.clone, main_input(module, args, kwargs))


class Latent:
    """The latent, filtered for the noise level of the step, see `accel.caches.dynamic.spectrum`."""

    def __init__(self, channels: int | None, power: float):
        self.channels, self.power = channels, power
        self.clock: Clock | None = None

    def attach(self, clock: Clock) -> Detach:
        self.clock = clock
        return _nothing

    def look(self, inputs: Inputs, sample: Tree) -> Tree:
        assert self.clock is not None and self.clock.run is not None
        ratio = self.clock.run.noise_over_signal[self.clock.step]
        if math.isnan(ratio):
            raise Unseen("the scheduler tells no noise levels: use another indicator")
        rows = 0 if isinstance(sample, list) else 1  # dimensions that are the batch's

        def picture(latent: torch.Tensor) -> torch.Tensor:
            dims = [i + rows for i in space(latent.shape[rows:], self.channels)]
            return filtered(latent, dims, ratio, self.power)

        return map_tensors(picture, sample)

    def forget(self) -> None: ...


def _nothing() -> None: ...

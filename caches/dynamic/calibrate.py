"""Measuring MagCache's ratios (arXiv:2506.09045) on a handful of prompts, see `accel.caches.dynamic.magnitudes`.

The size of a residual is its Euclidean norm, picture by picture. (The paper's code averages the ratios of tokens, which
has no value where padding adds nothing.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import nn

from accel.caches.dynamic.indicators import LABEL
from accel.caches.dynamic.magnitudes import Ratios
from accel.caches.dynamic.streams import Ear, Inputs, minus, named, pair, stretch
from accel.clock import Clock
from accel.errors import AccelError
from accel.hooks import install
from accel.runs import Run
from accel.sites import Site
from accel.target import Target
from accel.technique import Detach
from accel.tensors import Tree, signature, tensors
from accel.watching import Prompt, unchanged, watch


def calibrate_ratios(
    pipe: Any,
    prompts: Sequence[Prompt],
    steps: int,
    *,
    front: int = 1,
    back: int = 0,
    level: int = 1,
    seed: int = 0,
    call: Mapping[str, Any] | None = None,
) -> Ratios:
    """Run the plain pipeline on each prompt and measure γ, averaged over prompts, rows, branches and denoisers.

    Args:
        pipe: Without a plan; it is left as it was.
        prompts: One call each; the noise of prompt ``i`` is that of ``seed + i``.
        steps: Handed to the pipeline as ``num_inference_steps``.
        front, back, level: The stretch, see `accel.caches.dynamic.streams.stretch`; the same as in the plan to come.
        seed: Of the first prompt.
        call: Further arguments of every call, such as ``guidance_scale``.

    Raises:
        AccelError: when there is nothing to measure, the runs differ in length, or a ratio is not a positive number.
        accel.sites.Unreadable: when there is no such stretch.
    """
    target = Target.of(pipe)
    probe = _Probe([stretch(denoiser, front, back, level) for denoiser in target.denoisers])
    watch(target, probe.attach, prompts, steps, seed, call)
    return probe.ratios()


class _Probe:
    """Stands at the beginning and the end of each stretch in plain runs, and sums up ratios."""

    def __init__(self, sites: Sequence[Site]):
        self.sites = sites
        self.inputs: Inputs = {}
        self.size: dict[tuple[str, str], tuple[int, Any, torch.Tensor]] = {}
        """By stretch and branch: the newest step, the form of the residual and its size, row by row."""
        self.found: list[list[torch.Tensor]] = []
        """By step: ratios of rows."""

    def attach(self, clock: Clock) -> Detach:
        """Hook the stretches; returns what undoes it."""
        self.clock = clock
        with ExitStack() as undo:
            for site in self.sites:
                first = site.interior[0][1] if site.interior else site.module
                undo.callback(install(site.module, Ear(clock, returned=self._returned(site)), LABEL))
                undo.callback(install(first, Ear(clock, given=self._given), LABEL))
            undo.callback(clock.subscribe(self._begin, self._end, unchanged))
            return undo.pop_all().close

    def ratios(self) -> Ratios:
        """γ of every step; raises `AccelError` where one is not a positive number."""
        if not any(self.found):
            raise AccelError("no ratio was measured: the loop cannot be followed, or has a single step")
        means = [torch.cat(rows).mean() if rows else torch.ones(()) for rows in self.found]
        values = torch.stack([mean.cpu() for mean in means]).tolist()
        if not all(math.isfinite(value) and value > 0 for value in values):
            raise AccelError("the residuals vanish or are not finite: use another stretch, in float32 or bfloat16")
        return tuple(round(value, 5) for value in values)

    def _begin(self, run: Run) -> None:
        if self.found and len(self.found) != run.steps:
            raise AccelError(f"the prompts' runs differ in length, {len(self.found)} and {run.steps} steps")
        self.found = self.found or [[] for _ in run.times]

    def _end(self) -> None:
        self.inputs, self.size = {}, {}

    def _given(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        self.inputs = {name: value.clone() for name, value in named(module, args, kwargs).items()}

    def _returned(self, site: Site) -> Any:
        def returned(output: Tree) -> None:
            assert self.clock.call is not None
            residual = minus(output, self.inputs, pair(self.inputs, output))
            key, step = (site.name, self.clock.call.branch), self.clock.step
            form, size = signature(residual), _size(residual)
            earlier = self.size.get(key)
            if earlier and earlier[:2] == (step - 1, form):
                self.found[step].append(size / earlier[2])
            self.size[key] = step, form, size
            self.inputs = {}

        return returned


def _size(tree: Tree) -> torch.Tensor:
    """|r|_2 of each row, over all numbers of ``tree``; rows of the first tensor where others have other rows."""
    floats = [t.float() for t in tensors(tree) if t.is_floating_point()]
    alike = [t.flatten(1).square().sum(1) for t in floats if len(t) == len(floats[0])]
    return torch.stack(alike).sum(0).sqrt()

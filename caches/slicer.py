"""Feature slicer and operator grouping of Streamlined Inference (arXiv:2411.01171): less memory, the same picture.

A group of operators that is independent along a dimension runs over slices of it, one after another, so that what it
makes in between exists for one slice at a time. Groups are as large as can be: a whole residual block, a whole spatial
transformer, a whole temporal block; inside of a group that cannot be cut, the smaller ones are.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from diffusers.hooks import ModelHook
from torch import nn

from accel.caches.slices import Cut, Rule, Uncut, bind, in_pieces, mixes_rows, rule
from accel.calls import Call, Proceed
from accel.clock import Clock
from accel.hooks import install, labels
from accel.report import Recorder
from accel.runs import Run
from accel.target import Denoiser, Target
from accel.technique import Claim, Detach, Technique, positive
from accel.tensors import Tree

_LABEL = "slicer.slices"


@dataclass(frozen=True)
class Group:
    """Consecutive operators, being one module, and how its calls are cut."""

    name: str
    module: nn.Module
    rule: Rule


@dataclass(frozen=True)
class Slicer(Technique):
    """Run groups of operators over ``slices`` slices of their independent dimension.

    Nothing is predicted. Each slice is computed by the same operators as the whole; where a library sums a smaller
    matrix product in another order, the result differs in the last bits.
    """

    name: ClassVar[str] = "slicer"
    summary: ClassVar[str] = "groups of operators run over slices of frames, pixels or tokens: less memory"
    source: ClassVar[str] = "arXiv:2411.01171"
    lossless: ClassVar[bool] = True

    slices: int = 2
    """Into how many slices the work of a group is cut, at most one for each of its rows."""

    def __post_init__(self) -> None:
        positive(self, slices=self.slices)

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"memory"})

    def problems(self, target: Target) -> list[str]:
        return [
            f"slicer: {denoiser.name} ({type(denoiser.module).__name__}) has no residual, transformer or feed-forward "
            "block that is known to be independent along a dimension"
            for denoiser in target.denoisers
            if not groups(denoiser)
        ]

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        found = [group for denoiser in target.denoisers for group in groups(denoiser)]
        return _Slicing(found, self.slices, clock, recorder).attach()


def groups(denoiser: Denoiser) -> list[Group]:
    """The groups of ``denoiser``, those that contain others before them."""
    feed_forward = {site.module for site in denoiser.of_kind("ff")}
    found = []
    for path, module in denoiser.module.named_modules():
        if path and (how := rule(module, module in feed_forward)) is not None:
            found.append(Group(f"{denoiser.name}.{path}", module, how))
    return found


class _Slicing:
    """Cuts the calls of the groups, and keeps account."""

    def __init__(self, found: list[Group], slices: int, clock: Clock, recorder: Recorder):
        self.groups, self.slices = found, slices
        self.clock, self.recorder = clock, recorder
        self.wanted = slices  # fewer inside of a group that is being cut already
        self.closed: dict[str, str] = {}  # groups that are left whole in this run, and why
        self.cells: dict[str, bool] = {}  # by group reached in the current call: was it cut?

    def attach(self) -> Detach:
        """Hook the groups and listen to the clock; returns what undoes it."""
        with ExitStack() as undo:
            for group in self.groups:
                undo.callback(install(group.module, _GroupHook(self, group), _LABEL))
            undo.callback(self.clock.subscribe(self._begin, self._end, self._around))
            self.recorder.matched(Slicer.name, len(self.groups))
            return undo.pop_all().close

    def _begin(self, run: Run) -> None:
        self.closed = {group.name: reason for group in self.groups if (reason := _closed(group.module))}

    def _end(self) -> None:
        self.closed = {}

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        self.cells = {}
        try:
            return proceed(*args, **kwargs)
        finally:
            for name, cut in self.cells.items():
                self.recorder.cell(Slicer.name, predicted=False, lighter=cut, site=name)
            self.cells = {}

    def at_group(self, group: Group, forward: Callable[..., Tree], args: Any, kwargs: Any) -> Tree:
        """What ``forward`` returns, in as many pieces as are wanted here."""
        if self.clock.call is None:
            return forward(*args, **kwargs)
        cut = self._cut(group, args, kwargs)
        self.cells[group.name] = cut is not None or self.wanted < self.slices
        if cut is None:
            return forward(*args, **kwargs)
        pieces, outside = min(self.wanted, cut.units), self.wanted
        self.wanted = -(-outside // pieces)
        try:
            return in_pieces(cut, pieces, forward)
        finally:
            self.wanted = outside

    def _cut(self, group: Group, args: Any, kwargs: Any) -> Cut | None:
        """How to cut the call; ``None``, with the reason on record, when it is made in one piece."""
        try:
            if self.slices == 1:
                raise Uncut("it was asked for one slice")
            if self.wanted == 1:
                return None
            if group.name in self.closed:
                raise Uncut(self.closed[group.name])
            cut = group.rule(bind(group.module, args, kwargs))
            if cut.units < 2:
                raise Uncut("a group has a single row; only smaller ones inside of it are cut")
            return cut
        except Uncut as reason:
            if self.wanted == self.slices:
                self.recorder.decline(Slicer.name, str(reason))
            return None


def _closed(module: nn.Module) -> str | None:
    """Why a group must see all its rows at once in this run."""
    own = labels(module)
    last = max(i for i, label in enumerate(own) if label == _LABEL)  # another pipeline's, perhaps: at least not too few
    inside = [label for sub in module.modules() if sub is not module for label in labels(sub)]
    beneath = {label.partition(".")[0] for label in (*own[:last], *inside)}
    if strangers := sorted(beneath - {Slicer.name}):
        return f"{' and '.join(strangers)} looks at the inside of a group, which is cut in smaller ones"
    return "an attention processor may look across rows" if mixes_rows(module) else None


class _GroupHook(ModelHook):
    def __init__(self, slicing: _Slicing, group: Group):
        super().__init__()
        self.slicing, self.group = slicing, group

    @torch.compiler.disable(recursive=False)
    def new_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tree:
        return self.slicing.at_group(self.group, self.fn_ref.original_forward, args, kwargs)

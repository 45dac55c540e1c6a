"""What the checks share: the pipeline under test, and its output with and without the plan."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import torch
from torch import nn

from accel.contract.census import Census
from accel.handle import Handle, accelerate
from accel.plan import Plan
from accel.report import Report
from accel.target import unwrap

Draw = Callable[[Any, int], torch.Tensor]
"""``draw(pipe, steps)`` runs the pipeline on fixed inputs and returns its output as one tensor."""


class NotChecked(Exception):
    """A check cannot be made on this pipeline; the message says why."""


class Broken(Exception):
    """Raised on purpose to break a run off."""


class Bench:
    """A pipeline, a plan and a way to run them."""

    def __init__(self, pipe: Any, plan: Plan, draw: Draw, steps: int):
        self.pipe, self.plan, self.steps = pipe, plan, steps
        self._draw = draw

    def under(self, plan: Plan) -> Bench:
        """The same pipeline under another plan; its plain run is not repeated."""
        other = copy.copy(self)
        other.plan = plan
        vars(other).pop("_fast", None)
        return other

    def draw(self, pipe: Any = None, steps: int | None = None) -> torch.Tensor:
        """The output of ``pipe`` (default: the pipeline under test), as it is now."""
        return self._draw(self.pipe if pipe is None else pipe, steps or self.steps)

    def attached(self, plan: Plan | None = None) -> Handle:
        """Attach the plan under test, or another one."""
        return accelerate(self.pipe, self.plan if plan is None else plan)

    @cached_property
    def modules(self) -> dict[str, nn.Module]:
        """Every module of the pipeline's networks by dotted name, the networks included."""
        networks = {n: unwrap(part) for n, part in self.pipe.components.items() if isinstance(part, nn.Module)}
        return {
            f"{name}.{path}" if path else name: module
            for name, network in networks.items()
            for path, module in network.named_modules()
        }

    @cached_property
    def _plain(self) -> tuple[torch.Tensor, Census]:
        with Census.of(self.modules) as census:
            return self.draw(), census

    @cached_property
    def _fast(self) -> tuple[torch.Tensor, Census, Report]:
        with self.attached() as handle, Census.of(self.modules) as census:
            return self.draw(), census, handle.report()

    @property
    def plain(self) -> torch.Tensor:
        """The output without any plan."""
        return self._plain[0]

    @property
    def plain_census(self) -> Census:
        """Which modules ran in the run without a plan."""
        return self._plain[1]

    @property
    def fast(self) -> torch.Tensor:
        """The output of the first run under the plan."""
        return self._fast[0]

    @property
    def fast_census(self) -> Census:
        """Which modules ran in the first run under the plan."""
        return self._fast[1]

    @property
    def report(self) -> Report:
        """The report of the first run under the plan."""
        return self._fast[2]


def difference(got: torch.Tensor, wanted: torch.Tensor) -> str | None:
    """``None`` when both tensors have the same bits, else how they differ."""
    if got.shape != wanted.shape:
        return f"shape {tuple(got.shape)} instead of {tuple(wanted.shape)}"
    if torch.equal(got, wanted):
        return None
    return f"differs by up to {(got.double() - wanted.double()).abs().max().item():.2g}"


@contextmanager
def breaking(owner: Any, method: str, after: int) -> Iterator[None]:
    """While in this context, ``owner.method`` raises `Broken` from its call number ``after`` on (0 is the first)."""
    shadowed, original, calls = vars(owner).get(method), getattr(owner, method), iter(range(after))

    def broken(*args: Any, **kwargs: Any) -> Any:
        if next(calls, None) is None:
            raise Broken(f"{method} was broken off on purpose")
        return original(*args, **kwargs)

    broken.__wrapped__ = original  # type: ignore[attr-defined]  # diffusers inspects the signature
    setattr(owner, method, broken)
    try:
        yield
    finally:
        delattr(owner, method) if shadowed is None else setattr(owner, method, shadowed)

"""One call of a denoiser: what is known of it, and how techniques stand around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from diffusers.hooks import ModelHook
from diffusers.hooks.hooks import BaseState, StateManager
from torch import nn

from accel.target import Denoiser
from accel.tensors import Tree

Proceed = Callable[..., Tree]


@dataclass(frozen=True)
class Call:
    """One call of a denoiser inside a run."""

    denoiser: Denoiser
    branch: str
    """diffusers' cache-context name (``cond``, ``uncond``, …) or the index of the call within its step."""
    batch: int
    """Rows in this call."""
    lanes: int | None
    """Guidance halves concatenated in the batch (2 = batched guidance); ``None`` until the first step has ended."""


Interceptor = Callable[[Call, Proceed, tuple[Any, ...], dict[str, Any]], Tree]
"""Stands around a denoiser call: ``fn(call, proceed, args, kwargs)`` returns what ``proceed`` would."""


def through(chain: list[Interceptor], call: Call, forward: Proceed) -> Proceed:
    """``forward`` with the interceptors of ``chain`` around it, the first outermost."""
    if not chain:
        return forward
    first, rest = chain[0], chain[1:]
    return lambda *args, **kwargs: first(call, through(rest, call, forward), args, kwargs)


# --- a part of the rows ----------------------------------------------------------------------------------------------

Lane = tuple[int, int] | None
"""Rows ``start … stop-1`` of the full batch that are being computed, or ``None`` for all of them."""

_halved: ContextVar[tuple[Any, Lane, int] | None] = ContextVar("halved", default=None)
"""(pipeline, rows, full batch) while only some rows are computed: the clocks of other plans on that pipeline see it."""


@contextmanager
def only(pipe: Any, lane: Lane, batch: int) -> Iterator[None]:
    """While in this context, just the rows ``lane`` of the ``batch`` rows go through the denoisers of ``pipe``."""
    token = _halved.set((pipe, lane, batch))
    try:
        yield
    finally:
        _halved.reset(token)


def part(pipe: Any) -> tuple[Lane, int | None]:
    """The rows that now go through the denoisers of ``pipe``, and the full batch where these are not all of it."""
    halved = _halved.get()
    return halved[1:] if halved and halved[0] is pipe else (None, None)


# --- the hook --------------------------------------------------------------------------------------------------------


class Around(Protocol):
    """What a denoiser's hook calls instead of the denoiser."""

    def __call__(self, denoiser: Denoiser, context: str | None, forward: Proceed, args: Any, kwargs: Any) -> Tree: ...


class _ContextName(StateManager):
    """Where diffusers puts the name of the cache context; it looks for this type on stateful hooks."""

    def __init__(self) -> None:
        super().__init__(BaseState)
        self.name: str | None = None

    def set_context(self, context: Any) -> None:
        self.name = context.name if context else None


class DenoiserHook(ModelHook):
    """Puts ``around`` around a denoiser's forward, and receives diffusers' cache-context names for it."""

    _is_stateful = True  # only stateful hooks are told the cache context

    def __init__(self, denoiser: Denoiser, around: Around):
        super().__init__()
        self.denoiser, self.around = denoiser, around
        self.context = _ContextName()

    @torch.compiler.disable(recursive=False)  # the frames inside may still be compiled
    def new_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tree:
        return self.around(self.denoiser, self.context.name, self.fn_ref.original_forward, args, kwargs)

    def reset_state(self, module: nn.Module) -> nn.Module:
        self.context.set_context(None)
        return module

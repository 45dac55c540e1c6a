"""One call of a denoiser: what is known of it, and how techniques stand around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Protocol

import torch
from diffusers.hooks import ModelHook
from diffusers.hooks.hooks import BaseState, StateManager
from torch import nn

from accel.adapters import Adapters, State
from accel.halves import conditional_first
from accel.runs import main_input, main_signature, model_output, sample_batch
from accel.target import Denoiser
from accel.tensors import Tree, height, rows, tensors

_MAX_CALLS_PER_STEP = 8
"""More calls of a denoiser than this without a ``scheduler.step``: the loop has no step boundary we can see."""

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
    cond_first: bool | None
    """Is the conditional half the first of two? ``None`` until a step has ended, or where it cannot be told."""
    sample: tuple[Any, ...] = field(repr=False)
    """Shape without the rows, type and device of the sample; one entry for each row where it is a list."""
    adapters: State = field(repr=False)

    def changed_since(self, earlier: Call) -> str | None:
        """Why nothing that was kept at an earlier call can stand in now; ``None`` when it can."""
        if self.denoiser is earlier.denoiser and self.adapters != earlier.adapters:
            return "an adapter was switched or scaled"
        if (self.batch, self.sample) != (earlier.batch, earlier.sample):
            return "the denoiser's input changed its shape or type"
        return None


class Calls:
    """The calls of one run: numbered within their step, and what the ends of steps told about guidance."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}
        self._outputs: list[torch.Tensor] = []  # of this step, while they may still tell which half is which
        self._sample_batch: int | None = None
        self._cond_first: bool | None = None
        self._adapters = Adapters()

    def lost(self, denoiser: Denoiser, scheduler: Any) -> str | None:
        """Why a further call of ``denoiser`` cannot be placed in a step, and what to do; ``None`` while it can."""
        if self._counts.get(denoiser.name, 0) < _MAX_CALLS_PER_STEP:
            return None
        return (
            f"{denoiser.name} was called more than {_MAX_CALLS_PER_STEP} times before pipe.scheduler "
            f"({type(scheduler).__name__}) took a step, further calls ran plainly: if the loop steps another scheduler "
            "object, make it pipe.scheduler; if it has that many views or tiles in a step, remove the plan"
        )

    def describe(self, denoiser: Denoiser, context: str | None, full: int | None, args: Any, kwargs: Any) -> Call:
        """The next call; ``full`` is its number of rows where it is given only a part of them."""
        index = self._counts.get(denoiser.name, 0)
        self._counts[denoiser.name] = index + 1
        sample = main_input(denoiser.module, args, kwargs)
        batch = full or height(sample)
        lanes = batch // self._sample_batch if self._sample_batch else None
        adapters = self._adapters.state(denoiser.module)
        return Call(denoiser, context or str(index), batch, lanes, self._cond_first, main_signature(sample), adapters)

    def answered(self, output: Tree) -> None:
        """A call returned ``output``, with all its rows."""
        if self._cond_first is None:
            self._outputs += islice(tensors(output), 1)

    def step_ended(self, scheduler: Any, args: Any, kwargs: Any) -> None:
        """``scheduler.step`` was called with these arguments."""
        self._sample_batch = sample_batch(scheduler, args, kwargs)
        guided = model_output(scheduler, args, kwargs)
        told = (conditional_first(output, guided) for output in self._outputs)
        self._cond_first = next((answer for answer in told if answer is not None), self._cond_first)
        self._outputs.clear()
        self._counts.clear()


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


def narrowed(args: Any, kwargs: dict[str, Any], batch: int, lane: slice | Sequence[int]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a denoiser call of ``batch`` rows, for the rows ``lane`` only."""
    return rows(args, batch, lane), {name: _part(name, value, batch, lane) for name, value in kwargs.items()}


def _part(keyword: str, value: Tree, batch: int, lane: slice | Sequence[int]) -> Tree:
    """The rows ``lane`` of an argument. Motion UNets are given the text once for every frame, row after row."""
    if _is_position(keyword):
        return value
    if keyword == "encoder_hidden_states" and isinstance(value, torch.Tensor) and len(value) % batch == 0:
        return rows(value.unflatten(0, (batch, -1)), batch, lane).flatten(0, 1)
    return rows(value, batch, lane)


def _is_position(keyword: str) -> bool:
    """Position tables have no batch, even when one happens to be as long as the batch."""
    return any(part in keyword for part in ("rotary", "rope", "coords", "img_ids", "txt_ids"))


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

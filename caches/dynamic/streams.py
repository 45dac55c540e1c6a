"""What a stretch of blocks adds to what it is given.

The residual of a stretch is its output minus its input, where the two belong together. Blocks name their inputs and
return one tensor or several in either order, so structure decides which input an output goes on from: the first one
where there is a single output, else the only one of its shape and type. An output that fits none, or several (streams
that the stretch joins, text as long as the picture), has no residual, and is predicted as it is.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from diffusers.hooks import ModelHook
from torch import nn

from accel.clock import Clock
from accel.sites import Site
from accel.target import Denoiser, unwrap
from accel.tensors import Tree, map_tensors, rows, signature, tensors

Inputs = Mapping[str, torch.Tensor]
"""The tensors that a module is given, by the name of its parameter."""

Pairs = tuple[str | None, ...]
"""For each tensor of an output the input that it goes on from."""

_POSITIONS = ("rotary", "rope", "freqs", "coords", "img_ids", "txt_ids")


def stretch(denoiser: Denoiser, front: int = 1, back: int = 0, level: int = 1) -> Site:
    """All blocks of a transformer but the first ``front`` and the last ``back``; a UNet's part below ``level``.

    Raises `accel.sites.Unreadable` with the reason where there is none.
    """
    return denoiser.deep(level, (front, -back or None))


def named(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors in a call of ``module`` that may be streams: numbers with rows and at least one more dimension.

    In the order of its parameters, however they are given.
    """
    given = _given(module, args, kwargs)
    order = dict.fromkeys((*_parameters(type(unwrap(module)).forward), *given))
    return {name: given[name] for name in order if _may_be_stream(given.get(name))}


def pair(inputs: Inputs, output: Tree) -> Pairs:
    """Which input each tensor of ``output`` goes on from, see the module's text."""
    outputs = list(tensors(output))
    found = [[name for name, given in inputs.items() if signature(given) == signature(out)] for out in outputs]
    if len(outputs) == 1:
        return (found[0][0] if found[0] else None,)
    alone = [names[0] if len(names) == 1 else None for names in found]
    return tuple(name if alone.count(name) == 1 else None for name in alone)


def minus(output: Tree, inputs: Inputs, pairs: Pairs) -> Tree:
    """The residual of ``output``: minus the inputs it goes on from."""
    names = iter(pairs)
    return map_tensors(lambda out: out if (name := next(names)) is None else out - inputs[name], output)


def plus(residual: Tree, inputs: Inputs, pairs: Pairs) -> Tree:
    """The inverse of `minus`: the output that has this residual."""
    names = iter(pairs)
    return map_tensors(lambda out: out if (name := next(names)) is None else inputs[name] + out, residual)


def taken(module: nn.Module, args: Any, kwargs: Any, batch: int, chosen: torch.Tensor) -> tuple[Any, Any] | None:
    """The arguments of a call with only the ``chosen`` (numbers) of the ``batch`` rows.

    ``None`` where some argument seems to hold several rows for each of the batch: it is not known how they are ordered.
    """
    for name, value in _given(module, args, kwargs).items():
        lengths = {len(t) for t in tensors(value) if t.ndim}
        position = any(part in name for part in _POSITIONS)  # as many as there are tokens
        if not position and any(length > batch and length % batch == 0 for length in lengths):
            return None
    return map_tensors(lambda t: rows(t, batch, chosen.to(t.device)), (args, kwargs))  # type: ignore[arg-type]


def put(whole: Tree, part: Tree, batch: int, chosen: torch.Tensor) -> Tree:
    """``whole``, which is written to, with the ``chosen`` of its ``batch`` rows replaced by those of ``part``."""

    def write(into: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        if into.ndim and len(into) == batch and len(values) == len(chosen):
            return into.index_copy_(0, chosen.to(into.device), values)
        return values

    return map_tensors(write, whole, part)


Told = Callable[..., None]


class Ear(ModelHook):
    """Tells what a module is given (module, args, kwargs) and what it returns, in calls of this clock's runs."""

    def __init__(self, clock: Clock, given: Told | None = None, returned: Told | None = None):
        super().__init__()
        self.clock, self.given, self.returned = clock, given, returned

    @torch.compiler.disable(recursive=False)
    def new_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tree:
        listening = self.clock.call is not None
        if listening and self.given:
            self.given(module, args, kwargs)
        output = self.fn_ref.original_forward(*args, **kwargs)
        if listening and self.returned:
            self.returned(output)
        return output


def _given(module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {**dict(zip(_parameters(type(unwrap(module)).forward), args, strict=False)), **kwargs}


def _may_be_stream(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and value.ndim > 1


@cache
def _parameters(method: Callable[..., Any]) -> tuple[str, ...]:
    """Names of a method's parameters after ``self``; asked in every call, so read once."""
    return tuple(inspect.signature(method).parameters)[1:]

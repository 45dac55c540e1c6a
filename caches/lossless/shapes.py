"""Does a module look at the values of its inputs, or only at their shapes?

Many position tables are handed the sample and read nothing off it but its size. Such a module is given tensors that
show their form and nothing else: what it makes of them it would make of any sample of that form.
"""

from __future__ import annotations

from typing import Any

import torch

from accel.tensors import Tree, map_tensors, tensors

_T = torch.Tensor
_FORM = {
    *(_T.size, _T.dim, _T.ndimension, _T.numel, _T.nelement, _T.__len__, _T.is_floating_point, _T.is_complex),
    *(getattr(_T, name).__get__ for name in ("shape", "dtype", "device", "ndim", "layout", "is_cuda", "is_cpu")),
}
"""All that a shadow answers to."""


class Looked(Exception):
    """The values of a shadow were asked for."""


class _Shadow(torch.Tensor):
    """A tensor that shows its form only."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func not in _FORM:
            raise Looked
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def form(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What a shadow of ``tensor`` shows."""
    return tuple(tensor.shape), tensor.dtype, tensor.device, tensor.layout


def from_shapes(forward: Any, args: Any, kwargs: Any) -> Tree:
    """``forward(*args, **kwargs)``, computed from the form of its tensors; raises `Looked` where that is not enough."""
    output = forward(*map_tensors(_shadow, args), **map_tensors(_shadow, kwargs))
    if any(isinstance(t, _Shadow) for t in tensors(output)):
        raise Looked
    return output


def _shadow(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(_Shadow)

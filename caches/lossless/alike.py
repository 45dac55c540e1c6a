"""The inputs of a call, kept so that those of a later call can be held against them.

Two tensors are the same when they are the same memory and nobody has written to it since: every tensor counts the
writes to it, through whichever view they are made, and as long as one is kept its memory is given to no other. That
costs nothing to find out. Where it is other memory the bits are compared; a negative zero is no zero there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from accel.tensors import Tree

_WHOLE = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
    torch.complex64: torch.int64,
    **{whole: whole for whole in _WHOLE},
}
"""Types whose bits can be compared → the whole numbers of that size."""
_SIMPLE = (type(None), bool, int, str, torch.dtype, torch.device)
"""Arguments that are what they are; any other object may change without being replaced."""


class Untold(Exception):
    """An input that cannot be told from another one."""


@dataclass(frozen=True)
class Seen:
    """A tensor as it was at one moment."""

    tensor: torch.Tensor
    writes: int
    address: int

    @classmethod
    def now(cls, tensor: torch.Tensor) -> Seen:
        """``tensor`` as it is; raises `Untold` where it counts no writes or has no memory of its own."""
        try:
            seen = cls(tensor, tensor._version, tensor.data_ptr())
        except RuntimeError:  # made under torch.inference_mode, or not dense
            raise Untold from None
        if not seen.address:
            raise Untold
        return seen

    @property
    def untouched(self) -> bool:
        """Has nobody written to it since, or given it other memory?"""
        return self.tensor._version == self.writes and self.tensor.data_ptr() == self.address

    def holds(self, later: Seen) -> bool:
        """Is ``later`` this memory, in this form, and unwritten?"""
        if self.address != later.address or self.writes != later.writes:
            return False
        return self.tensor is later.tensor or (self.untouched and _form(self.tensor) == _form(later.tensor))

    def equals(self, later: Seen) -> bool:
        """Has ``later`` these bits, in this form?"""
        bits = _BITS.get(self.tensor.dtype)
        if bits is None or not self.untouched or _form(self.tensor) != _form(later.tensor):
            return False
        return not _read_otherwise(later.tensor) and torch.equal(self.tensor.view(bits), later.tensor.view(bits))


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.stride(), tensor.dtype, tensor.device, _read_otherwise(tensor)


def _read_otherwise(tensor: torch.Tensor) -> bool:
    """Is its memory to be conjugated or negated when it is read?"""
    return tensor.is_conj() or tensor.is_neg()


class Key:
    """All that a call was given, in a form that can be compared."""

    __slots__ = ("leaves",)

    def __init__(self, leaves: list[Any]):
        self.leaves = leaves

    @classmethod
    def of(cls, args: Any, kwargs: Any, see: Callable[[torch.Tensor], Any] = Seen.now) -> Key:
        """The key of a call; ``see`` is what to keep of a tensor. Raises `Untold` where inputs cannot be compared."""
        if not kwargs and len(args) == 1 and isinstance(args[0], torch.Tensor):  # nearly always
            return cls([see(args[0])])
        return cls(list(_leaves((args, kwargs), see)))

    def same(self, later: Key, by_bits: bool) -> bool:
        """Was the ``later`` call given the same? ``by_bits``: also look into tensors that are other memory."""
        if len(self.leaves) != len(later.leaves):
            return False
        return all(_same(a, b, by_bits) for a, b in zip(self.leaves, later.leaves, strict=True))

    @property
    def untouched(self) -> bool:
        """Has nobody written to the tensors since?"""
        return all(leaf.untouched for leaf in self.leaves if isinstance(leaf, Seen))

    @property
    def tensors(self) -> list[torch.Tensor]:
        """Those that it keeps alive."""
        return [leaf.tensor for leaf in self.leaves if isinstance(leaf, Seen)]


def _same(earlier: Any, later: Any, by_bits: bool) -> bool:
    if type(earlier) is not type(later):
        return False
    if isinstance(earlier, Seen):
        return earlier.holds(later) or (by_bits and earlier.equals(later))
    return bool(earlier == later)


def _leaves(tree: Tree, see: Callable[[torch.Tensor], Any]) -> Iterator[Any]:
    if isinstance(tree, torch.Tensor):
        yield see(tree)
    elif isinstance(tree, Mapping):
        yield type(tree), tuple(tree)
        for value in tree.values():
            yield from _leaves(value, see)
    elif isinstance(tree, (tuple, list)):
        yield type(tree), len(tree)
        for value in tree:
            yield from _leaves(value, see)
    elif isinstance(tree, float):
        yield tree.hex()
    elif isinstance(tree, _SIMPLE):
        yield tree
    else:
        raise Untold

"""Small helpers over the nested tuples, lists, dicts and model outputs that modules take and return."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

Tree = Any
"""A tensor, or a tuple, list or mapping of trees; anything else is passed through untouched."""


def map_tensors(fn: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """Apply ``fn`` to every tensor of ``tree`` (and its counterparts in ``others``), keeping the structure.

    Model outputs of diffusers and transformers are mappings and keep their class; ``None`` and other leaves stay.
    """
    if isinstance(tree, torch.Tensor):
        return fn(tree, *others)
    if isinstance(tree, Mapping):
        mapped = {k: map_tensors(fn, v, *(o[k] for o in others)) for k, v in tree.items()}
        return mapped if type(tree) is dict else type(tree)(**mapped)
    if isinstance(tree, (tuple, list)):
        parts = [map_tensors(fn, *together) for together in zip(tree, *others, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return tree


def tensors(tree: Tree) -> Iterator[torch.Tensor]:
    """Yield every tensor of ``tree``, depth first."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, Mapping):
        for value in tree.values():
            yield from tensors(value)
    elif isinstance(tree, (tuple, list)):
        for value in tree:
            yield from tensors(value)


def nbytes(tree: Tree) -> int:
    """Bytes held by the tensors of ``tree``."""
    return sum(t.numel() * t.element_size() for t in tensors(tree))


def signature(tree: Tree) -> tuple[Any, ...]:
    """What must not change between two calls for a value of the first to stand in the second: shape, dtype, device."""
    return tuple((tuple(t.shape), t.dtype, t.device) for t in tensors(tree))


def height(tree: Tree) -> int:
    """Rows of the first tensor of ``tree``. A *list* holds one row in each of its items, whatever their shapes."""
    if isinstance(tree, list):
        return len(tree)
    if isinstance(tree, torch.Tensor):
        return tree.shape[0] if tree.ndim else 1
    parts = tree.values() if isinstance(tree, Mapping) else tree if isinstance(tree, tuple) else ()
    return next((height(part) for part in parts if any(True for _ in tensors(part))), 1)


def rows(tree: Tree, batch: int, lane: slice | Sequence[int]) -> Tree:
    """Take ``lane`` of dimension 0 of every tensor with ``batch`` rows; what does not carry the batch stays whole."""

    def take(t: torch.Tensor) -> torch.Tensor:
        return t[lane] if t.ndim > 0 and t.shape[0] == batch else t

    return map_tensors(take, tree)

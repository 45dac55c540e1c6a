"""The rows of a denoiser's output one by one, so that each of them can have a past of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from accel.tensors import Tree


def split(tree: Tree, rows: int) -> list[Tree]:
    """``tree``, whose tensors have ``rows`` rows, as one tree for each row.

    A tensor of a row is a view with one row. A *list* has one row in each of its items.
    """
    return [_row(tree, rows, index) for index in range(rows)]


def join(parts: Sequence[Tree]) -> Tree:
    """The inverse of `split`: new tensors, with the rows in this order."""
    first = parts[0]
    if isinstance(first, torch.Tensor):
        return torch.cat(list(parts)) if first.ndim else first
    if isinstance(first, list):
        return [item for part in parts for item in part]
    if isinstance(first, Mapping):
        joined = {key: join([part[key] for part in parts]) for key in first}
        return joined if type(first) is dict else type(first)(**joined)
    if isinstance(first, tuple):
        return tuple(join(together) for together in zip(*parts, strict=True))
    return first


def _row(tree: Tree, rows: int, index: int) -> Tree:
    if isinstance(tree, torch.Tensor):
        return tree[index : index + 1] if tree.ndim and tree.shape[0] == rows else tree
    if isinstance(tree, list):
        return tree[index : index + 1]
    if isinstance(tree, Mapping):
        cut = {key: _row(value, rows, index) for key, value in tree.items()}
        return cut if type(tree) is dict else type(tree)(**cut)
    if isinstance(tree, tuple):
        return tuple(_row(part, rows, index) for part in tree)
    return tree

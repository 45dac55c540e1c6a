"""Counting by plain torch hooks, which know nothing of plans: what the report says is held against it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import torch
from torch import nn

from accel.hooks import labels
from accel.tensors import height, tensors


class Census:
    """Rows of every call of every module, by dotted name, in the order in which the modules first finished."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.hooked: dict[str, list[str]] = {}
        """Labels of the toolkit's own hooks that each module carried."""
        self.again: dict[str, int] = {}
        """How often a module with such a hook returned a tensor that it had returned before."""

    @classmethod
    @contextmanager
    def of(cls, modules: Mapping[str, nn.Module]) -> Iterator[Census]:
        """Count while in this context."""
        census = cls()
        census.hooked = {name: labels(module) for name, module in modules.items()}
        with ExitStack() as undo:
            for name, module in modules.items():
                undo.callback(module.register_forward_hook(census._note(name)).remove)
            yield census

    def _note(self, name: str) -> Any:
        returned: list[torch.Tensor] = []  # held, so that no other tensor can be taken for one of them

        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.rows.setdefault(name, []).append(height(output))
            for first in islice(tensors(output) if self.hooked[name] else (), 1):
                self.again[name] = self.again.get(name, 0) + any(first is earlier for earlier in returned)
                returned.append(first)

        return note

    def calls(self, name: str) -> int:
        """How often the module was called."""
        return len(self.rows.get(name, ()))

    def total(self, name: str) -> int:
        """Rows over all its calls."""
        return sum(self.rows.get(name, ()))

    def witness(self, name: str, besides: Iterable[str] = ()) -> str | None:
        """A module inside ``name`` that runs exactly when it does, with as many rows: in a plain run, the first one.

        Not one of ``besides``, nor inside of them.
        """
        apart = tuple(f"{other}." for other in besides)
        inside = (other for other in self.rows if other.startswith(f"{name}.") and not f"{other}.".startswith(apart))
        return next((other for other in inside if self.rows[other] == self.rows[name]), None)

    def changed(self) -> list[str]:
        """The modules that carried any hook of the toolkit: what is inside of them need not run."""
        return [name for name, found in self.hooked.items() if found]

    def sites(self, technique: str) -> list[str]:
        """The modules that carried a hook of ``technique``."""
        return [name for name, found in self.hooked.items() if technique in found]


def predicted(technique: str, plain: Census, fast: Census) -> int | None:
    """Cells of ``technique`` that were called but did not run; ``None`` when it has no modules to count at."""
    counts = [_skipped(name, plain, fast) for name in fast.sites(technique) if plain.calls(name)]
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _skipped(name: str, plain: Census, fast: Census) -> int | None:
    """Calls of a module in which its inside did not run. One without an inside did not if it returned what it had."""
    if (inner := plain.witness(name)) is not None:
        return fast.calls(name) - fast.calls(inner)
    return None if any(other.startswith(f"{name}.") for other in plain.rows) else fast.again.get(name, 0)

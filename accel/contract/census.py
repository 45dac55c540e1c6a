"""Counting by plain torch hooks, which know nothing of plans: what the report says is held against it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from torch import nn

from accel.hooks import labels
from accel.tensors import height


class Census:
    """Rows of every call of every module, by dotted name, in the order in which the modules first finished."""

    def __init__(self) -> None:
        self.rows: dict[str, list[int]] = {}
        self.hooked: dict[str, list[str]] = {}
        """Labels of the toolkit's own hooks that each module carried."""

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
        def note(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
            self.rows.setdefault(name, []).append(height(output))

        return note

    def calls(self, name: str) -> int:
        """How often the module was called."""
        return len(self.rows.get(name, ()))

    def total(self, name: str) -> int:
        """Rows over all its calls."""
        return sum(self.rows.get(name, ()))

    def witness(self, name: str) -> str | None:
        """A module inside ``name`` that runs exactly when it does, with as many rows: in a plain run, the first one."""
        inside = (other for other in self.rows if other.startswith(f"{name}."))
        return next((other for other in inside if self.rows[other] == self.rows[name]), None)

    def sites(self, technique: str) -> list[str]:
        """The modules that carried a hook of ``technique``."""
        return [name for name, found in self.hooked.items() if technique in found]


def predicted(technique: str, plain: Census, fast: Census) -> int | None:
    """Cells of ``technique`` that were called but did not run; ``None`` when it has no modules to count at."""
    pairs = [(name, plain.witness(name)) for name in fast.sites(technique) if plain.calls(name)]
    if not pairs or any(inner is None for _, inner in pairs):
        return None
    return sum(fast.calls(name) - fast.calls(str(inner)) for name, inner in pairs)

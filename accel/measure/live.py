"""Bytes of the tensors alive at once, counted operator by operator: exact and repeatable, on any device.

Only what PyTorch operators hand out is counted, each storage once, from the operator that makes it until nothing refers
to it any more. Weights and inputs that were there before do not count, and neither does what an operator allocates and
frees inside itself (a convolution's workspace).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from accel.tensors import tensors


class Live(TorchDispatchMode):
    """Counts while it is entered; ``now`` and ``peak`` are in bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {id(t.untyped_storage()) for t in tensors((args, kwargs or {}))}
        output = func(*args, **(kwargs or {}))
        for tensor in tensors(output):
            storage = tensor.untyped_storage()
            if id(storage) not in known:  # a view, or written in place: nothing new
                self._count(storage)
        self.peak = max(self.peak, self.now)
        return output

    def _count(self, storage: torch.UntypedStorage) -> None:
        key, size = id(storage), storage.nbytes()
        if key in self._seen:
            return

        def gone(_: object) -> None:
            del self._seen[key]
            self.now -= size

        self._seen[key] = weakref.ref(storage, gone)
        self.now += size


def live_peak(run: Callable[[], object]) -> int:
    """The most bytes of tensors made by ``run()`` that were alive at once, its result included."""
    with Live() as live:
        run()
        return live.peak

"""How the values that predictions are made from are stored: one setting for all caches of a plan.

Every cache keeps its computed values in a `accel.caches.past.Past`, which asks here what to do with them: as they are,
rounded to bfloat16 (half of float32; a value y comes back within 2^-8 |y|, and a prediction within 2^-8 sum |w_i y_i|),
in CPU memory, and up to a budget. Beyond it a site is given up for the rest of the run: it is computed.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import ClassVar, Literal
from weakref import WeakKeyDictionary

import torch

from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive
from accel.tensors import Tree, map_tensors, nbytes, tensors

_MIB = 1 << 20
_LONG = (torch.float32, torch.float64)
"""What bfloat16 is shorter than."""


@dataclass(frozen=True)
class Storage(Technique):
    """Keep the values of this plan's caches in less memory of the device, or no more than a budget of it.

    What is remembered without being predicted from (`lossless`) has a budget of its own, and diffusers' caches
    (`native`) keep their values themselves.
    """

    name: ClassVar[str] = "storage"
    summary: ClassVar[str] = "what the plan's caches keep, in bfloat16, in CPU memory, or up to a budget"

    store: Literal["same", "bf16"] = "same"
    """``same``: bit for bit; ``bf16``: float32 and float64 rounded to bfloat16."""
    offload: bool = False
    """Keep them in CPU memory, and copy them back for each prediction."""
    budget: int | None = None
    """MiB that may be kept, wherever; ``None``: any."""

    def __post_init__(self) -> None:
        if self.store not in ("same", "bf16"):
            raise AccelError(f"storage: store is same or bf16, not {self.store!r}")
        if not isinstance(self.offload, bool):
            raise AccelError(f"storage: offload is true or false, not {self.offload!r}")
        if self.budget is not None:
            positive(self, budget=self.budget)

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"cache_storage"})

    def problems(self, target: Target) -> list[str]:
        return []

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        store = Store(self)
        with ExitStack() as undo:
            _stores[recorder] = store
            undo.callback(_stores.pop, recorder)
            undo.callback(clock.subscribe(lambda run: store.began(), lambda: store.ended(recorder)))
            return undo.pop_all().close


@dataclass(frozen=True)
class Stored:
    """A value as it is kept, and what it was."""

    value: Tree
    forms: Tree
    """Type and device in the place of each tensor."""
    offloaded: bool

    @property
    def size(self) -> int:
        """Bytes that it takes up where it is."""
        return nbytes(self.value)

    def back(self, part: Tree) -> Tree:
        """``part``, which is the kept value or some rows of it, in its own type and place."""
        return map_tensors(lambda t, form: t.to(form.device, non_blocking=True).to(form.dtype), part, self.forms)


@dataclass(frozen=True)
class _Form:
    dtype: torch.dtype
    device: torch.device


class Store:
    """Puts away the values of one plan's caches, and knows how much that is."""

    def __init__(self, settings: Storage):
        self.settings = settings
        self.held = self.puts = 0

    def put(self, value: Tree, recorder: Recorder, exact: bool = False) -> Stored | None:
        """A copy of ``value`` (models may write into it) as it is to be kept; ``None`` where there is no room for it.

        ``exact`` values keep their type: they are not predicted from, but compared with others.
        """
        self.puts += 1
        short = self.settings.store == "bf16" and not exact
        limit = self.settings.budget
        if limit is not None and self.held + sum(_size(t, short) for t in tensors(value)) > limit * _MIB:
            recorder.decline(Storage.name, f"more than {limit} MiB would be kept, so a site is computed: {_WAYS_OUT}")
            return None
        away = self.settings.offload and not all(map(_on_host, tensors(value)))
        if self.settings.offload and not away and self.puts == 1:
            recorder.decline(Storage.name, "the values are in CPU memory already: there is nothing to offload")
        forms = map_tensors(lambda t: _Form(t.dtype, t.device), value)
        stored = Stored(map_tensors(lambda t: _copied(t, short, away), value), forms, away)
        self.account(stored, +1, recorder)
        return stored

    def account(self, stored: Stored, sign: int, recorder: Recorder) -> None:
        """Something was put away (+1), or dropped (-1)."""
        self.held += sign * stored.size
        recorder.cached(sign * stored.size, stored.offloaded)

    def began(self) -> None:
        """A run begins."""
        self.puts = 0

    def ended(self, recorder: Recorder) -> None:
        """A run is over; says so where none of it was for us."""
        if not self.puts and recorder.report.steps_run == recorder.report.steps_planned:
            recorder.decline(Storage.name, "no cache of this plan kept anything")


_stores: WeakKeyDictionary[Recorder, Store] = WeakKeyDictionary()
_WAYS_OUT = "raise `budget`, or use store=bf16"


def store_of(recorder: Recorder) -> Store:
    """What stores the values of the plan that reports to ``recorder``: bit for bit where the plan says nothing."""
    return _stores.get(recorder) or Store(Storage())


def _size(tensor: torch.Tensor, short: bool) -> int:
    return tensor.numel() * (2 if short and tensor.dtype in _LONG else tensor.element_size())


def _copied(tensor: torch.Tensor, short: bool, away: bool) -> torch.Tensor:
    changed = tensor.to(torch.bfloat16) if short and tensor.dtype in _LONG else tensor
    if away and not _on_host(tensor):
        return _on_the_host(changed)
    return changed.clone() if changed is tensor else changed


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu"


def _on_the_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in CPU memory, without waiting: what is copied back on the same stream comes after it."""
    pinned = tensor.device.type == "cuda"
    return torch.empty_like(tensor, device="cpu", pin_memory=pinned).copy_(tensor, non_blocking=pinned)

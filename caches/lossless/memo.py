"""A memo: what one module gave for its last inputs. Given the same again, it is handed out again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from accel.caches.lossless.alike import Key, Seen, Untold
from accel.caches.lossless.shapes import form, from_shapes
from accel.report import Recorder
from accel.tensors import Tree, map_tensors, nbytes, tensors

_ENTRIES = 4
"""Inputs that take turns: branches of guidance, or a whole batch and the half that guidance caching computes."""
_PATIENCE = 4
"""Other inputs in a row after which a memo gives up for this run."""

_CHANGES = "its input is another one at every call"
_UNTOLD = "its input cannot be compared (torch.inference_mode counts no writes: use torch.no_grad)"
_TRAINING = "the module is in training mode: call eval() on it"


class Account:
    """Bytes that all memos of a technique may keep together, and what the report says of them."""

    def __init__(self, technique: str, recorder: Recorder, limit: int):
        self.technique, self.recorder, self.limit = technique, recorder, limit
        self.held = 0

    def take(self, size: int) -> bool:
        """Ask for ``size`` bytes; answers whether they fit."""
        if self.held + size > self.limit:
            self.decline(f"more than {self.limit >> 20} MiB would be kept: raise `budget`")
            return False
        self.held += size
        self.recorder.cached(size)
        return True

    def give(self, size: int) -> None:
        """Give ``size`` bytes back."""
        self.held -= size
        self.recorder.cached(-size)

    def decline(self, reason: str) -> None:
        """A memo gives up."""
        self.recorder.decline(self.technique, reason)


@dataclass(frozen=True, eq=False)
class _Entry:
    key: Key
    output: Tree
    seen: list[Seen]
    size: int

    @property
    def intact(self) -> bool:
        """Has nobody written to what was handed out?"""
        return all(seen.untouched for seen in self.seen)


class Memo:
    """The last outputs of one module in one run, by input.

    ``by_bits``: inputs in other memory are compared bit by bit. On a GPU that waits for the device, which is worth it
    once in a call, not at every block.
    """

    site = ""
    """Name of the place it stands at, for the report."""

    def __init__(self, account: Account, by_bits: bool):
        self.account, self.by_bits = account, by_bits
        self.entries: list[_Entry] = []
        self.misses = 0
        self.idle = False
        """Gave up for this run: its module runs as if it had no memo."""

    def answer(self, module: torch.nn.Module, forward: Any, args: Any, kwargs: Any) -> Tree:
        """The output of ``module``, remembered or computed."""
        if module.training:  # dropout
            self._give_up(_TRAINING)
            return forward(*args, **kwargs)
        try:
            key = self.key(args, kwargs)
        except Untold:
            self._give_up(_UNTOLD)
            return forward(*args, **kwargs)
        entry = self._recall(key)
        self.account.recorder.cell(self.account.technique, predicted=entry is not None, site=self.site)
        if entry is not None:
            return _in_new_containers(entry.output)
        output = self.compute(forward, args, kwargs)
        if key.untouched:
            self._keep(args, kwargs, output)
        else:
            self._give_up("it writes to its input")
        return output

    def key(self, args: Any, kwargs: Any) -> Key:
        """What its inputs are told apart by."""
        return Key.of(args, kwargs)

    def compute(self, forward: Any, args: Any, kwargs: Any) -> Tree:
        """Run the module."""
        return forward(*args, **kwargs)

    def clear(self) -> None:
        """Forget and free everything; what gave up tries again."""
        while self.entries:
            self._drop(self.entries[0])
        self.misses, self.idle = 0, False

    def _recall(self, key: Key) -> _Entry | None:
        for entry in reversed(self.entries):
            if entry.key.same(key, self.by_bits):
                if entry.intact:
                    self.misses = 0
                    return entry
                self._drop(entry)
                return None
        return None

    def _keep(self, args: Any, kwargs: Any, output: Tree) -> None:
        self.misses += 1
        if self.misses > _PATIENCE:
            return self._give_up(_CHANGES)
        try:
            key, seen = self.key(args, kwargs), [Seen.now(t) for t in tensors(output)]
        except Untold:
            return self._give_up(_UNTOLD)
        if any(t.requires_grad for t in tensors(output)) or _shares(key, output):
            return self._give_up("its output cannot be handed out twice")
        size = nbytes(output) + (nbytes(key.tensors) if self.by_bits else 0)  # others live in the pipeline, or a memo
        if not self.account.take(size):
            return self._give_up()
        self.entries.append(_Entry(key, _in_new_containers(output), seen, size))
        if len(self.entries) > _ENTRIES:
            self._drop(self.entries[0])

    def _drop(self, entry: _Entry) -> None:
        self.entries.remove(entry)
        self.account.give(entry.size)

    def _give_up(self, reason: str | None = None) -> None:
        self.clear()
        self.idle = True
        if reason is not None:
            self.account.decline(reason)


class Table(Memo):
    """The memo of a position table. One that is made from shapes alone is kept for that shape, whatever the values."""

    def __init__(self, account: Account):
        super().__init__(account, by_bits=True)
        self.looks = False
        """Does it look at values?"""

    def key(self, args: Any, kwargs: Any) -> Key:
        return Key.of(args, kwargs) if self.looks else Key.of(args, kwargs, form)

    def compute(self, forward: Any, args: Any, kwargs: Any) -> Tree:
        if not self.looks:
            try:
                return from_shapes(forward, args, kwargs)
            except Exception:  # `Looked`, or an error that will come again below, or that only shadows cause
                self.looks = True
        return forward(*args, **kwargs)


def _in_new_containers(output: Tree) -> Tree:
    """The same tensors: whoever is given a list may change it."""
    return map_tensors(lambda tensor: tensor, output)


def _shares(key: Key, output: Tree) -> bool:
    """Is some output the memory of an input?"""
    inputs = {t.untyped_storage().data_ptr() for t in key.tensors}
    return any(t.untyped_storage().data_ptr() in inputs for t in tensors(output))

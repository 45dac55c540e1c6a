"""Puts a memo on every place of a pipeline's networks, and lets them answer in the calls of that pipeline's runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from diffusers.hooks import ModelHook
from torch import nn

from accel.adapters import Adapters, State
from accel.caches.lossless.memo import Account, Memo, Table
from accel.caches.lossless.places import Network, Part, Place
from accel.calls import Call, Proceed
from accel.clock import Clock
from accel.hooks import install
from accel.report import Recorder
from accel.runs import Run, calling_pipeline
from accel.technique import Detach
from accel.tensors import Tree

_SWITCHED = "an adapter was switched or scaled"


class Reuse:
    """The memos of one technique on one pipeline. What they keep belongs to one run."""

    def __init__(
        self, technique: str, networks: Sequence[Network], parts: Sequence[Part], account: Account, clock: Clock
    ):
        self.technique, self.account, self.clock = technique, account, clock
        self.recorder: Recorder = account.recorder
        self.networks, self.parts = networks, parts
        self.memos: dict[str, list[Memo]] = {network.name: [] for network in networks}
        self.acting = False
        """Is a call of a network going on that belongs to a run of this pipeline?"""
        self.left: set[str] = set()
        """Networks that are left as they are in this run."""
        self.adapters = Adapters()
        self.states: dict[str, State] = {}

    def attach(self) -> Detach:
        """Hook every place and listen to the clock; returns what undoes it."""
        with ExitStack() as undo:
            undo.callback(self._end)
            for network in self.networks:
                if network.compiled:
                    continue
                for place in network.places(self.parts):
                    undo.callback(install(place.module, MemoHook(self, self._memo(network, place)), self.technique))
                if network.steers:
                    undo.callback(install(network.module, _SteeringHook(self, network), f"{self.technique}.network"))
            undo.callback(self.clock.subscribe(self._begin, self._end, self._around))
            if count := sum(map(len, self.memos.values())):
                self.recorder.matched(self.technique, count)
            return undo.pop_all().close

    def _memo(self, network: Network, place: Place) -> Memo:
        memo = Table(self.account) if place.how == "table" else Memo(self.account, by_bits=place.how == "bits")
        memo.site = place.name
        self.memos[network.name].append(memo)
        return memo

    def _begin(self, run: Run) -> None:
        for network in self.networks:
            if network.compiled:  # perhaps only since the plan was attached
                self.account.decline(f"{network.name} is compiled, and remembering inside it would break its graph")
                self.left.add(network.name)

    def _end(self) -> None:
        for memos in self.memos.values():
            for memo in memos:
                memo.clear()
        self.acting, self.left, self.adapters, self.states = False, set(), Adapters(), {}

    # --- a call of a network -----------------------------------------------------------------------------------

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        with self._within(call.denoiser.name, call.adapters):
            return proceed(*args, **kwargs)

    def around_steering(
        self, network: Network, forward: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tree:
        """A ControlNet is called between the denoiser's calls: whose call it is must be asked for it apart."""
        if self.clock.run is None or calling_pipeline() not in (None, self.clock.target.pipe):
            return forward(*args, **kwargs)
        with self._within(network.name, self.adapters.state(network.module)):
            return forward(*args, **kwargs)

    @contextmanager
    def _within(self, name: str, adapters: State) -> Iterator[None]:
        """While in this context the memos answer. An adapter changes what modules give for the same input."""
        if self.states.setdefault(name, adapters) != adapters:
            self.states[name] = adapters
            self.recorder.decline(self.technique, _SWITCHED)
            for memo in self.memos.get(name, ()):
                memo.clear()
        outer, self.acting = self.acting, name not in self.left
        try:
            yield
        finally:
            self.acting = outer


class MemoHook(ModelHook):
    """Lets a memo answer for its module."""

    def __init__(self, reuse: Reuse, memo: Memo):
        super().__init__()
        self.reuse, self.memo = reuse, memo

    def new_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tree:
        forward = self.fn_ref.original_forward
        if not self.reuse.acting or self.memo.idle:
            return forward(*args, **kwargs)
        return self.memo.answer(module, forward, args, kwargs)


class _SteeringHook(ModelHook):
    def __init__(self, reuse: Reuse, network: Network):
        super().__init__()
        self.reuse, self.network = reuse, network

    def new_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tree:
        return self.reuse.around_steering(self.network, self.fn_ref.original_forward, args, kwargs)

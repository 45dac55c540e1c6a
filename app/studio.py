"""The models that the server holds, and whose turn it is to use them. Importing this loads no model and no torch."""

from __future__ import annotations

import copy
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from accel import console, tiny
from accel.app.limits import Limits
from accel.app.streaming import Runs, Tell, streamed
from accel.errors import AccelError

if TYPE_CHECKING:
    from accel.app.running import PlainRuns
    from accel.plan import Plan

T = TypeVar("T")

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_MOST_LOADED = 2
_WARM_UP_STEPS = 2
_PATIENCE = 0.2
"""Seconds between two looks whether a visitor who waits for their turn has given up."""

_UNVISITED = 5.0
"""Seconds until the default model is loaded also where nobody has opened the page."""


@dataclass(frozen=True)
class Waiting:
    """An event: another run has its turn, or the model is being loaded."""

    why: str


@dataclass(frozen=True)
class Model:
    """A loaded pipeline."""

    name: str
    pipe: Any
    """Used by whoever has the turn."""
    twin: Any
    """A second pipeline object over the same parts, to which no plan is ever attached: to check plans on."""
    kept: PlainRuns

    @property
    def bundled(self) -> bool:
        """Whether the reader knows what it draws."""
        return self.name in tiny.names()


class Studio:
    """Holds the models and lets one run at a time use them.

    Args:
        models: What the owner offers: bundled names, folders, hub ids. The first is the default.
        allow_hub: Whether visitors may name further hub ids.
        device: For example ``"cpu"``; ``"auto"`` takes a GPU where there is one.
        dtype: ``"float32"``, ``"bfloat16"`` or ``"float16"``.
    """

    def __init__(
        self,
        models: Sequence[str] = ("tiny",),
        limits: Limits = Limits(),
        allow_hub: bool = False,
        device: str = "auto",
        dtype: str = "float32",
    ) -> None:
        self.models, self.limits, self.allow_hub = tuple(models), limits, allow_hub
        self.device, self.dtype = device, dtype
        self.runs = Runs()
        self.visited = threading.Event()
        """A page has been shown: importing torch beside it would have held it up."""
        self._loaded: OrderedDict[str, Model] = OrderedDict()
        self._loading, self._turn = threading.Lock(), threading.Lock()

    def model(self, name: str) -> Model:
        """The model of that name, loaded where it is not yet; raises `AccelError` for one that is not offered."""
        self.check_offered(name)
        with self._loading:
            if name not in self._loaded:
                self._loaded[name] = self._load(name)
                while len(self._loaded) > _MOST_LOADED:
                    self._loaded.popitem(last=False)
            self._loaded.move_to_end(name)
            return self._loaded[name]

    def check_offered(self, name: str) -> None:
        """Raise `AccelError` unless the owner offers this model, or allows hub ids and it is one and no folder."""
        if name in self.models:
            return
        offered = ", ".join(self.models)
        if not self.allow_hub:
            raise AccelError(f"this server offers {offered}: its owner can offer others with --model and --allow-hub")
        if not isinstance(name, str) or not _HUB_ID.fullmatch(name) or ".." in name or Path(name).exists():
            raise AccelError(f"{name!r} is no hub id: write it like owner/name, or use {offered}")

    def is_loaded(self, name: str) -> bool:
        """Whether the first run with this model does not have to load it."""
        return name in self._loaded

    def load_in_background(self) -> threading.Thread:
        """Load the default model in a thread, once the page is there or nobody has come for a while."""
        thread = threading.Thread(target=self._load_when_visited, daemon=True)
        thread.start()
        return thread

    def _load_when_visited(self) -> None:
        self.visited.wait(_UNVISITED)
        try:
            self.model(self.models[0])
        except AccelError as error:
            console.say("error", error)  # the first visitor who asks for it is told as well

    def _load(self, name: str) -> Model:
        from accel.app.running import PlainRuns
        from accel.commands.drawing import Request, draw, open_pipeline, small_size

        with console.quiet_libraries():
            pipe = open_pipeline(name, self.device, self.dtype)
            pipe.set_progress_bar_config(disable=True)
            twin = copy.copy(pipe)
            draw(pipe, Request("a red star", _WARM_UP_STEPS, size=small_size(pipe)))  # the first run is slow anywhere
            pipe.set_progress_bar_config(disable=True)
        return Model(name, pipe, twin, PlainRuns())

    def run(self, visitor: str, model: str, work: Callable[[Model, Tell], T]) -> Iterator[Any]:
        """Wait for the turn, then run ``work(model, tell)``; yields what it tells, and at last what it returns."""

        def in_turn(tell: Tell) -> T:
            while not self._turn.acquire(timeout=_PATIENCE):
                tell(Waiting("another run is going on"))
            try:
                if not self.is_loaded(model):
                    tell(Waiting(f"loading {model}"))
                return work(self.model(model), tell)
            finally:
                self._turn.release()

        def ended(tell: Tell) -> T:
            try:
                return in_turn(tell)
            finally:
                self.runs.end(visitor, stop)

        self.check_offered(model)
        stop = self.runs.begin(visitor)
        yield from streamed(ended, stop)

    def problems(self, model: str, plan: Plan) -> list[str]:
        """Why the plan would be refused on this model; empty when it fits. Runs nothing and waits for nobody."""
        import accel

        return accel.check(self.model(model).twin, plan)

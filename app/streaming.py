"""Work in a thread whose events come out as an iterator, and that stops when it is told to."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

Tell = Callable[[Any], None]
"""Hands an event to whoever watches (``None`` to nobody); raises `Stopped` once the work is not wanted any more."""


class Stopped(Exception):
    """The visitor stopped the run. Raised inside of the pipeline, which ends its run on the way out."""


@dataclass(frozen=True)
class _End:
    value: Any = None
    error: BaseException | None = None


def streamed(work: Callable[[Tell], Any], stop: threading.Event) -> Iterator[Any]:
    """Run ``work(tell)`` in a thread; yields each told event, at last what the work returned, or raises its error.

    Setting ``stop``, or closing the iterator, makes the next ``tell`` raise `Stopped` inside of the work. When the
    iterator has ended, so has the thread.
    """
    events: queue.Queue[Any] = queue.Queue()

    def tell(event: Any) -> None:
        if stop.is_set():
            raise Stopped
        if event is not None:
            events.put(event)

    def body() -> None:
        try:
            events.put(_End(work(tell)))
        except BaseException as error:  # handed to the thread that watches
            events.put(_End(error=error))

    thread = threading.Thread(target=body, daemon=True)
    thread.start()
    try:
        while not isinstance(event := events.get(), _End):
            yield event
        if event.error is not None:
            raise event.error
        yield event.value
    finally:
        stop.set()
        thread.join()


class Runs:
    """Which visitor's runs are going on, so that a visitor stops their own and nobody else's."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stops: dict[str, set[threading.Event]] = {}

    def begin(self, visitor: str) -> threading.Event:
        """A run of this visitor begins; the event stops it."""
        stop = threading.Event()
        with self._changed:
            self._stops.setdefault(visitor, set()).add(stop)
        return stop

    def end(self, visitor: str, stop: threading.Event) -> None:
        """The run of that event is over."""
        with self._changed:
            self._stops[visitor].discard(stop)
            if not self._stops[visitor]:
                del self._stops[visitor]
            self._changed.notify_all()

    def going(self, visitor: str) -> bool:
        """Whether a run of this visitor is not over yet."""
        return visitor in self._stops

    def stop(self, visitor: str, patience: float = 0.0) -> int:
        """Stop all runs of this visitor, and wait ``patience`` seconds for their end; returns how many there were."""
        with self._changed:
            stops = [*self._stops.get(visitor, ())]
            for each in stops:
                each.set()
            self._changed.wait_for(lambda: not self.going(visitor), timeout=patience)
        return len(stops)

"""Listening to a method of *one* object, without touching its class.

A tap replaces an instance attribute by a callable that calls the original and then tells its listeners. Several
listeners share one tap, in any order of arrival and departure; the last to leave restores the object exactly.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

Listener = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
"""Called after the tapped method with its positional arguments, keyword arguments and result."""


class Tap:
    """The callable that stands in for ``owner.name`` while somebody listens."""

    def __init__(self, owner: Any, name: str):
        self.owner, self.name = owner, name
        self.shadowed = vars(owner).get(name)
        self.original: Callable[..., Any] = getattr(owner, name)
        self.listeners: list[Listener] = []
        self.__wrapped__ = self.original  # diffusers inspects the signature of `set_timesteps`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self.original(*args, **kwargs)
        for listener in tuple(self.listeners):
            listener(args, kwargs, result)
        return result

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copied owner gets its own plain method: pipelines deep-copy schedulers and drive the copies apart.

        Where only the owner's ``__dict__`` is copied (to be restored later) the tap belongs to the same owner still.
        """
        owner = memo.get(id(self.owner))
        return self if owner is None else types.MethodType(getattr(type(owner), self.name), owner)


def listen(owner: Any, name: str, listener: Listener) -> Callable[[], None]:
    """Call ``listener`` after every ``owner.name(...)``; returns the function that stops it."""
    tap = vars(owner).get(name)
    if not isinstance(tap, Tap):
        tap = Tap(owner, name)
        setattr(owner, name, tap)
    tap.listeners.append(listener)

    def stop() -> None:
        tap.listeners.remove(listener)
        if not tap.listeners and vars(owner).get(name) is tap:
            _restore(tap)

    return stop


def _restore(tap: Tap) -> None:
    if tap.shadowed is None:
        delattr(tap.owner, tap.name)
    else:
        setattr(tap.owner, tap.name, tap.shadowed)

"""Listening to a method of *one* object, and standing around it, without touching its class.

A tap replaces an instance attribute by a callable that calls the original, through whatever stands around it, and then
tells its listeners. All of them share one tap, in any order of arrival and departure; the last to leave restores the
object exactly.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

Listener = Callable[[tuple[Any, ...], dict[str, Any], Any], None]
"""Called after the tapped method with its positional arguments, keyword arguments and result."""

Guard = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Called instead of the tapped method: ``guard(proceed, args, kwargs)`` returns what ``proceed`` would."""


class Tap:
    """The callable that stands in for ``owner.name`` while somebody listens."""

    def __init__(self, owner: Any, name: str):
        self.owner, self.name = owner, name
        self.shadowed = vars(owner).get(name)
        self.original: Callable[..., Any] = getattr(owner, name)
        self.listeners: list[Listener] = []
        self.guards: list[Guard] = []
        self.__wrapped__ = self.original  # diffusers inspects the signature of `set_timesteps`

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._guarded(tuple(self.guards))(*args, **kwargs)
        for listener in tuple(self.listeners):
            listener(args, kwargs, result)
        return result

    def _guarded(self, guards: tuple[Guard, ...]) -> Callable[..., Any]:
        """The original with the guards around it, the newest outermost."""
        if not guards:
            return self.original
        inner = self._guarded(guards[:-1])
        return lambda *args, **kwargs: guards[-1](inner, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """A copied owner gets its own plain method: pipelines deep-copy schedulers and drive the copies apart.

        Where only the owner's ``__dict__`` is copied (to be restored later) the tap belongs to the same owner still.
        """
        owner = memo.get(id(self.owner))
        return self if owner is None else types.MethodType(getattr(type(owner), self.name), owner)


def listen(owner: Any, name: str, listener: Listener) -> Callable[[], None]:
    """Call ``listener`` after every ``owner.name(...)``; returns the function that stops it."""
    return _join(owner, name, lambda tap: tap.listeners, listener)


def guard(owner: Any, name: str, around: Guard) -> Callable[[], None]:
    """Call ``around`` instead of ``owner.name(...)``; returns the function that stops it."""
    return _join(owner, name, lambda tap: tap.guards, around)


def _join(owner: Any, name: str, members: Callable[[Tap], list[Any]], member: Any) -> Callable[[], None]:
    tap = vars(owner).get(name)
    if not isinstance(tap, Tap):
        tap = Tap(owner, name)
        setattr(owner, name, tap)
    members(tap).append(member)

    def leave() -> None:
        members(tap).remove(member)
        if not tap.listeners and not tap.guards and vars(owner).get(name) is tap:
            _restore(tap)

    return leave


def _restore(tap: Tap) -> None:
    if tap.shadowed is None:
        delattr(tap.owner, tap.name)
    else:
        setattr(tap.owner, tap.name, tap.shadowed)

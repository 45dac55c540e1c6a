"""diffusers' own cache hooks, taken off a denoiser again before they can act.

``enable_cache`` installs hooks on the modules of a denoiser. What it would install is lifted off at once, by looking at
what was added: nothing here knows a cache, a model or a version of diffusers by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from diffusers.hooks.hooks import CacheContext, StateManager
from torch import nn

from accel.calls import Proceed
from accel.tensors import Tree, tensors


@dataclass
class Lifted:
    """One of diffusers' hooks and the module it is meant for."""

    path: str
    """Of the module in the denoiser; empty for the denoiser itself."""
    module: nn.Module
    hook: Any
    states: dict[str, Any] = field(default_factory=dict)
    """By branch, of a hook that has a single state and would hand the values of one branch to the other."""

    def enter(self, branch: str) -> None:
        """Give a hook that has a single state the one of this branch."""
        if hasattr(self.hook, "state"):
            self.hook.state = self.states.setdefault(branch, type(self.hook.state)())

    def reset(self) -> None:
        """Forget everything."""
        self.states.clear()
        if self.hook._is_stateful:
            self.hook.reset_state(self.module)

    def around(self, forward: Proceed) -> Proceed:
        """``forward`` with the hook around it, as diffusers' registry would put it."""

        def hooked(*args: Any, **kwargs: Any) -> Tree:
            hook, module = self.hook, self.module
            hook.fn_ref = SimpleNamespace(original_forward=forward)
            args, kwargs = hook.pre_forward(module, *args, **kwargs)
            inner = hook.new_forward if hasattr(hook, "new_forward") else lambda _, *a, **k: forward(*a, **k)
            output = inner(module, *args, **kwargs)
            hook.fn_ref = None
            return hook.post_forward(module, output)

        return hooked


def lift(denoiser: nn.Module, config: Any) -> list[Lifted]:
    """The hooks that ``denoiser.enable_cache(config)`` installs; the denoiser is left as it was.

    Raises whatever enabling raises, after taking off what it had installed by then.
    """
    before = [(path, module, dict(vars(module)), _hooks(module)) for path, module in denoiser.named_modules()]
    with _restored(before):
        denoiser.enable_cache(config)  # type: ignore[operator]
        return [
            Lifted(path, module, module._diffusers_hook.hooks[name])
            for path, module, _, hooks in before
            for name in _hooks(module)[len(hooks) :]
        ]


@contextmanager
def _restored(before: Sequence[tuple[str, nn.Module, dict[str, Any], list[str]]]) -> Iterator[None]:
    """Undo what enabling a cache did to these modules, once it is left."""
    try:
        yield
    finally:
        for _, module, own, hooks in before:
            for name in reversed(_hooks(module)[len(hooks) :]):
                module._diffusers_hook.remove_hook(name, recurse=False)  # type: ignore[union-attr, operator]
            for attribute in ("forward", "_diffusers_hook", "_cache_config"):
                vars(module).pop(attribute, None)
                vars(module).update({attribute: own[attribute]} if attribute in own else {})


def _hooks(module: nn.Module) -> list[str]:
    """The names of diffusers' hooks on ``module``, innermost first."""
    registry: Any = vars(module).get("_diffusers_hook")
    return [] if registry is None else list(registry._hook_order)


def tell(hooks: Sequence[Lifted], context: CacheContext | None) -> None:
    """Say which branch and step the next call is, in place of what the pipeline may or may not say."""
    for manager in _managers(hooks):
        manager.set_context(context)


def held(hooks: Sequence[Lifted]) -> int:
    """Bytes of memory behind the tensors that ``hooks`` keep; a storage that several share counts once, and whole."""
    storages = [tensor.untyped_storage() for state in _states(hooks) for tensor in tensors(vars(state))]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _states(hooks: Sequence[Lifted]) -> Iterable[Any]:
    for each in hooks:
        yield from each.states.values()
    for manager in _managers(hooks):
        yield from manager._state_cache.values()


def _managers(hooks: Sequence[Lifted]) -> list[StateManager]:
    """Where hooks keep a state for every context; several hooks share one."""
    values = (value for each in hooks for value in vars(each.hook).values())
    return list({id(value): value for value in values if isinstance(value, StateManager)}.values())

"""Installing diffusers hooks on module *instances* so that removing them leaves no trace.

`HookRegistry` puts the old ``forward`` back as an instance attribute and keeps itself on the module. A leftover bound
``forward`` is harmful (a deep copy of the module would run the original's weights), so what was not there before goes.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

from diffusers.hooks import HookRegistry, ModelHook
from torch import nn
from torch._dynamo import trace_rules

_serial = itertools.count()
_PREFIX = "accel."
_FOUND = "_accel_found"  # on the registry: (was there one before?, was `forward` an instance attribute before?)


def install(module: nn.Module, hook: ModelHook, label: str) -> Callable[[], None]:
    """Register ``hook`` as the outermost hook of ``module``; returns the function that removes it again."""
    _leave_untraced(type(hook).__module__.rpartition(".")[0])
    name = f"{_PREFIX}{label}.{next(_serial)}"
    with _beneath_offloading(module):
        had = hasattr(module, "_diffusers_hook"), "forward" in vars(module)
        registry = HookRegistry.check_if_exists_or_initialize(module)
        if not registry.hooks:
            setattr(registry, _FOUND, had)
        registry.register_hook(hook, name)

    def remove() -> None:
        with _beneath_offloading(module):
            _unlink(registry, name)
            if not registry.hooks:
                _sweep(module, registry)

    return remove


def labels(module: nn.Module) -> list[str]:
    """The labels of the toolkit's own hooks on ``module``, innermost first."""
    registry = getattr(module, "_diffusers_hook", None)
    names = registry.hooks if registry is not None else ()
    return [name.removeprefix(_PREFIX).rpartition(".")[0] for name in names if name.startswith(_PREFIX)]


def _unlink(registry: HookRegistry, name: str) -> None:
    """`HookRegistry.remove_hook`, which forgets the ``new_forward`` of the hook just above the one it removes."""
    above = registry._fn_refs[registry._hook_order.index(name) + 1 :][:1]
    below = registry.hooks[name].fn_ref.original_forward
    kept = [(ref, ref.forward) for ref in above if ref.original_forward is not None]
    registry.remove_hook(name, recurse=False)
    for ref, forward in kept:
        ref.forward, ref.original_forward = forward, below


def _sweep(module: nn.Module, registry: HookRegistry) -> None:
    had_registry, had_forward = getattr(registry, _FOUND, (True, True))
    forward = vars(module).get("forward")
    restored = inspect.ismethod(forward) and forward.__func__ is type(module).forward and forward.__self__ is module
    if restored and not had_forward:
        del module.forward
    if had_registry:
        vars(registry).pop(_FOUND, None)
    else:
        del module._diffusers_hook


@cache
def _leave_untraced(package: str) -> None:
    """Keep `torch.compile` out of the package's own functions, which differ from step to step.

    The networks that they call are compiled as before. Marking a function as disabled keeps out of that function only,
    not out of those it calls, unless it keeps out of the networks as well.
    """
    if (add := getattr(trace_rules, "add", None)) is not None:  # not a public function of torch
        add(package)


@contextmanager
def _beneath_offloading(module: nn.Module) -> Iterator[None]:
    """Work below accelerate's wrapper: offloading takes it off after every run, along with all that stands above it."""
    own = vars(module)
    outer = own.get("forward") if "_old_forward" in own else None
    if outer is None:
        yield
        return
    own["forward"] = own["_old_forward"]
    try:
        yield
    finally:
        own["_old_forward"], own["forward"] = module.forward, outer

"""Installing diffusers hooks on module *instances* so that removing them leaves no trace.

`HookRegistry` puts the old ``forward`` back as an instance attribute and keeps itself on the module. A leftover bound
``forward`` is harmful (a deep copy of the module would run the original's weights), so both go when nothing needs them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

from diffusers.hooks import HookRegistry, ModelHook
from torch import nn

_serial = itertools.count()


def install(module: nn.Module, hook: ModelHook, label: str) -> Callable[[], None]:
    """Register ``hook`` as the outermost hook of ``module``; returns the function that removes it again."""
    name = f"accel.{label}.{next(_serial)}"
    registry = HookRegistry.check_if_exists_or_initialize(module)
    registry.register_hook(hook, name)

    def remove() -> None:
        registry.remove_hook(name, recurse=False)
        if not registry.hooks:
            _sweep(module)

    return remove


def _sweep(module: nn.Module) -> None:
    forward = vars(module).get("forward")
    if getattr(forward, "__func__", None) is type(module).forward and forward.__self__ is module:
        del module.forward
    del module._diffusers_hook

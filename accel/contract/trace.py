"""Everything that attaching could leave behind, as one comparable value."""

from __future__ import annotations

from typing import Any

from torch import nn

from accel.hooks import labels

Trace = dict[str, Any]
"""What is looked at → what was found there."""


class _Identity:
    """Equal only to itself: the object must be the same one."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Identity) and self.thing is other.thing

    __hash__ = None  # type: ignore[assignment]


def trace(pipe: Any) -> Trace:
    """What is on ``pipe``, its components, their submodules and all their classes."""
    found = _attributes(type(pipe).__name__, pipe) | _class_attributes(type(pipe))
    for name, component in pipe.components.items():
        if isinstance(component, nn.Module):
            found |= _module_trace(name, component)
        elif hasattr(component, "set_timesteps"):
            found |= _attributes(name, component) | _class_attributes(type(component))
    return found


def differences(before: Trace, after: Trace) -> list[str]:
    """The places that were added, lost or changed, sorted."""
    added = [f"{place} was added" for place in after.keys() - before.keys()]
    lost = [f"{place} is gone" for place in before.keys() - after.keys()]
    return sorted([*added, *lost, *(f"{p} changed" for p in before.keys() & after.keys() if before[p] != after[p])])


def _attributes(name: str, thing: Any) -> Trace:
    """Instance attributes; of those that can be called, which object it is."""
    return {
        f"{name}.{key}": _Identity(value) if callable(value) and not isinstance(value, nn.Module) else True
        for key, value in vars(thing).items()
    }


def _module_trace(name: str, root: nn.Module) -> Trace:
    found: Trace = {f"state_dict of {name}": tuple(root.state_dict())}
    for path, module in root.named_modules():
        where = f"{name}.{path}" if path else name
        hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
        found |= _attributes(where, module) | _class_attributes(type(module))
        found[f"hooks of {where}"] = tuple(tuple(h) for h in hooks)
        found[f"class of {where}"] = _Identity(type(module))
        found[f"labels of {where}"] = tuple(labels(module))
    return found


def _class_attributes(cls: type) -> Trace:
    return {
        f"class {parent.__qualname__}.{key}": _Identity(value)
        for parent in cls.__mro__[:-1]
        for key, value in vars(parent).items()
        if key != "__slotnames__"  # Python's own note, from the first deep copy of an object of the class
    }

"""What the adapters in a denoiser now do: switched in the middle of a run, they change what its blocks compute."""

from __future__ import annotations

from typing import Any

from torch import nn

State = tuple[Any, ...]
"""Compares equal as long as no adapter was loaded, removed, switched, merged or scaled; empty without adapters."""


class Adapters:
    """What the adapters of one run's denoisers do; their modules are searched again only when others were loaded."""

    def __init__(self) -> None:
        self._found: dict[nn.Module, tuple[list[Any], list[nn.Module]]] = {}

    def state(self, denoiser: nn.Module) -> State:
        """LoRA and its kin (PEFT), and the scales of IP-Adapters."""
        loaded = _loaded(denoiser)
        known, modules = self._found.get(denoiser, ([], []))
        if list(map(id, loaded)) != list(map(id, known)):
            modules = [module for module in denoiser.modules() if _is_adapter(module)]
            self._found[denoiser] = loaded, modules
        return tuple(map(_state, modules))


def _loaded(denoiser: nn.Module) -> list[Any]:
    """An object for each loaded adapter, another one whenever it is loaded again."""
    image = (getattr(denoiser, name, None) for name in ("encoder_hid_proj", "image_proj"))
    return [*getattr(denoiser, "peft_config", {}).values(), *(part for part in image if part is not None)]


def _is_adapter(module: nn.Module) -> bool:
    return hasattr(module, "merged_adapters") or isinstance(getattr(module, "scale", None), list)


def _state(module: Any) -> State:
    if not hasattr(module, "merged_adapters"):
        return tuple(module.scale)  # an IP-Adapter's attention processor
    switches = module.disable_adapters, tuple(module.active_adapters), tuple(module.merged_adapters)
    return (*switches, tuple(getattr(module, "scaling", {}).items()))

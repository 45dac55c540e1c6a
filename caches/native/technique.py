"""diffusers' own caches, where they are sound.

They are diffusers' code with diffusers' settings. What differs is who tells them where in a run they are: see
`accel.caches.native.driver`. What no telling mends is refused by structure, or declined in the run, with the reason.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from diffusers.hooks import (
    FasterCacheConfig,
    FirstBlockCacheConfig,
    MagCacheConfig,
    PyramidAttentionBroadcastConfig,
    SeaCacheConfig,
    TaylorSeerCacheConfig,
)
from diffusers.models.cache_utils import CacheMixin

from accel import registry
from accel.caches.native.driver import Driver
from accel.caches.native.lifting import Lifted, lift
from accel.caches.native.rules import misfit
from accel.calls import Call
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.target import Denoiser, Target
from accel.technique import Claim, Detach, Technique

_CONFIGS: dict[str, type] = {
    "first_block": FirstBlockCacheConfig,
    "mag": MagCacheConfig,
    "taylor": TaylorSeerCacheConfig,
    "pab": PyramidAttentionBroadcastConfig,
    "faster": FasterCacheConfig,
    "sea": SeaCacheConfig,
}

_FROM_THE_RUN = {"num_inference_steps", "current_timestep_callback"}

_ALTERNATIVES = ("deepcache", "tgate", "guidance")

Options = Mapping[str, Any] | tuple[tuple[str, Any], ...]


@dataclass(frozen=True)
class NativeCache(Technique):
    """One of diffusers' caches on every denoiser: ``kind`` says which, ``options`` are the fields of its config.

    - ``first_block`` leaves out all blocks but the first while that one's residual changes little;
    - ``mag`` leaves them out while known ratios of residuals say so (MagCache, arXiv:2506.09045);
    - ``taylor`` extrapolates the outputs of attention, or of all blocks (TaylorSeer, arXiv:2503.06923);
    - ``pab`` reuses the outputs of attention (Pyramid Attention Broadcast, arXiv:2408.12588);
    - ``faster`` extrapolates those, and the unconditional half of a batch (FasterCache, arXiv:2410.19355);
    - ``sea`` leaves out the blocks while the filtered latents change little (SeaCache, arXiv:2602.18993).
    """

    name: ClassVar[str] = "native"
    summary: ClassVar[str] = "diffusers' own caches (first_block, mag, taylor, pab, faster, sea), where they are sound"
    source: ClassVar[str] = "diffusers.hooks"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"kind": ("first_block", "taylor", "pab")}

    kind: str = "first_block"
    """Which cache."""
    options: Options = ()
    """Fields of the cache's config by name, JSON-ready: data types by name, no functions. What a run tells
    (``num_inference_steps``, ``current_timestep_callback``) is not among them."""

    def __post_init__(self) -> None:
        if self.kind not in _CONFIGS:
            raise AccelError(f"native: kind is one of {', '.join(_CONFIGS)}, not {self.kind!r}")
        try:
            options = dict(self.options)
        except (TypeError, ValueError):
            raise AccelError(f"native: options are names with values, not {self.options!r}") from None
        self._check(options)
        frozen = tuple(sorted((key, _frozen(value)) for key, value in options.items()))
        object.__setattr__(self, "options", frozen)
        try:
            self.config()
        except (TypeError, ValueError) as error:
            raise AccelError(f"native: {self.kind} does not take these options: {_line(error)}") from None

    def _check(self, options: dict[str, Any]) -> None:
        fields = {field.name: field for field in dataclasses.fields(_CONFIGS[self.kind])}
        takes = [name for name in fields if not name.startswith("_") and not name.endswith("_callback")]
        takes = [name for name in takes if name not in _FROM_THE_RUN]
        for name, value in options.items():
            if name in _FROM_THE_RUN:
                raise AccelError(f"native: {name} comes from the run, leave it out")
            if name not in takes:
                raise AccelError(f"native: {self.kind} has no option {name}: it has {', '.join(takes)}")
            if not _fits(fields[name].default, value):
                raise AccelError(f"native: {name} is like {fields[name].default!r}, not {value!r}")
        if self.kind == "mag" and not (options.get("mag_ratios") or options.get("calibrate")):
            raise AccelError("native: mag needs mag_ratios, which belong to a model; calibrate=True prints them")

    def config(self, time: Callable[[], float] = float, steps: int = 28) -> Any:
        """diffusers' config for a run of ``steps`` steps whose timestep ``time()`` tells."""
        options = dict(self.options)
        if self.kind == "mag":
            options["num_inference_steps"] = steps
        if self.kind in ("pab", "faster"):
            options["current_timestep_callback"] = time
        if self.kind == "pab" and not any("block_skip_range" in name for name in options):
            options["spatial_attention_block_skip_range"] = 2  # diffusers' choice, without its warning
        if self.kind == "faster":
            options["attention_weight_callback"] = lambda _: 0.5  # likewise
        if isinstance(options.get("taylor_factors_dtype"), str):
            options["taylor_factors_dtype"] = _dtype(options["taylor_factors_dtype"])
        return _CONFIGS[self.kind](**options)

    def settings(self) -> dict[str, Any]:
        """The settings that differ from the defaults, JSON-ready: the options as an object."""
        changed = super().settings()
        return {**changed, "options": _thawed(dict(self.options))} if self.options else changed

    @property
    def claims(self) -> frozenset[Claim]:
        """It counts the calls of modules, so nothing else may leave some out, or make several of one."""
        outputs: set[Claim] = {"block_outputs", "self_attn_outputs", "cross_attn_outputs"}
        return frozenset[Claim]({"steps", "batch_halves", "memory"}) | outputs

    @property
    def halves(self) -> bool:
        """Does it leave out the unconditional half of a batch?"""
        return self.kind == "faster" and not dict(self.options).get("is_guidance_distilled", False)

    def problems(self, target: Target) -> list[str]:
        found = [(denoiser, self._problem(target, denoiser)) for denoiser in target.denoisers]
        return [
            f"native: {self.kind} on {denoiser.name} ({type(denoiser.module).__name__}): {reason}{_instead(target)}"
            for denoiser, reason in found
            if reason
        ]

    def _problem(self, target: Target, denoiser: Denoiser) -> str | None:
        if not isinstance(denoiser.module, CacheMixin):
            return "it takes none of diffusers' caches"
        if denoiser.module.is_cache_enabled:
            return None  # `accelerate` itself refuses that, with the way out
        try:
            hooks = lift(denoiser.module, self.config())
        except Exception as error:
            return f"diffusers cannot install it ({_line(error)})"
        return misfit(self.kind, self.halves, target, denoiser, hooks)

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        config = self.config(lambda: clock.time)
        lifted = {denoiser.name: lift(denoiser.module, config) for denoiser in target.denoisers}
        return Driver(self, lifted, clock, recorder).attach()

    # --- in a run ----------------------------------------------------------------------------------------------

    def declines(self, call: Call, clock: Clock) -> str | None:
        """Why this call, and the rest of its run, must be computed in full; ``None`` where the cache is sound."""
        if self.kind in ("first_block", "sea") and clock.step and call.batch // (call.lanes or 1) > 1:
            return f"{self.kind} decides for a whole batch, so pictures would depend on each other: draw them singly"
        if self.kind == "sea" and not (clock.run and clock.run.flow):
            return "the solver's sigmas are not shares of noise from 1 to 0, which sea takes them for"
        return self._declines_halving(call, clock) if self.halves else None

    def _declines_halving(self, call: Call, clock: Clock) -> str | None:
        if call.batch % 2 or call.lanes not in (None, 2) or (clock.step and call.cond_first is not False):
            return "the batch is not an unconditional half followed by a conditional one"
        wanted = dict(self.options).get("tensor_format", "BCFHW")
        if [len(shape) for shape, *_ in call.sample] != [len(wanted)]:
            return f"the latents are not {wanted}, which faster filters by their frequencies"
        return None

    def place(self, hooks: Sequence[Lifted], clock: Clock) -> None:
        """MagCache numbers calls, which is wrong with two denoisers, other step counts and after an early end."""
        if self.kind == "mag":
            config = self.config(steps=clock.steps)
            for each in hooks:
                each.hook.config = config
            hooks[0].hook.state_manager.get_state().step_index = clock.step


def _instead(target: Target) -> str:
    fitting = (name for name in _ALTERNATIVES if not registry.find(name)().problems(target))
    name = next(fitting, None)
    return f"; {name} works there" if name else ""


def _fits(default: Any, value: Any) -> bool:
    """Is the value of the default's kind, as JSON has it? A default of ``None`` only tells that it may be ``None``."""
    if default is None:
        return value is None or isinstance(value, (bool, int, float, str, list, tuple))
    if isinstance(default, bool) or isinstance(value, bool):
        return isinstance(default, bool) and isinstance(value, bool)
    if isinstance(default, (int, float)):
        return isinstance(value, (int, float))
    if isinstance(default, torch.dtype):
        return value is None or isinstance(value, str)
    return isinstance(value, (list, tuple)) if isinstance(default, tuple) else isinstance(value, type(default))


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch has no data type {name!r}")
    return dtype


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, (list, tuple)) else value


def _thawed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _thawed(each) for key, each in value.items()}
    return [_thawed(each) for each in value] if isinstance(value, tuple) else value


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__).strip()

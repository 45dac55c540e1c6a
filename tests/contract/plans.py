"""Which settings of which technique the contract is tested with. A new technique joins with one line in ``SETTINGS``.

Every setting predicts something within four solver steps, so that runs can be short.
"""

from __future__ import annotations

from typing import Any

from accel.caches.deepcache import DeepCache
from accel.caches.dynamic.technique import ResidualCache
from accel.caches.fitted import FittedCache
from accel.caches.fora import Fora
from accel.caches.guidance import GuidanceCache
from accel.caches.interval import GuidanceInterval
from accel.caches.lossless.technique import Lossless
from accel.caches.native.technique import NativeCache
from accel.caches.rehash import StepRehash
from accel.caches.slicer import Slicer
from accel.caches.smoothcache import SmoothCache
from accel.caches.storing import Storage
from accel.caches.table import Row
from accel.caches.tgate import TGate
from accel.plan import Plan
from accel.schedulers.converged import Converged
from accel.schedulers.deadline import Deadline
from accel.schedulers.steps import Steps
from accel.technique import Technique

_TAYLOR = {"cache_identifiers": (r".*attn\d?",), "taylor_factors_dtype": "float32"}


def _row(*weights: float) -> Row:
    """For runs of four steps, of which the last is predicted."""
    return Row("1110", "fitted", weights=(weights,))


SETTINGS: dict[str, list[Technique]] = {
    "converged": [Converged(threshold=99.0, warm_up=2, patience=1, tail=1)],
    "deepcache": [DeepCache(warm_up=2), DeepCache(interval=3, warm_up=1, how="reuse")],
    "fitted": [FittedCache(_row(1.5, -0.5), _row(1.2, -0.2)), FittedCache(guidance=_row(1.0))],
    "fora": [Fora(), Fora(interval=3, warm_up=2, how="linear")],
    "guidance": [GuidanceCache(warm_up=2), GuidanceCache(interval=3, warm_up=1, how="zero")],
    "interval": [GuidanceInterval(stop=0.5), GuidanceInterval(start=0.5, stop=0.8)],
    "native": [
        NativeCache(options={"threshold": 9.0}),
        NativeCache("taylor", {**_TAYLOR, "disable_cache_before_step": 2, "cache_interval": 3}),
        NativeCache("pab", {"spatial_attention_timestep_skip_range": (-1, 1001)}),
    ],
    "rehash": [
        StepRehash(warm_up=2),
        StepRehash(warm_up=1, how="reuse"),
        StepRehash(warm_up=2, similarity=-0.5, how="reuse"),  # random networks change a lot from step to step
    ],
    "residual": [  # random networks change a lot from step to step
        ResidualCache(threshold=99.0, warm_up=2),
        ResidualCache(indicator="sea", threshold=99.0, front=0, warm_up=1, how="reuse"),
        ResidualCache(indicator="mag", threshold=99.0, ratios=(1.0, 0.9), warm_up=2, end=0, how="reuse"),
    ],
    "slicer": [Slicer(), Slicer(slices=3)],
    "lossless": [Lossless()],
    "steps": [Steps(3)],
    "smoothcache": [SmoothCache({"attn": "1101", "mlp": "1010"}), SmoothCache({"mlp": "1101"}, how="linear")],
    "tgate": [TGate(gate=2), TGate(gate=3, self_interval=2, warm_up=1), TGate(gate=0.5, cutoff="cond")],
}

APART: dict[str, list[Any]] = {
    "deadline": [Deadline(ms=0.001)],
    "prompt_steps": [],
    "stages": [],
    "storage": [[DeepCache(warm_up=2), Storage()]],
}
"""What needs a clock of its own, a trained predictor or a second model, for which ``tests/schedulers`` has tests, and
what does nothing alone: ``COMBINATIONS`` and ``tests/test_storage.py`` have that."""

IDLE: dict[str, Technique] = {
    "converged": Converged(threshold=0.0),
    "deepcache": DeepCache(warm_up=99),
    "fitted": FittedCache(Row("1111", "fitted"), Row("1111", "fitted")),
    "fora": Fora(interval=1),
    "guidance": GuidanceCache(warm_up=99),
    "interval": GuidanceInterval(0.0, 1.0),
    "native": NativeCache(options={"threshold": 0.0}),
    "rehash": StepRehash(warm_up=99),
    "residual": ResidualCache(threshold=0.0, warm_up=1),
    "slicer": Slicer(slices=1),
    "lossless": Lossless(),
    "steps": Steps(99),
    "smoothcache": SmoothCache({"attn": "1111", "mlp": "1111"}),
    "tgate": TGate(gate=99, self_interval=2, warm_up=99, cutoff="cond"),
}
"""Settings so weak that nothing is ever predicted: the output must have the plain bits."""

EXACT = {"lossless"}
"""Techniques that keep the plain bits whatever they save."""

COMBINATIONS: list[list[Technique]] = [
    [DeepCache(warm_up=2), GuidanceCache(interval=3, warm_up=2)],
    [TGate(gate=2), DeepCache(warm_up=2), GuidanceCache(warm_up=2)],
    [TGate(gate=3, self_interval=2, warm_up=1, cutoff="cond"), DeepCache(warm_up=2, how="reuse")],
    [DeepCache(interval=9, warm_up=1, how="reuse"), StepRehash(warm_up=1, how="reuse")],
    [SmoothCache({"mlp": "1101"}), GuidanceCache(warm_up=2)],
    [ResidualCache(indicator="tea", threshold=99.0, warm_up=2), GuidanceCache(warm_up=2)],
    [Lossless(), DeepCache(warm_up=2), GuidanceCache(warm_up=2)],
    [DeepCache(warm_up=2), GuidanceCache(warm_up=2), Storage(budget=64)],
    [Steps(3), DeepCache(warm_up=1, how="reuse")],
]

PLANS: dict[str, Plan] = {
    str(plan): plan for plan in (Plan.of(what) for what in [*sum(SETTINGS.values(), []), *COMBINATIONS])
}

NO_CROSS_ATTENTION = {"dit", "sd3", "sd3-img2img", "flux", "flux-cfg", "flux-img2img", "cogvideox", "z-image"}
"""Cases on which T-GATE is refused."""

NO_SECOND_HALF = {"sd-plain", "sd-lcm", "flux", "dit", "flux-img2img", "z-image"}
"""Cases whose guidance cannot be halved: there is none (the first three), DiT hands both halves to the solver, Flux
image-to-image names no cache context, and Z-Image's batch is a list."""

FIXED_TAIL = {
    "sd", "sd-plain", "sd-lcm", "sd-img2img", "sd-inpaint", "sd-controlnet", "sd-lora", "sd-ip-adapter",
    "sd-t2i-adapter", "dit", "cogvideox", "stable-audio", "audioldm2",
}  # fmt: skip
"""Cases whose own solver (DDIM, LCM, EDM) takes no other tail, on which ``converged`` is refused."""

TOGETHER = {"z-image", "wan-two-experts"}
"""Cases whose pictures cannot take different steps: a batch that is a list, and a denoiser chosen by the timestep."""

OTHER_LENGTHS = {"wan-two-experts", "flux-img2img", "sd3-img2img"}
"""Cases whose runs do not take four steps, for which fitted weights are made here."""

WITH_NATIVE_CACHES = {"flux", "flux-cfg", "flux-img2img", "wan", "wan-two-experts", "ltx", "cogvideox"}
"""Cases whose denoiser takes diffusers' own caches; on all others ``native`` is refused."""


def refused(plan: Plan, name: str) -> bool:
    """Does the plan not fit the case?"""
    if name not in WITH_NATIVE_CACHES and any(isinstance(t, NativeCache) for t in plan.techniques):
        return True
    if name == "dit" and any(isinstance(t, Lossless) for t in plan.techniques):
        return True  # classes instead of a text, and each block has its own embedding of the timestep
    if name in FIXED_TAIL and any(isinstance(t, Converged) for t in plan.techniques):
        return True
    return name in NO_CROSS_ATTENTION and any(isinstance(t, TGate) for t in plan.techniques)


def idle_parts(plan: Plan, name: str) -> set[str]:
    """The names in the report of what cannot save anything on the case."""
    halving = {
        "guidance": GuidanceCache, "interval": GuidanceInterval, "tgate cutoff": TGate, "fitted guidance": FittedCache
    }  # fmt: skip
    if name in TOGETHER and any(isinstance(t, Converged) for t in plan.techniques):
        return {"converged"}
    if name in FIXED_TAIL | TOGETHER and any(isinstance(t, Deadline) for t in plan.techniques):
        return {"deadline"}  # a first run is late where its tail cannot be changed
    claiming = [t for t in plan.techniques if "batch_halves" in t.claims]
    if name in OTHER_LENGTHS and any(isinstance(t, FittedCache) for t in plan.techniques):
        return {"fitted", "fitted guidance"}
    return {n for n, cls in halving.items() if name in NO_SECOND_HALF and any(isinstance(t, cls) for t in claiming)}


def decides_for_the_batch(plan: Plan) -> bool:
    """Diffusers' first-block cache looks at the mean over a batch, so ``native`` computes several pictures in full."""
    return any(isinstance(t, NativeCache) and t.kind == "first_block" for t in plan.techniques)

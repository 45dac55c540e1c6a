"""Which settings of which technique the contract is tested with. A new technique joins with one line in ``SETTINGS``.

Every setting predicts something within four solver steps, so that runs can be short.
"""

from __future__ import annotations

from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.tgate import TGate
from accel.plan import Plan
from accel.technique import Technique

SETTINGS: dict[str, list[Technique]] = {
    "deepcache": [DeepCache(warm_up=2), DeepCache(interval=3, warm_up=1, how="reuse")],
    "guidance": [GuidanceCache(warm_up=2), GuidanceCache(interval=3, warm_up=1, how="zero")],
    "tgate": [TGate(gate=2), TGate(gate=3, self_interval=2, warm_up=1), TGate(gate=0.5, cutoff="cond")],
}

IDLE: dict[str, Technique] = {
    "deepcache": DeepCache(warm_up=99),
    "guidance": GuidanceCache(warm_up=99),
    "tgate": TGate(gate=99, self_interval=2, warm_up=99, cutoff="cond"),
}
"""Settings so weak that nothing is ever predicted: the output must have the plain bits."""

COMBINATIONS: list[list[Technique]] = [
    [DeepCache(warm_up=2), GuidanceCache(interval=3, warm_up=2)],
    [TGate(gate=2), DeepCache(warm_up=2), GuidanceCache(warm_up=2)],
    [TGate(gate=3, self_interval=2, warm_up=1, cutoff="cond"), DeepCache(warm_up=2, how="reuse")],
]

PLANS: dict[str, Plan] = {
    str(plan): plan for plan in (Plan.of(what) for what in [*sum(SETTINGS.values(), []), *COMBINATIONS])
}

NO_CROSS_ATTENTION = {"dit", "sd3", "sd3-img2img", "flux", "flux-cfg", "flux-img2img", "cogvideox", "z-image"}
"""Cases on which T-GATE is refused."""

NO_SECOND_HALF = {"sd-plain", "sd-lcm", "flux", "dit", "flux-img2img", "z-image"}
"""Cases whose guidance cannot be halved: there is none (the first three), DiT hands both halves to the solver, Flux
image-to-image names no cache context, and Z-Image's batch is a list."""


def refused(plan: Plan, name: str) -> bool:
    """Does the plan not fit the case?"""
    return name in NO_CROSS_ATTENTION and any(isinstance(t, TGate) for t in plan.techniques)


def idle_parts(plan: Plan, name: str) -> set[str]:
    """The names in the report of what cannot save anything on the case."""
    halving = {"guidance": GuidanceCache, "tgate cutoff": TGate}
    claiming = [t for t in plan.techniques if "batch_halves" in t.claims]
    return {n for n, cls in halving.items() if name in NO_SECOND_HALF and any(isinstance(t, cls) for t in claiming)}

"""``accel plans``: what there is to choose from."""

from __future__ import annotations

import argparse
import dataclasses

from accel import console


def run(options: argparse.Namespace) -> int:
    """Print the presets, then the techniques with their default settings."""
    with console.quiet_libraries():
        text = f"{_presets()}\n\n{_techniques()}"
    print(text)
    print("\nJoin several with +, settings in brackets: --plan 'deepcache(interval=3)+guidance'; or name a .json file.")
    return 0


def _presets() -> str:
    from accel.plan import Plan, presets
    from accel.tables import aligned

    plans = [(name, Plan.of(name)) for name in presets()]
    body = [[name, plan.promise or "", " + ".join(map(str, plan.techniques))] for name, plan in plans]
    return aligned(["preset", "promise", "techniques"], body)


def _techniques() -> str:
    from accel import registry
    from accel.tables import aligned

    kinds = [registry.find(name) for name in registry.names()]
    table = aligned(
        ["technique", "what it does", "source", "denoisers"],
        [[kind.name, kind.summary, kind.source or "this project", ", ".join(kind.families)] for kind in kinds],
    )
    settings = [
        [kind.name, ", ".join(f"{field.name}={field.default!r}" for field in dataclasses.fields(kind))]
        for kind in kinds
    ]
    return f"{table}\n\n{aligned(['technique', 'default settings'], settings)}"

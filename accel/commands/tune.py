"""``accel tune``: find the fastest plan that keeps a floor, and save it."""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from accel import console
from accel.commands import plan_file
from accel.commands.bench import call_arguments, prompts_and_judge
from accel.errors import AccelError
from accel.tables import aligned

if TYPE_CHECKING:
    from accel.measure.events import Event
    from accel.measure.tune import Tuned
    from accel.plan import Plan

JOURNAL = ".jsonl"
"""Ending of the file beside the plan that keeps what was measured."""


def run(options: argparse.Namespace) -> int:
    """Tune, print the verdict and what was rejected why, and write the plan to ``--out``."""
    file = plan_file.writable(options.out)
    journal = file.with_suffix(JOURNAL)
    with console.quiet_libraries():
        from accel.commands.drawing import open_pipeline  # torch and diffusers: not for `accel --help`
        from accel.measure.tune import Floor, tune

        floor = Floor.of(options.floor)
        prompts, judge = prompts_and_judge(options)
        if floor.kind == "facts" and judge is None:
            raise AccelError("a floor in points needs the bundled prompts and model, at the model's own size")
        pipe = open_pipeline(options.model, options.device, options.dtype)
        pipe.set_progress_bar_config(disable=True)
        more = _turns(pipe, options.helper) if options.helper else ()
        with console.progress() as bar:
            found = tune(
                pipe,
                prompts,
                floor,
                steps=options.steps,
                budget=60 * options.minutes,
                judge=judge,
                call=call_arguments(options),
                seed=options.seed,
                batch=options.batch,
                progress=_shown(bar),
                journal=journal,
                more=more,
            )
    if options.why:
        for name, reason in found.rejected.items():
            print(f"{name}: {reason}")
        print(_front(found))
    print(found)
    if found.plan.techniques:
        print(plan_file.write(file, found.plan, found.steps, found.solver))
    elif file.exists():
        print(f"{file} is left as it was")
    print(f"what was measured is kept in {journal}: more --minutes or another --floor go on from there")
    return 0


def _turns(pipe: Any, helper: str) -> list[Plan]:
    """Plans in which the helper takes a part of the run."""
    found: list[Plan] = importlib.import_module("accel.schedulers.switching").candidates(pipe, helper)
    return found  # by name, because the core imports no technique


def _shown(bar: Callable[[str, int, int], None]) -> Callable[[Event], None]:
    """A bar of the seconds given: what is left of it is the time left. Its label is what the search is at."""
    label = "timing"

    def show(event: Event) -> None:
        nonlocal label
        label = event.phase if event.measured else label  # timing and long runs come in between
        bar(label, int(min(event.spent, event.budget)), int(event.budget))

    return show


def _front(found: Tuned) -> str:
    """The measured front as a table."""
    unit = "dB" if found.floor.kind == "psnr" else "share"
    body = [
        [each.arm.name, f"{each.seconds:.2f}", f"{each.margin.value:+.2f}", str(each.prompts)] for each in found.front
    ]
    return aligned(["front", "seconds expected", f"above the floor ({unit})", "prompts"], body)

"""``accel fit``: fit the weights of predictions to the final picture, and save them as a plan."""

from __future__ import annotations

import argparse
import importlib

from accel import console
from accel.commands import plan_file
from accel.commands.bench import BUNDLED, call_arguments, prompts_and_judge

_FIRST_SEED = 500_000
"""Of the bundled scenes to fit to: compositions of the training part, which no benchmark draws."""


def run(options: argparse.Namespace) -> int:
    """Fit, print what it gained, and write the plan to ``--out``."""
    file = plan_file.writable(options.out)
    with console.quiet_libraries():
        from accel.commands import drawing  # torch and diffusers: not for `accel --help`

        # By name, because the core imports no technique.
        fitting = importlib.import_module("accel.caches.fitting")
        prompts = training_prompts(options)
        pipe = drawing.open_pipeline(options.model, options.device, options.dtype)
        drawing.set_solver(pipe, options.solver)
        longest = drawing.Request(prompts[0], 4 * options.steps, guidance=options.guidance, size=options.size)
        drawing.check(pipe, longest)
        pipe.set_progress_bar_config(disable=True)
        cells = fitting.every(options.interval, options.steps, options.warm_up)
        with console.progress() as progress:
            found = fitting.fit(
                pipe,
                prompts,
                steps=options.steps,
                deep=cells if "deep" in options.parts else None,
                guidance=cells if "guidance" in options.parts else None,
                order=options.order,
                call=call_arguments(options),
                seed=options.seed,
                batch=options.batch,
                progress=progress,
            )
    print(found)
    print(plan_file.write(file, found.plan, options.steps, options.solver))
    return 0


def training_prompts(options: argparse.Namespace) -> list[str]:
    """The prompts of a file, or of bundled scenes that no benchmark draws."""
    if options.prompts != BUNDLED:
        return prompts_and_judge(options)[0]
    from accel.tiny.scenes import make_scene

    return [make_scene(_FIRST_SEED + index).caption for index in range(options.n)]

"""``accel fit``: fit the weights of predictions to the final picture, and save them as a plan."""

from __future__ import annotations

import argparse
import importlib
import os
from pathlib import Path

from accel import console
from accel.commands.bench import BUNDLED, call_arguments, prompts_and_judge
from accel.errors import AccelError

_FIRST_SEED = 500_000
"""Of the bundled scenes to fit to: compositions of the training part, which no benchmark draws."""


def run(options: argparse.Namespace) -> int:
    """Fit, print what it gained, and write the plan to ``--out``."""
    file = Path(options.out).expanduser()
    if file.suffix != ".json" or file.is_dir() or not os.access(file.parent, os.W_OK):
        raise AccelError(f"{file} cannot be written: name a .json file in a folder that is yours with --out")
    with console.quiet_libraries():
        from accel.commands.drawing import (
            Request,
            check,
            open_pipeline,
            set_solver,
        )  # torch and diffusers: not for `accel --help`

        # By name, because the core imports no technique.
        fitting = importlib.import_module("accel.caches.fitting")
        prompts = training_prompts(options)
        pipe = open_pipeline(options.model, options.device, options.dtype)
        set_solver(pipe, options.solver)
        check(pipe, Request(prompts[0], 4 * options.steps, guidance=options.guidance, size=options.size))
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
    found.plan.save(file)
    print(found)
    solver = "" if options.solver == "own" else f" --solver {options.solver}"
    print(f"wrote the plan to {file}: use it with --plan {file} --steps {options.steps}{solver}")
    return 0


def training_prompts(options: argparse.Namespace) -> list[str]:
    """The prompts of a file, or of bundled scenes that no benchmark draws."""
    if options.prompts != BUNDLED:
        return prompts_and_judge(options)[0]
    from accel.tiny.scenes import make_scene

    return [make_scene(_FIRST_SEED + index).caption for index in range(options.n)]

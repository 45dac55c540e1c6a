"""``accel schedule``: choose the steps of a short schedule on one long trajectory, and save them as a plan."""

from __future__ import annotations

import argparse
import importlib

from accel import console
from accel.commands import plan_file
from accel.commands.bench import call_arguments
from accel.commands.fit import training_prompts


def run(options: argparse.Namespace) -> int:
    """Choose, print what it gained on prompts that it was not chosen on, and write the plan to ``--out``."""
    file = plan_file.writable(options.out)
    with console.quiet_libraries():
        from accel.commands import drawing  # torch and diffusers: not for `accel --help`
        from accel.fingerprint import Fingerprint
        from accel.plan import Plan
        from accel.target import Target

        # By name, because the core imports no technique.
        optimise = importlib.import_module("accel.schedulers.optimise").optimise
        prompts = training_prompts(options)
        pipe = drawing.open_pipeline(options.model, options.device, options.dtype)
        drawing.set_solver(pipe, options.solver)
        drawing.check(pipe, drawing.Request(prompts[0], options.nodes, guidance=options.guidance, size=options.size))
        pipe.set_progress_bar_config(disable=True)
        found = optimise(
            pipe,
            prompts,
            steps=options.steps,
            nodes=options.nodes,
            call=call_arguments(options),
            seed=options.seed,
            batch=options.batch,
        )
        mark = Fingerprint.of(Target.of(pipe), options.steps, {"gained_db": found.gain.value})
        plan = Plan((found.steps,), fingerprint=mark)
    print(found)
    print(plan_file.write(file, plan, options.steps, options.solver))
    return 0

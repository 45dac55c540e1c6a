"""``accel calibrate``: measure a static schedule on a few prompts, and save it as a plan."""

from __future__ import annotations

import argparse
from typing import Any

from accel import console
from accel.commands import plan_file
from accel.commands.bench import call_arguments
from accel.commands.fit import training_prompts


def run(options: argparse.Namespace) -> int:
    """Calibrate, print which steps each component computes, and write the plan to ``--out``."""
    file = plan_file.writable(options.out)
    with console.quiet_libraries():
        from accel import registry
        from accel.commands.drawing import open_pipeline, set_solver  # torch and diffusers: not for `accel --help`

        prompts = training_prompts(options)
        pipe = open_pipeline(options.model, options.device, options.dtype)
        set_solver(pipe, options.solver)
        technique: Any = registry.find("smoothcache")
        measuring = {"steps": options.steps, "seed": options.seed, "call": call_arguments(options), "how": options.how}
        if options.target_db is None:
            pipe.set_progress_bar_config(desc="calibrating", leave=False, disable=None)
            goal = {"target_share": options.target} if options.alpha is None else {"alpha": options.alpha}
            plan = technique.calibrated(pipe, prompts, **goal, **measuring, lookahead=options.lookahead or 3)
        else:
            pipe.set_progress_bar_config(disable=True)
            goal = {"target_db": options.target_db, "lookahead": options.lookahead or 2}
            with console.progress() as progress:
                plan = technique.calibrated(pipe, prompts, **goal, **measuring, progress=progress)
    print(_summary(plan))
    print(plan_file.write(file, plan, options.steps, options.solver))
    return 0


def _summary(plan: Any) -> str:
    """The rows as strips in the marks of reports, and what they were bought with."""
    from accel.report import COMPUTED, PREDICTED
    from accel.tables import aligned

    (technique,) = plan.techniques
    strips = {name: cells.replace("1", COMPUTED).replace("0", PREDICTED) for name, cells in technique.cells.items()}
    body = [[name, str(strip.count(COMPUTED)), strip] for name, strip in strips.items()]
    quality = plan.fingerprint.quality
    table = aligned(["component", "computed", f"steps ({COMPUTED} computed, {PREDICTED} predicted)"], body)
    if "psnr" in quality:
        told = f"{quality['psnr']:.1f} dB from the plain pictures, {quality['saved']:.0%} of their work left out"
    else:
        told = f"largest error {quality['alpha']:.3g}"
    return f"{table}\n{quality['computed']:.0%} computed, how={technique.how}, {told}"

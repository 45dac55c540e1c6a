"""Does a prompt tell how many steps it needs? The predictor against constants, on the bundled pipelines.

    python benchmarks/difficulty.py --model tiny

96 held-out prompts, 8 noises each, 7 step counts of DPM++ and a run of 48 steps beside them: some 95,000 steps of one
picture, half of that with ``--seeds 4``. Broken off, it goes on when it is repeated with as many threads. The curves
stay in ``results/difficulty-<model>``, the evaluation goes to ``results/difficulty-<model>.json``, and a predictor is
only kept where it beats the constants.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from common import RESULTS, subject, write

from accel import console
from accel.commands.generate import BUNDLED_GUIDANCE
from accel.errors import AccelError
from accel.schedulers.difficulty.collect import Study, collect
from accel.schedulers.difficulty.curves import Curves
from accel.schedulers.difficulty.evaluate import evaluate
from accel.schedulers.difficulty.training import train
from accel.tiny.judging import SceneJudge, mixed

GOALS = ("25 dB", "30 dB", "35 dB", "facts")
HEADLINE = "30 dB"


def main() -> None:
    """Collect, judge by every goal, train by the headline's."""
    options = _options()
    scenes = mixed(options.n)
    study = Study(
        prompts=[scene.caption for scene in scenes],
        groups=[scene.composition for scene in scenes],
        seeds=options.seeds,
        reference=48,
        solver=options.solver,
        batch=options.batch,
        call={"guidance_scale": BUNDLED_GUIDANCE},
    )
    name = f"difficulty-{options.model}" + ("" if options.solver == "dpm++" else f"-{options.solver}")
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    with console.progress() as progress:
        curves = collect(subject(options.model), study, folder, SceneJudge(scenes), progress)
    found = {goal: _judged(curves, goal) for goal in GOALS}
    kept = _kept(curves, found[HEADLINE], folder / "predictor")
    about = {"model": options.model, "solver": options.solver, "counts": list(curves.counts), "reference": 48}
    print(write(name, {**about, "psnr": curves.psnr.mean((0, 1)).tolist(), "predictor": kept, "goals": found}))


def _judged(curves: Curves, goal: str) -> dict[str, Any]:
    """The evaluation by one goal, or why there is none."""
    try:
        found = evaluate(curves, goal)
    except AccelError as error:  # a goal may be out of reach for these weights
        print(f"{goal}: {error}\n")
        return {"none": str(error)}
    print(found, "\n")
    return found.to_dict()


def _kept(curves: Curves, found: dict[str, Any], folder: Path) -> bool:
    if not found.get("verdict", {}).get("ship"):
        return False
    train(curves, HEADLINE).save(folder)
    return True


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--solver", default="dpm++")
    parser.add_argument("--n", type=int, default=96, help="prompts")
    parser.add_argument("--seeds", type=int, default=8, help="noises of each")
    parser.add_argument("--batch", type=int, default=8, help="pictures at once, kept together when they are done")
    return parser.parse_args()


if __name__ == "__main__":
    main()

"""Is a schedule chosen for a model better than the solver's own, at equal steps? Quality only, no times.

    python benchmarks/schedule.py --model tiny --steps 6 8 10 15

The schedule is chosen on training prompts (`accel.schedulers.optimise`), and held against DPM++'s own spacing on
held-out prompts with other noises; so are the spacings that need no choosing. Told is by how many dB final latents are
closer to those of a run of 48 steps. Some 20,000 steps of one picture for the four numbers of steps; what was measured
is kept in ``results/schedule-<model>.jsonl``, and only missing numbers of steps are measured when it is repeated.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from common import RESULTS, prompts, subject, write

from accel.commands.generate import BUNDLED_GUIDANCE
from accel.measure.arms import Arm
from accel.measure.identity import identity
from accel.measure.intervals import Interval, mean
from accel.measure.journal import Journal
from accel.schedulers.optimise import choose, missed
from accel.schedulers.recording import Runs
from accel.schedulers.spacing import SPACINGS, spaced, unfit
from accel.tables import aligned
from accel.tiny.scenes import make_scene

NODES = 48
FIRST = 500_000
"""Of the scenes to choose on: compositions of the training part, as ``accel schedule`` takes them."""
CHOSEN = "chosen"


def main() -> None:
    """Measure what is missing, print, write ``results/schedule-<model>.json``."""
    options = _options()
    pipe, name = subject(options.model), f"schedule-{options.model}"
    settings = {"nodes": NODES, "train": options.train, "held_out": options.held_out, "guidance": BUNDLED_GUIDANCE}
    RESULTS.mkdir(exist_ok=True)
    with Arm(NODES, "dpm++").ready(pipe):
        journal = Journal(RESULTS / f"{name}.jsonl", {**identity(pipe), **settings})
        call = {"guidance_scale": BUNDLED_GUIDANCE}
        training = Runs(pipe, _training(options.train), call, seed=FIRST, batch=options.batch)
        held_out = Runs(pipe, prompts(options.held_out), call, batch=options.batch)
        for steps in [n for n in options.steps if n not in {item["steps"] for item in journal.of("steps")}]:
            journal.add({"kind": "steps", "steps": steps, **_measured(training, held_out, steps)})
    found = {item["steps"]: item["ways"] for item in sorted(journal.of("steps"), key=lambda item: int(item["steps"]))}
    print(_table(found))
    print(write(name, {"model": options.model, "solver": "dpm++", **settings, "steps": found}))


def _training(count: int) -> list[str]:
    return [make_scene(FIRST + number).caption for number in range(count)]


def _measured(training: Runs, held_out: Runs, steps: int) -> dict[str, Any]:
    """Of every way to place the steps its timesteps, and the gains over the solver's own by prompt."""
    scheduler = held_out.target.scheduler
    ways = {name: spaced(scheduler, name, steps) for name in SPACINGS if unfit(scheduler, name) is None}
    ways[CHOSEN] = choose(training, steps, NODES)
    truth = held_out.final(NODES)
    own = missed(held_out.final(steps), truth)
    gains = {name: 10 * np.log10(own / missed(held_out.final(steps, times), truth)) for name, times in ways.items()}
    return {"ways": {name: {"timesteps": times, "gains": gains[name].tolist()} for name, times in ways.items()}}


def _table(found: dict[int, dict[str, Any]]) -> str:
    names = list(next(iter(found.values())))
    body = [[str(steps), *(_gain(ways[name]) for name in names)] for steps, ways in found.items()]
    return aligned(["steps", *(f"{name}, dB over the solver's own" for name in names)], body)


def _gain(way: dict[str, Any]) -> str:
    gain: Interval = mean(way["gains"])
    better = sum(each > 0 for each in way["gains"])
    return f"{gain}, {better} of {len(way['gains'])} better"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, nargs="+", default=[6, 8, 10, 15])
    parser.add_argument("--train", type=int, default=12, help="prompts to choose on")
    parser.add_argument("--held-out", type=int, default=24, help="prompts to judge by")
    parser.add_argument("--batch", type=int, default=12, help="prompts at once")
    return parser.parse_args()


if __name__ == "__main__":
    main()

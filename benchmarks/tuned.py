"""Does ``tune``, from scratch, find a plan that is at least as fast as the presets at the same floor? On new prompts.

    python benchmarks/tuned.py

The floor is one point of attribute accuracy, the time 20 minutes. Afterwards the plan and the presets, with either
solver, are drawn for prompts that tuning never saw: a way keeps the floor where the lower end of the interval does, and
times are taken in turns. Results go to ``results/tuned-<model>.json``; what was measured stays in
``results/tuned-<model>/``, and a run that was broken off goes on there.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from common import RESULTS, subject, write

from accel.commands.generate import BUNDLED_GUIDANCE
from accel.measure.arms import Arm
from accel.measure.drawn import Drawn, Task
from accel.measure.events import Stopwatch
from accel.measure.floor import Floor
from accel.measure.intervals import mean
from accel.measure.journal import Journal
from accel.measure.solvers import solvers
from accel.measure.tune import Tuned, tune
from accel.plan import Plan
from accel.tables import aligned
from accel.tiny.judging import SceneJudge, mixed
from accel.tiny.scenes import Scene

PRESETS = ("balanced", "fast")
CALL = {"guidance_scale": BUNDLED_GUIDANCE}


def main() -> None:
    """Tune, verify, print, write."""
    options = _options()
    pipe, floor, name = subject(options.model), Floor.of(options.floor), f"tuned-{options.model}"
    scenes = mixed(options.n + options.verify)
    folder = RESULTS / name
    folder.mkdir(parents=True, exist_ok=True)
    found = tune(
        pipe,
        [scene.caption for scene in scenes[: options.n]],
        floor,
        steps=options.steps,
        budget=60 * options.minutes,
        judge=SceneJudge(scenes[: options.n]),
        call=CALL,
        batch=options.batch,
        journal=folder / "tuning.jsonl",
    )
    minutes = _spent(folder / "tuning.jsonl") / 60
    print(f"{found}\n{minutes:.1f} minutes")
    ways = _verified(pipe, found, floor, scenes[options.n :], options)
    print(_table(ways))
    about = {"model": options.model, "steps": options.steps, "prompts": options.n, "verified_on": options.verify}
    told = {"floor": str(floor), "minutes": round(minutes, 1), "found": str(found), "rejected": _reasons(found)}
    print(write(name, {**about, **told, "ways": ways}))


def _spent(journal: Path) -> float:
    """Seconds from the beginning to the last measurement, a run that was broken off included."""
    return float(json.loads(journal.read_text(encoding="utf-8").splitlines()[-1])["spent"])


def _reasons(found: Tuned) -> dict[str, int]:
    """How many ways were not chosen for which reason."""
    return dict(Counter(reason.partition(":")[0] for reason in found.rejected.values()).most_common())


def _verified(
    pipe: Any, found: Tuned, floor: Floor, scenes: Sequence[Scene], options: argparse.Namespace
) -> dict[str, Any]:
    """By way to draw how far it is above the floor, and how much longer than the tuned one it takes."""
    best = Arm(found.steps, found.solver, found.plan if found.plan.techniques else None)
    others = [Arm(options.steps, solver, Plan.of(name)) for solver in solvers(pipe) for name in PRESETS]
    prompts = [scene.caption for scene in scenes]
    task = Task(pipe, prompts, floor, options.steps, SceneJudge(scenes), CALL, options.n, options.batch)
    drawn = Drawn(task, Journal(RESULTS / f"tuned-{options.model}" / "verified.jsonl", task.head()), Stopwatch())
    ways: dict[str, Any] = {}
    for arm in (best, *others):
        margin = mean(drawn.margins(arm, range(len(prompts))))
        taken = None if arm is best else asdict(drawn.ratio(best, arm))
        ways[arm.name] = {"points_above": _points(asdict(margin)), "keeps": margin.low >= 0, "time_over_tuned": taken}
    return ways


def _points(margin: dict[str, float]) -> dict[str, float]:
    return {key: round(100 * value, 2) for key, value in margin.items()}


def _table(ways: dict[str, Any]) -> str:
    def row(name: str, way: dict[str, Any]) -> list[str]:
        above, taken = way["points_above"], way["time_over_tuned"]
        ratio = "–" if taken is None else f"{taken['value']:.2f} ({taken['low']:.2f} to {taken['high']:.2f})"
        margin = f"{above['value']:+.2f} ({above['low']:+.2f} to {above['high']:+.2f})"
        return [name, margin, "yes" if way["keeps"] else "no", ratio]

    head = ["way", "points above the floor", "keeps it", "time over the tuned one's"]
    return aligned(head, [row(name, way) for name, way in ways.items()])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--floor", default="1 point")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--steps", type=int, default=15, help="the most steps to take")
    parser.add_argument("--n", type=int, default=200, help="prompts to tune on, half of them to judge by")
    parser.add_argument("--verify", type=int, default=96, help="further prompts")
    parser.add_argument("--batch", type=int, default=16, help="pictures at once, where time is not taken")
    return parser.parse_args()


if __name__ == "__main__":
    main()

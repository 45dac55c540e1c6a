"""Does looking for a noise help more than taking more steps? Prompts of three objects, eight candidates.

    python benchmarks/noise_search.py --model tiny

Chosen is by the share of stated facts that the bundled reader finds. Judged is by

- *reader*: every stated fact holds. The same network chooses and judges, so a part of its gain is its own mistakes.
- *pixels*: the stated colours and the stated plain background are there, by counting pixels; no network is asked, so
  this judge has no mistakes in common with the reader. It knows nothing of shapes, counts and places.

Every way is compared with one picture of the same prompt and first noise, paired over prompts. ``more steps`` spends
the work of eight candidates on steps of that one picture. Broken off, it goes on when it is repeated.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from common import RESULTS, subject, write

from accel import console
from accel.commands.generate import BUNDLED_GUIDANCE
from accel.measure.identity import identity
from accel.measure.intervals import Interval, mean
from accel.measure.journal import Journal
from accel.schedulers.search import Found, search
from accel.schedulers.search.drawing import Prune
from accel.schedulers.search.verifiers import Facts
from accel.tables import aligned
from accel.tiny import reader
from accel.tiny.prompts import drawn, prompts
from accel.tiny.scenes import Scene
from accel.tiny.world import BACKGROUNDS, COLOURS

OBJECTS = 3
ONE, MORE = "one picture", "more steps"
WAYS: dict[str, dict[str, Any]] = {
    "random": {"method": "random"},
    "random, half given up at 30 %": {"method": "random", "prune": Prune(0.3, 0.5)},
    "zero_order": {"method": "zero_order"},
    "paths": {"method": "paths"},
}
JUDGES = ("reader", "pixels", "facts")

_NEAR = 60 / 255
_PRESENT = 0.01


def main() -> None:
    """Search for every prompt in every way, judge, print, write ``results/noise-search-<model>.json``."""
    options = _options()
    pipe, name = subject(options.model), f"noise-search-{options.model}"
    settings = {"candidates": options.candidates, "steps": options.steps, "n": options.n, "ways": [*WAYS]}
    RESULTS.mkdir(exist_ok=True)
    journal = Journal(RESULTS / f"{name}.jsonl", {**identity(pipe), **settings})
    scenes, judge = _scenes(options.n), reader.load()
    done = {item["prompt"] for item in journal.of("prompt")}
    with console.progress() as progress:
        for number, scene in enumerate(scenes):
            progress("searching", number, len(scenes))
            if number not in done:
                journal.add({"kind": "prompt", "prompt": number, **_searched(pipe, scene, options, judge, number)})
    found = _compared(journal.of("prompt"))
    print(_table(found))
    print(write(name, {"model": options.model, **settings, "ways": found}))


def _scenes(count: int) -> list[Scene]:
    """Held-out scenes of three objects."""
    many = prompts("many", 4 * count)
    return [scene for scene in many if drawn(scene) == OBJECTS][:count]


def _searched(
    pipe: Any, scene: Scene, options: argparse.Namespace, judge: reader.Reader, number: int
) -> dict[str, Any]:
    """Of every way the judges' verdicts and the work."""
    verifier, seed = Facts(scene), 1000 * number

    def run(**way: Any) -> Found:
        call = {"guidance_scale": BUNDLED_GUIDANCE}
        return search(pipe, scene.caption, verifier, steps=options.steps, seed=seed, call=call, **way)

    one = run(candidates=1)
    results = {ONE: (one.picture, one.evaluations)}
    for name, way in WAYS.items():
        found = run(candidates=options.candidates, compare=name == "random", **way)
        results[name] = found.picture, found.evaluations
        if found.more_steps is not None:
            results[MORE] = found.more_steps.picture, found.evaluations
    return {"ways": {name: _verdicts(judge, scene, *result) for name, result in results.items()}}


def _verdicts(judge: reader.Reader, scene: Scene, picture: torch.Tensor, evaluations: int) -> dict[str, Any]:
    (verdict,) = judge.judge(picture[None].clamp(0, 1), [scene])
    facts = verdict.facts
    share = sum(facts.values()) / len(facts)
    return {"reader": verdict.all_right, "facts": share, "pixels": pixels(picture, scene), "evaluations": evaluations}


def pixels(picture: torch.Tensor, scene: Scene) -> bool:
    """Whether the stated colours and the stated plain background are in the picture ``(3, height, width)``."""
    wanted = {item.colour for item in scene.objects if item.colour}
    present = all(_share(picture.flatten(1), COLOURS[colour]) >= _PRESENT for colour in wanted)
    if not scene.background_stated or scene.background not in BACKGROUNDS:
        return present
    edge = torch.cat([picture[:, 0], picture[:, -1], picture[:, :, 0], picture[:, :, -1]], dim=1)
    return present and _share(edge, BACKGROUNDS[scene.background]) >= 0.5


def _share(colours: torch.Tensor, wanted: tuple[int, int, int]) -> float:
    """Share of pixels ``(3, n)`` that are near a colour."""
    away = (colours - torch.tensor(wanted)[:, None] / 255).square().sum(0).sqrt()
    return float((away < _NEAR).float().mean())


def _compared(items: list[dict[str, Any]]) -> dict[str, Any]:
    """By way and judge the share of right pictures, and the paired difference to one picture, in points."""

    def values(way: str, key: str) -> list[float]:
        return [100 * float(item["ways"][way][key]) for item in items]

    def against(way: str, other: str, key: str) -> Interval:
        return mean([a - b for a, b in zip(values(way, key), values(other, key), strict=True)])

    measure: dict[str, Callable[[str, str], Interval]] = {
        "right": lambda way, key: mean(values(way, key)),
        "gain": lambda way, key: against(way, ONE, key),
        "gain over more steps": lambda way, key: against(way, MORE, key),
    }
    found: dict[str, Any] = {}
    for way in items[0]["ways"]:
        found[way] = {key: {name: vars(of(way, key)) for name, of in measure.items()} for key in JUDGES}
        found[way]["evaluations"] = mean(values(way, "evaluations")).value / 100
    return found


def _table(found: dict[str, Any]) -> str:
    head = ["way", "evaluations", *(f"{judge}: {what}" for judge in JUDGES for what in ("right", "over more steps"))]
    body = [
        [
            name,
            f"{way['evaluations']:.0f}",
            *(str(Interval(**way[judge][what])) for judge in JUDGES for what in ("right", "gain over more steps")),
        ]
        for name, way in found.items()
    ]
    return aligned(head, body)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--n", type=int, default=64, help="prompts")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--candidates", type=int, default=8)
    return parser.parse_args()


if __name__ == "__main__":
    main()

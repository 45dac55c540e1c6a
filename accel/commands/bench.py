"""``accel bench``: plans against the plain pipeline and against fewer steps, on many prompts."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from accel import console, spelling, tiny
from accel.commands.generate import BUNDLED_GUIDANCE
from accel.errors import AccelError
from accel.staging import kept_folder

BUNDLED = "bundled"
JOURNAL, RESULTS, PAGE, PLOT = "journal.jsonl", "results.json", "results.md", "front.png"


def run(options: argparse.Namespace) -> int:
    """Measure and write the results into ``--out``, or compare two results files."""
    if options.compare:
        from accel.measure.tabulate import changes

        print(changes(*(_results(path) for path in options.compare)))
        return 0
    folder = kept_folder(options.out)
    with console.quiet_libraries():
        rows = _measure(options, folder)
    print(rows)
    print(f"wrote {RESULTS}, {PAGE} and {PLOT} to {folder}; the same command again measures only what is missing")
    return 0


def _measure(options: argparse.Namespace, folder: Path) -> str:
    from accel.commands import drawing  # torch and diffusers: not for `accel --help`
    from accel.measure import arms, extras, results, tabulate
    from accel.measure.bench import Bench, Setup
    from accel.measure.plot import pareto
    from accel.measure.solvers import solvers as fitting
    from accel.plan import Plan

    extras.torchmetrics(), extras.pyplot()  # missing packages are told before hours of work
    plans = [Plan.of(text) for text in spelling.split(options.plans, ",")]
    prompts, judge = prompts_and_judge(options)
    pipe = drawing.open_pipeline(options.model, options.device, options.dtype)
    pipe.set_progress_bar_config(disable=True)
    drawing.set_solver(pipe, options.solver)
    more = _metrics(options, pipe.device)
    known = fitting(pipe)
    longest = arms.REFERENCE * options.steps
    drawing.check(pipe, drawing.Request(prompts[0], longest, guidance=options.guidance, size=options.size))
    solvers = known if options.solvers is None else _known(spelling.split(options.solvers, ","), known)
    setup = Setup(
        model=options.model,
        prompts=prompts,
        plans=plans,
        steps=options.steps,
        solvers=solvers,
        rounds=options.rounds,
        batch=options.batch,
        seed=options.seed,
        call=call_arguments(options),
    )
    with console.progress() as progress:
        bench = Bench(pipe, setup, folder / JOURNAL, judge, progress, more)
        items = bench.run()
    rows = results.rows(setup, items, judge)
    document = results.document(setup, bench.head, items, rows)
    (folder / RESULTS).write_text(json.dumps(document) + "\n", encoding="utf-8")
    (folder / PAGE).write_text(tabulate.page(_title(options), bench.head, rows), "utf-8")
    pareto(rows, folder / PLOT)
    return tabulate.text(rows, len(prompts))


def _title(options: argparse.Namespace) -> str:
    from accel.measure.solvers import OWN

    solver = "" if options.solver == OWN else f", {options.solver}"
    return f"{options.model}, {options.steps} steps{solver}"


def _metrics(options: argparse.Namespace, device: Any) -> list[Any]:
    """The metrics asked for, with their weights: told before anything is drawn where these are missing."""
    found: list[Any] = []
    if options.clip:
        from accel.measure.clip import ClipScore

        found.append(ClipScore(options.clip, device))
    if options.lpips:
        from accel.measure.metrics import lpips

        found.append(lpips(options.lpips, device))
    return found


def prompts_and_judge(options: argparse.Namespace) -> tuple[list[str], Any]:
    """The prompts, and the judge that knows what they state, if there is one."""
    if options.prompts == BUNDLED:
        from accel.tiny.judging import SceneJudge, mixed

        try:
            scenes = mixed(options.n)
        except ValueError as error:
            raise AccelError(f"--n {options.n} is too much: {error}") from None
        judge = SceneJudge(scenes) if options.model in tiny.names() and options.size is None else None
        return [scene.caption for scene in scenes], judge
    try:
        lines = Path(options.prompts).read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise AccelError(f"prompts file {options.prompts} cannot be read: {reason}") from None
    prompts = [line.strip() for line in lines if line.strip()]
    if not prompts:
        raise AccelError(f"prompts file {options.prompts} is empty: write one prompt per line")
    if len(prompts) < options.n:
        console.say("note", f"{options.prompts} has {len(prompts)} prompts, fewer than --n {options.n}")
    return prompts[: options.n], None


def call_arguments(options: argparse.Namespace) -> dict[str, Any]:
    """What the pipeline's call is given besides prompts, steps and noise."""
    guidance = BUNDLED_GUIDANCE if options.guidance is None and options.model in tiny.names() else options.guidance
    asked = {"guidance_scale": guidance, "height": options.size, "width": options.size}
    return {name: value for name, value in asked.items() if value is not None}


def _known(asked: Sequence[str], known: Sequence[str]) -> list[str]:
    """The solvers asked for; the pipeline's own is always there, being what the others are compared with."""
    from accel.measure.solvers import OWN

    if unknown := [name for name in asked if name not in known]:
        raise AccelError(f"no solver {unknown[0]!r} for this pipeline: there are {', '.join(known)}")
    return [OWN, *(name for name in dict.fromkeys(asked) if name != OWN)]


def _results(path: str) -> dict[str, Any]:
    file = Path(path)
    try:
        loaded = json.loads((file / RESULTS if file.is_dir() else file).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not JSON"
        raise AccelError(f"{path} holds no results of accel bench: {reason}") from None
    if not isinstance(loaded, dict):
        raise AccelError(f"{path} holds no results of accel bench")
    return loaded

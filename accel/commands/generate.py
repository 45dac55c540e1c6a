"""``accel generate``: draw a prompt under a plan, and on request compare that with the plain pipeline."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from accel import console, pictures, tiny
from accel.errors import AccelError
from accel.staging import output_folder

BUNDLED_GUIDANCE = 4.0
"""Guidance scale that suits the bundled pipeline; others bring their own default."""


def run(options: argparse.Namespace) -> int:
    """Draw, write the pictures and ``report.json`` into ``--out``, print the report and a verdict."""
    if not options.prompt.strip():
        raise AccelError("the prompt is empty: say what to draw, for example 'two green squares and a red star'")
    folder = Path(options.out).expanduser()
    with output_folder(folder) as stage, console.quiet_libraries():
        document, report, files = _produce(options, stage)
        (stage / "report.json").write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    from accel.commands.summary import lines

    print(report, *lines(document), sep="\n")
    print(f"wrote {', '.join([*files, 'report.json'])} to {folder}")
    return 0


def _produce(options: argparse.Namespace, stage: Path) -> tuple[dict[str, Any], str, list[str]]:
    """Draw and save the pictures; returns the JSON document, the report as a table and the names of the files."""
    from accel.commands import drawing  # torch and diffusers: not for `accel --help`
    from accel.plan import Plan

    plan = Plan.of(options.plan) if options.plan else None  # a wrong name is told before anything is loaded
    guidance = BUNDLED_GUIDANCE if options.guidance is None and options.model in tiny.names() else options.guidance
    request = drawing.Request(
        prompt=options.prompt,
        steps=options.steps,
        seed=options.seed,
        negative=options.negative,
        guidance=guidance,
        size=options.size,
        batch=options.batch,
    )
    pipe = drawing.open_pipeline(options.model, options.device, options.dtype)
    drawing.set_solver(pipe, options.solver)
    drawing.check(pipe, request)
    plan = plan or _default_plan(options.model)
    work = _compared if options.compare else _alone
    return work(options, pipe, plan, request, stage)


def _default_plan(model: str) -> Any:
    from accel.loading import stored_plan
    from accel.plan import Plan

    return stored_plan(model) or Plan.of("balanced")


def _alone(
    options: argparse.Namespace, pipe: Any, plan: Any, request: Any, stage: Path
) -> tuple[dict[str, Any], str, list[str]]:
    from accel.commands.drawing import draw
    from accel.commands.summary import document
    from accel.handle import accelerate

    with accelerate(pipe, plan) as handle:
        drawn = draw(pipe, request)
    files = pictures.save(drawn.pictures, stage, "accelerated")
    told = document(options.model, pipe, request, plan, handle.report())
    told |= {"accelerated": {"seconds": drawn.seconds}, "files": files}
    return told, str(handle.report()), files


def _compared(
    options: argparse.Namespace, pipe: Any, plan: Any, request: Any, stage: Path
) -> tuple[dict[str, Any], str, list[str]]:
    from accel.commands.comparing import compare
    from accel.commands.summary import captions, compared, document

    result = compare(pipe, plan, request, options.repeats)
    told = document(options.model, pipe, request, plan, result.report) | compared(result)
    plain, fast = captions(told)
    files = [
        *pictures.save(result.plain, stage, "plain"),
        *pictures.save(result.accelerated, stage, "accelerated"),
        "side-by-side.png",
    ]
    pictures.side_by_side([(plain, result.plain), (fast, result.accelerated)]).save(stage / files[-1])
    return told | {"files": files}, str(result.report), files

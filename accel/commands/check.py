"""``accel check``: does a plan fit a pipeline, and does it keep every promise on it?"""

from __future__ import annotations

import argparse

from accel import console

PROMPT = "a red star"


def run(options: argparse.Namespace) -> int:
    """Print what was checked and a verdict; 0 when everything passed, 1 when not."""
    with console.quiet_libraries():
        rows, subject = _checked(options)
    from accel.tables import aligned

    print(
        aligned(
            ["check", "result", "detail"],
            [[name.replace("_", " "), "ok" if ok else "FAIL", text] for name, ok, text in rows],
        )
    )
    passed = sum(ok for _, ok, _ in rows)
    verdict = "everything holds" if passed == len(rows) else "do not use this plan here"
    print(f"{subject}: {passed} of {len(rows)} checks passed, {verdict}")
    return 0 if passed == len(rows) else 1


def _checked(options: argparse.Namespace) -> tuple[list[tuple[str, bool, str]], str]:
    """(name, passed, detail) of every check, and what was checked. A plan that is refused is not run."""
    from torch import Tensor  # heavy, as all that follows: not for `accel --help`

    import accel
    from accel.commands import drawing
    from accel.contract import run_contract
    from accel.loading import stored_plan
    from accel.plan import Plan

    plan = Plan.of(options.plan) if options.plan else None
    pipe = drawing.open_pipeline(options.pipe, options.device, options.dtype)
    plan = plan or stored_plan(options.pipe) or Plan.of("balanced")
    request = drawing.Request(PROMPT, options.steps, size=drawing.small_size(pipe))
    drawing.check(pipe, request)
    subject = f"{plan.name or plan} on {type(pipe).__name__}"
    if problems := accel.check(pipe, plan):
        return [("accepted", False, problem) for problem in problems], subject

    def draw(pipe: object, steps: int) -> Tensor:
        return drawing.draw(pipe, request, steps, "checking").pictures

    checks = run_contract(pipe, plan, draw, options.steps)
    return [("accepted", True, ""), *((each.name, each.passed, each.detail) for each in checks)], subject

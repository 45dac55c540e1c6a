"""A run as the Python that repeats it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accel.app.limits import Asked

if TYPE_CHECKING:
    from accel.plan import Plan


def python(asked: Asked, plan: Plan) -> str:
    """A program that draws what was asked for under the plan; texts come as literals, whatever they hold."""
    call = [
        repr(asked.prompt),
        f"num_inference_steps={asked.steps}",
        f"guidance_scale={asked.guidance:g}",
        f"generator=torch.Generator().manual_seed({asked.seed})",
    ]
    if asked.size:
        call.insert(2, f"height={asked.size}, width={asked.size}")
    lines = [
        "import torch",
        "",
        "import accel",
        "",
        f"pipe = accel.load({asked.model!r}, plan=accel.Plan())",
        *_solver(asked.solver),
        f"handle = accel.accelerate(pipe, {_literal(plan)})",
        "image = pipe(",
        *(f"    {argument}," for argument in call),
        ").images[0]",
        "print(handle.report())",
        "handle.remove()",
    ]
    return "\n".join(lines) + "\n"


def _solver(name: str) -> list[str]:
    if name == "own":
        return []
    return [
        "from accel.measure.solvers import set_up",
        "",
        f"pipe.scheduler = set_up({name!r}, pipe.scheduler)",
    ]


def _literal(plan: Plan) -> str:
    """The plan as short as it can be said: a preset's name, techniques joined by ``+``, else its JSON form."""
    from accel.plan import Plan

    for text in (plan.name or "", "+".join(map(str, plan.techniques))):
        try:
            if text and ".json" not in text and Plan.of(text) == plan:
                return repr(text)
        except ValueError:  # settings that cannot be spelled
            continue
    return f"accel.Plan.from_dict({plan.to_dict()!r})"

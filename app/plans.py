"""A visitor's plan: a text that is a preset, techniques joined by ``+``, or a plan file's JSON. Never a file's name."""

from __future__ import annotations

import json
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from accel.errors import AccelError

if TYPE_CHECKING:
    from accel.plan import Plan

_LONGEST_SPELLED = 2_000
_MOST_TECHNIQUES = 8


@cache
def presets() -> dict[str, str]:
    """Name → promise of the presets that ship, read without loading any technique: the page comes first."""
    files = resources.files("accel").joinpath("presets").iterdir()
    plans = {file.name.removesuffix(".json"): json.loads(file.read_text("utf-8")) for file in files}
    return {name: plans[name]["promise"] for name in sorted(plans)}


def choices() -> list[tuple[str, str]]:
    """(label, plan text) of what stands in the list before a visitor adds to it."""
    named = [(f"{name} · {promise}", name) for name, promise in presets().items()]
    return [
        *named,
        ("deepcache · deep part only", "deepcache"),
        ("guidance · its half only", "guidance"),
        ("lossless · same bits", "lossless"),
    ]


def parse(text: Any, limit: int) -> Plan:
    """The plan of a text; raises `AccelError` where it is none, or longer than ``limit`` characters."""
    from accel.plan import Plan

    text = text.strip() if isinstance(text, str) else ""
    if len(text) > limit:
        raise AccelError(f"the plan has {len(text)} characters: use at most {limit}")
    try:
        if text.startswith("{"):
            plan = Plan.from_dict(json.loads(text))
        else:
            plan = _spelled(text)
    except AccelError:
        raise
    except (RecursionError, MemoryError, ValueError) as error:
        raise AccelError(f"this is not a plan: {str(error).splitlines()[0] if str(error) else 'too deep'}") from None
    if len(plan.techniques) > _MOST_TECHNIQUES:
        raise AccelError(f"the plan has {len(plan.techniques)} techniques: use at most {_MOST_TECHNIQUES}")
    return plan


def _spelled(text: str) -> Plan:
    from accel.plan import Plan

    if text in ("", "plain"):
        return Plan()
    if ".json" in text.lower():
        raise AccelError("a plan file is uploaded, or its JSON pasted: the server opens no file by its name")
    if len(text) > _LONGEST_SPELLED:
        raise AccelError(f"the plan has {len(text)} characters: use at most {_LONGEST_SPELLED}, or JSON")
    return Plan.of(text)


def uploaded(data: bytes | None, limit: int) -> str:
    """The text of an uploaded plan file, once it has been read as a plan."""
    if data is None:
        raise AccelError("no file came with it: choose a plan.json")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise AccelError("the file is not text: choose a plan.json") from None
    if not text.lstrip().startswith("{"):
        raise AccelError("the file is not a plan: a plan.json is a JSON object with a list of techniques")
    plan = parse(text, limit)
    return json.dumps(plan.to_dict())


def label(plan: Plan) -> str:
    """A short name: the plan's own, else its techniques'."""
    return plan.name or " + ".join(technique.name for technique in plan.techniques) or "plain"

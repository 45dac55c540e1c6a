"""Loading a pipeline by name, folder or hub id, with the plan stored beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from accel import tiny
from accel.errors import AccelError
from accel.handle import accelerate
from accel.plan import Plan

PLAN_FILE = "plan.json"
"""A plan of this name in a pipeline's folder is attached when the folder is loaded."""

_INDEX = "model_index.json"


def load(source: str | Path, plan: Any = None, **from_pretrained: Any) -> Any:
    """Load a pipeline and attach a plan.

    ``source`` is the name of a bundled pipeline (``"tiny"``), a folder in diffusers format, or a hub id
    (``"owner/name"``), which is the only case that uses the network. ``plan`` defaults to the one stored in the folder
    as ``plan.json``, else to none; an empty `Plan` attaches nothing. ``accel.handles(pipe)`` has the handle that
    reports on it and removes it. Keyword arguments go to ``DiffusionPipeline.from_pretrained``.
    """
    from diffusers import DiffusionPipeline  # heavy: not at import time

    plan = stored_plan(source) if plan is None else Plan.of(plan)
    folder = _folder(source)
    if folder:
        _check_complete(folder, given=from_pretrained)
    pipe = DiffusionPipeline.from_pretrained(str(folder or source), **from_pretrained)
    if plan and plan.techniques:
        accelerate(pipe, plan)
    return pipe


def stored_plan(source: str | Path) -> Plan | None:
    """The plan stored beside a local pipeline, ``None`` where there is none; ``source`` is as for `load`."""
    folder = _folder(source)
    return Plan.load(folder / PLAN_FILE) if folder and (folder / PLAN_FILE).exists() else None


def _folder(source: str | Path) -> Path | None:
    """The local folder of ``source``, ``None`` for a hub id; raises `AccelError` for what can be neither."""
    if source in tiny.names():
        return tiny.path(str(source))
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / _INDEX).exists():
            raise AccelError(f"{folder} is not a diffusers pipeline: it has no {_INDEX}")
        return folder
    owner, _, name = str(source).partition("/")
    if isinstance(source, Path) or not name or "/" in name or owner in ("", ".", "..", "~"):
        bundled = ", ".join(tiny.names())
        raise AccelError(
            f"no pipeline {source}: it is neither bundled ({bundled}) nor a folder nor a hub id (owner/name)"
        )
    return None


def _check_complete(folder: Path, given: Iterable[str]) -> None:
    """Refuse a folder without some component's files: libraries make up an empty tokenizer rather than complain."""
    try:
        index = json.loads((folder / _INDEX).read_text(encoding="utf-8"))
        parts = [name for name, entry in index.items() if isinstance(entry, list) and any(entry)]
    except (OSError, ValueError, AttributeError) as error:
        raise AccelError(f"{folder} is not a diffusers pipeline: its {_INDEX} cannot be read ({error})") from None
    if missing := [name for name in parts if name not in given and not (folder / name).is_dir()]:
        raise AccelError(f"{folder} is incomplete: it has no folder {', '.join(missing)}; copy or save it again")

"""Loading a pipeline by name, folder or hub id, with the plan stored beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from accel import tiny
from accel.errors import AccelError
from accel.handle import accelerate
from accel.plan import Plan

PLAN_FILE = "plan.json"
"""A plan of this name in a pipeline's folder is attached when the folder is loaded."""


def load(source: str | Path, plan: Any = None, **from_pretrained: Any) -> Any:
    """Load a pipeline and attach a plan.

    ``source`` is the name of a bundled pipeline (``"tiny"``), a folder in diffusers format, or a hub id
    (``"owner/name"``), which is the only case that uses the network. ``plan`` defaults to the one stored in the folder
    as ``plan.json``, else to none. Keyword arguments go to ``DiffusionPipeline.from_pretrained``.
    """
    from diffusers import DiffusionPipeline  # heavy: not at import time

    folder = _folder(source)
    pipe = DiffusionPipeline.from_pretrained(str(folder or source), **from_pretrained)
    if plan is None and folder and (folder / PLAN_FILE).exists():
        plan = Plan.load(folder / PLAN_FILE)
    if plan is not None:
        accelerate(pipe, plan)
    return pipe


def _folder(source: str | Path) -> Path | None:
    """The local folder of ``source``, ``None`` for a hub id; raises `AccelError` for what can be neither."""
    if source in tiny.names():
        return tiny.path(str(source))
    folder = Path(source).expanduser()
    if folder.is_dir():
        if not (folder / "model_index.json").exists():
            raise AccelError(f"{folder} is not a diffusers pipeline: it has no model_index.json")
        return folder
    owner, _, name = str(source).partition("/")
    if isinstance(source, Path) or not name or "/" in name or owner in ("", ".", "..", "~"):
        bundled = ", ".join(tiny.names())
        raise AccelError(
            f"no pipeline {source}: it is neither bundled ({bundled}) nor a folder nor a hub id (owner/name)"
        )
    return None

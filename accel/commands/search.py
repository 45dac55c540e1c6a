"""``accel search``: draw a prompt from several noises and keep the picture that a verifier likes best."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path
from typing import Any

from accel import console, pictures, tiny
from accel.commands.bench import call_arguments
from accel.errors import AccelError
from accel.staging import output_folder

READER = "reader"
"""The verifier of the bundled pipelines, which knows what their prompts state."""


def run(options: argparse.Namespace) -> int:
    """Search, write ``best.png`` and ``report.json`` into ``--out``, and say what it cost and what won."""
    if not options.prompt.strip():
        raise AccelError("the prompt is empty: say what to draw, for example 'two green squares and a red star'")
    folder = Path(options.out).expanduser()
    with output_folder(folder) as stage, console.quiet_libraries():
        found = _search(options)
        files = _save(found, stage)
        document = {"model": options.model, "prompt": options.prompt, "steps": options.steps, **_told(found)}
        (stage / "report.json").write_text(json.dumps(document | {"files": files}, indent=2) + "\n", encoding="utf-8")
    print(found)
    if found.seed is not None:
        print(f"it begins from the noise of seed {found.seed}: accel generate takes it as --seed")
    print(f"wrote {', '.join([*files, 'report.json'])} to {folder}")
    return 0


def _search(options: argparse.Namespace) -> Any:
    from accel.commands import drawing  # torch and diffusers: not for `accel --help`
    from accel.schedulers.search import search
    from accel.schedulers.search.drawing import Prune

    prune = None if options.keep is None else Prune(options.after, options.keep)
    pipe = drawing.open_pipeline(options.model, options.device, options.dtype)
    drawing.set_solver(pipe, options.solver)
    drawing.check(pipe, drawing.Request(options.prompt, options.steps, guidance=options.guidance, size=options.size))
    pipe.set_progress_bar_config(disable=True)
    return search(
        pipe,
        options.prompt,
        _verifier(options, pipe.device),
        candidates=options.candidates,
        method=options.method,
        steps=options.steps,
        seed=options.seed,
        prune=prune,
        batch=options.batch,
        compare=options.compare,
        call=call_arguments(options),
    )


def _verifier(options: argparse.Namespace, device: Any) -> Any:
    """Who judges: the bundled reader, a function, or a CLIP model."""
    from accel.schedulers.search.captions import scene_of
    from accel.schedulers.search.verifiers import Clip, Facts

    name = options.verifier or (READER if options.model in tiny.names() else None)
    if name is None:
        raise AccelError(
            f"say who judges the pictures of {options.model} with --verifier: a CLIP folder, or pkg:function"
        )
    if name == READER:
        return Facts(scene_of(options.prompt))
    if ":" in name and not Path(name).expanduser().exists():
        return _function(name)
    return Clip(name, device)


def _function(name: str) -> Any:
    """``pkg.module:function``."""
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, ValueError, AttributeError) as error:
        raise AccelError(f"--verifier {name} cannot be imported: {error}; is its folder in PYTHONPATH?") from None
    if not callable(found):
        raise AccelError(f"--verifier {name} is no function of pictures and a prompt")
    return found


def _save(found: Any, stage: Path) -> list[str]:
    files = pictures.save(found.picture[None], stage, "best")
    if found.more_steps is not None:
        files += pictures.save(found.more_steps.picture[None], stage, "more-steps")
    if found.seed is None and found.noise is not None:  # no seed alone draws it again
        from safetensors.torch import save_file

        save_file({"latents": found.noise.contiguous()}, stage / "noise.safetensors")
        files.append("noise.safetensors")
    return files


def _told(found: Any) -> dict[str, Any]:
    """What was found, JSON-ready."""
    plain = ("score", "seed", "scores", "dropped", "evaluations", "progress")
    told = {name: getattr(found, name) for name in plain}
    more = found.more_steps
    return told | {"more_steps": None if more is None else {"steps": more.steps, "score": more.score}}

"""``accel difficulty``: does the prompt tell how many steps it needs? Collect, train, and judge against constants."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from accel import console
from accel.commands.bench import BUNDLED, call_arguments, prompts_and_judge
from accel.staging import kept_folder

RESULTS = "evaluation.json"


def run(options: argparse.Namespace) -> int:
    """Do one of the three parts in the folder given."""
    with console.quiet_libraries():
        return {"collect": _collect, "train": _train, "evaluate": _evaluate}[options.action](options)


def _collect(options: argparse.Namespace) -> int:
    """Draw every prompt with every step count and several noises; broken off, it goes on."""
    from accel.commands import drawing  # torch and diffusers: not for `accel --help`
    from accel.schedulers.difficulty.collect import Study, collect

    folder = kept_folder(options.out)
    prompts, judge = prompts_and_judge(options)
    pipe = drawing.open_pipeline(options.model, options.device, options.dtype)
    pipe.set_progress_bar_config(disable=True)
    study = Study(
        prompts=prompts,
        groups=_groups(options),
        counts=options.counts,
        seeds=options.seeds,
        reference=options.reference,
        solver=options.solver,
        seed=options.seed,
        batch=options.batch,
        call=call_arguments(options),
    )
    with console.progress() as progress:
        curves = collect(pipe, study, folder, judge, progress)
    for steps, quality in zip(curves.counts, curves.psnr.mean((0, 1)), strict=True):
        print(f"{steps:4d} steps: {quality:.1f} dB to the run of {study.reference}")
    print(f"wrote the curves to {folder}: next, accel difficulty evaluate {folder}")
    return 0


def _train(options: argparse.Namespace) -> int:
    from accel.schedulers.difficulty.curves import Curves
    from accel.schedulers.difficulty.training import train

    model = train(Curves.load(Path(options.folder)), options.goal)
    out = kept_folder(options.out or options.folder)
    model.save(out)
    print(f"wrote the predictor to {out}; it can promise up to {model.highest_target:.1%} good pictures")
    return 0


def _evaluate(options: argparse.Namespace) -> int:
    from accel.schedulers.difficulty.curves import Curves
    from accel.schedulers.difficulty.evaluate import evaluate

    found = evaluate(Curves.load(Path(options.folder)), options.goal)
    print(found)
    file = kept_folder(options.folder) / RESULTS
    file.write_text(json.dumps(found.to_dict()) + "\n", encoding="utf-8")
    print(f"wrote {file}")
    return 0


def _groups(options: argparse.Namespace) -> list[str]:
    """Of bundled prompts what they are made of, which is what must not be on both sides of a split."""
    if options.prompts != BUNDLED:
        return []
    from accel.tiny.judging import mixed

    scenes: list[Any] = mixed(options.n)
    return [scene.composition for scene in scenes]

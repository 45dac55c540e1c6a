"""Watching plain runs: what calibrations have in common, whatever they look at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch

from accel.calls import Call, Proceed
from accel.clock import Clock
from accel.errors import AccelError
from accel.handle import check_plain, native_caches
from accel.report import Recorder
from accel.target import Target
from accel.technique import Detach
from accel.tensors import Tree

Prompt = str | Mapping[str, Any]
"""A prompt, or the arguments of one call of the pipeline: embeddings, a class label, a starting picture, …"""


def watch(
    target: Target,
    attach: Callable[[Clock], Detach],
    prompts: Sequence[Prompt],
    steps: int,
    seed: int = 0,
    call: Mapping[str, Any] | None = None,
) -> None:
    """Draw each prompt plainly, up to the latents, while what ``attach`` installs looks on.

    The noise of prompt ``i`` is that of ``seed + i``. Raises `AccelError` when there is nothing to draw, the pipeline
    is not plain or refuses a call, or its loop cannot be followed.
    """
    if isinstance(prompts, str) or not prompts:
        raise AccelError("there is nothing to calibrate on: give a list of at least one prompt")
    check_plain(target.pipe)
    if problems := native_caches(target):
        raise AccelError(problems[0])
    recorder = Recorder(type(target.pipe).__name__, "calibration")
    clock = Clock(target, recorder)
    with ExitStack() as undo:
        undo.callback(clock.attach())
        undo.callback(attach(clock))
        for index, prompt in enumerate(prompts):
            _draw(target.pipe, prompt, seed + index, steps, call or {})
            _check_followed(recorder)


def unchanged(call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
    """Stands around a denoiser call and does nothing."""
    return proceed(*args, **kwargs)


def _draw(pipe: Any, prompt: Prompt, seed: int, steps: int, call: Mapping[str, Any]) -> None:
    takes = inspect.signature(pipe.__call__).parameters
    usual = {"generator": torch.Generator().manual_seed(seed), "output_type": "latent"}  # the decoder is not measured
    own = {"prompt": prompt} if isinstance(prompt, str) else prompt
    given = {key: value for key, value in usual.items() if key in takes} | {**call, **own}
    try:
        pipe(**given | {"num_inference_steps": steps})
    except torch.OutOfMemoryError:
        raise AccelError("not enough memory to keep outputs for: try fewer kinds, or a smaller lookahead") from None
    except AccelError:
        raise
    except (ValueError, TypeError) as error:
        raise AccelError(f"{type(pipe).__name__} cannot draw this: {error}") from error


def _check_followed(recorder: Recorder) -> None:
    report = recorder.report
    if report.aborted or not report.steps_run == report.steps_planned > 0:
        declined = [reason for part in report.techniques.values() for reason in part.declined]
        reason = "; ".join(declined) or f"{report.steps_run} of {report.steps_planned} steps were seen"
        raise AccelError(f"the pipeline's loop could not be followed ({reason}): nothing was measured")

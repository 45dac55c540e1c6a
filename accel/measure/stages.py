"""Where a run's time goes: text encoder, denoiser, decoder, and everything between them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

from torch import nn

from accel.measure.timing import synchronise
from accel.target import Target

REST = "rest"
"""Solver steps, guidance, and whatever else a pipeline does in Python."""


def split(pipe: Any, run: Callable[[], object]) -> dict[str, float]:
    """Seconds of ``run()`` by stage; they add up to the whole.

    Stages are named after the pipeline's components (``text_encoder``, ``unet``, …); of an autoencoder its
    ``encoder`` and ``decoder`` count. What happens inside one stage counts there, even where it calls another. A GPU is
    waited for at every border, so the whole takes a little longer than it would alone.
    """
    seconds: dict[str, float] = {}
    open_stages: list[str] = []
    began = [0.0]

    def enter(name: str) -> None:
        if not open_stages:
            synchronise()
            began[0] = time.perf_counter()
        open_stages.append(name)

    def leave() -> None:
        name = open_stages.pop()
        if not open_stages:
            synchronise()
            seconds[name] = seconds.get(name, 0.0) + time.perf_counter() - began[0]

    with ExitStack() as undo:
        for name, module in _stages(pipe):
            undo.callback(module.register_forward_pre_hook(lambda *_, name=name: enter(name), prepend=True).remove)
            undo.callback(module.register_forward_hook(lambda *_: leave(), always_call=True).remove)
        synchronise()
        start = time.perf_counter()
        run()
        synchronise()
        whole = time.perf_counter() - start
    return {**seconds, REST: whole - sum(seconds.values())}


def _stages(pipe: Any) -> Iterator[tuple[str, nn.Module]]:
    yield from ((denoiser.name, denoiser.module) for denoiser in Target.of(pipe).denoisers)
    for name, component in pipe.components.items():
        if isinstance(component, nn.Module) and name.startswith(("text_encoder", "image_encoder")):
            yield name, component
        elif isinstance(component, nn.Module) and name.startswith(("vae", "vqvae", "movq")):
            yield from (
                (f"{name}.{part}", child) for part, child in component.named_children() if part.endswith("coder")
            )

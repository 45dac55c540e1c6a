"""``torch.compile`` of the denoiser, before and after accelerating: the picture is that of the plan uncompiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import accel
from accel.contract.bench import Bench
from tests.contract.plans import PLANS
from tests.contract.support import draw, fresh
from tests.families import case

PLAN = PLANS["deepcache(warm_up=2) + guidance(interval=3, warm_up=2)"]
CLOSE = {"atol": 1e-4, "rtol": 0.0}
"""Dynamo traces Python arithmetic on scalars into tensors, which rounds once more."""


def _replace(pipe: Any, part: str) -> None:
    setattr(pipe, part, torch.compile(getattr(pipe, part), backend="eager"))


def _in_place(pipe: Any, part: str) -> None:
    getattr(pipe, part).compile(backend="eager")


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Compiled code and recompile counts are global."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.slow
@pytest.mark.parametrize("compile_denoiser", [_replace, _in_place])
@pytest.mark.parametrize("compiled_first", [True, False])
def test_compiled_transformer(compile_denoiser: Callable[[Any, str], None], compiled_first: bool) -> None:
    name = "pixart"
    pipe = case(name).build()
    plain = draw(name, pipe)
    if compiled_first:
        compile_denoiser(pipe, "transformer")
        torch.testing.assert_close(draw(name, pipe), plain, **CLOSE)  # compiled code exists before the hooks do
    with accel.accelerate(pipe, PLAN) as handle:
        if not compiled_first:
            compile_denoiser(pipe, "transformer")
        for _ in range(2):
            torch.testing.assert_close(draw(name, pipe), fresh(name, PLAN), **CLOSE)
            report = handle.report()
            assert (report.techniques["deepcache"].strip, report.techniques["guidance"].strip) == ("##.#", "##..")
            assert report.rows_computed == 6
    torch.testing.assert_close(draw(name, pipe), plain, **CLOSE)


@pytest.mark.slow
def test_compiled_unet() -> None:
    name = "sd-plain"
    pipe = case(name).build()
    plan = PLANS["deepcache(warm_up=2)"]
    with accel.accelerate(pipe, plan) as handle:
        _replace(pipe, "unet")
        torch.testing.assert_close(draw(name, pipe), fresh(name, plan), **CLOSE)
        assert handle.report().predicted == 1


def test_denoiser_that_was_wrapped_is_found() -> None:
    """The wrapper of ``torch.compile`` is looked through; attaching compiles nothing."""
    pipe = case("pixart").build()
    inner = pipe.transformer
    _replace(pipe, "transformer")
    bench = Bench(pipe, PLAN, lambda p, steps: draw("pixart", p, steps=steps), 4)
    assert bench.modules["transformer"] is inner

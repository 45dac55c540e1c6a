"""What a plan keeps is freed when the run ends, however it ends, and the report's bytes are real bytes."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import accel
from tests.contract.plans import PLANS
from tests.contract.support import bench, draw, may_save_nothing
from tests.families import case

VARIED = [PLANS[text] for text in PLANS if "+" in text]


def _tensors_alive() -> int:
    """Counted by the garbage collector, which knows nothing of reports."""
    gc.collect()
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


class Stop(Exception):
    """Raised by a step callback."""


def _stop_late(pipe: Any, step: int, *_: Any) -> dict[str, Any]:
    if step == 2:
        raise Stop
    return {}


@pytest.mark.parametrize("plan", VARIED, ids=[str(plan) for plan in VARIED])
def test_no_tensor_outlives_its_run(plan: Any) -> None:
    pipe = case("wan").build()
    draw("wan", pipe)
    with may_save_nothing(), accel.accelerate(pipe, plan) as handle:
        draw("wan", pipe)
        before = _tensors_alive()
        draw("wan", pipe)
        assert _tensors_alive() == before
        with pytest.raises(Stop):
            draw("wan", pipe, callback_on_step_end=_stop_late)
        assert handle.report().cache_bytes == 0 < handle.report().cache_bytes_peak
        draw("wan", pipe)  # also frees what the solver itself kept of the broken run
        assert _tensors_alive() == before


def test_peak_is_counted_in_bytes() -> None:
    """Linear extrapolation keeps the last two outputs: two rows of 64 tokens with 32 channels of 4 bytes each."""
    subject = bench("pixart")
    with subject.attached(PLANS["deepcache(warm_up=2)"]) as handle:
        draw("pixart", subject.pipe)
        assert handle.report().cache_bytes_peak == 2 * (2 * 64 * 32 * 4)
        draw("pixart", subject.pipe, batch=3)
        assert handle.report().cache_bytes_peak == 2 * (6 * 64 * 32 * 4)

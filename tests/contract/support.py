"""Shared pipelines, shared plain runs, and the outputs of fresh pipelines to compare with."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

import accel
from accel import AccelWarning, Plan
from accel.contract.bench import Bench
from tests.contract.plans import PLANS
from tests.families import case, run


def steps_of(name: str) -> int:
    """As few steps as leave each setting something to predict."""
    if name == "wan-two-experts":
        return 8  # each expert sees half of them
    return 6 if name.endswith(("img2img", "inpaint")) else 4  # of six, a strength of 0.7 leaves four


@cache
def bench(name: str) -> Bench:
    """The case's pipeline, built once; runs and plans leave nothing on it, as the tests prove."""
    return Bench(case(name).build(), Plan(), lambda pipe, steps: run(case(name), pipe, steps=steps), steps_of(name))


def draw(name: str, pipe: Any, **kw: Any) -> torch.Tensor:
    """Run ``pipe`` on the case's inputs, by default with `steps_of` steps."""
    return run(case(name), pipe, **{"steps": steps_of(name), **kw})


@contextmanager
def may_save_nothing() -> Iterator[None]:
    """For runs in which a technique has nothing to do on purpose."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccelWarning)
        yield


@cache
def _fresh(name: str, plan: str, settings: tuple[tuple[str, Any], ...]) -> torch.Tensor:
    pipe = case(name).build()
    with may_save_nothing(), accel.accelerate(pipe, PLANS[plan]):
        return draw(name, pipe, **dict(settings))


def fresh(name: str, plan: Plan, **kw: Any) -> torch.Tensor:
    """The output of a pipeline that was built, accelerated and run just for this."""
    return _fresh(name, str(plan), tuple(sorted(kw.items())))


def same(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    """Have both the same bits, and are they numbers?"""
    return bool(got.isfinite().all()) and torch.equal(got, wanted)

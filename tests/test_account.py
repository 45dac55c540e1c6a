"""The executor's account of a run, held against the operations that really ran."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import accel
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.measure.flops import Flops, count
from accel.report import Report
from accel.target import Target
from accel.technique import Technique

STEPS = 6


@cache
def pipeline():
    pipe = accel.load("tiny")
    pipe.set_progress_bar_config(disable=True)
    return pipe


def measured(*techniques: Technique) -> tuple[Flops, Report]:
    """Operations of one picture, and the report of the run."""
    pipe = pipeline()

    def draw() -> None:
        generator = torch.Generator().manual_seed(0)
        pipe("a red star", num_inference_steps=STEPS, generator=generator, output_type="latent")

    with accel.accelerate(pipe, list(techniques)) as handle:
        return count(draw), handle.report()


def denoiser(flops: Flops) -> int:
    return flops.modules[type(pipeline().unet).__name__]


def region() -> int:
    """Operations of the deep part in all steps of a plain run."""
    plain, _ = measured(DeepCache(warm_up=STEPS))
    unet, site = pipeline().unet, Target.of(pipeline()).denoisers[0].region(1)
    own = next(name for name, module in unet.named_modules() if module is site.module)
    return sum(plain.modules[f"{type(unet).__name__}.{name}"] for name in [*(n for n, _ in site.interior), own])


@pytest.mark.filterwarnings("ignore::accel.AccelWarning")  # the plain run saves nothing, on purpose
def test_operations_fall_by_what_the_report_says_was_predicted():
    plain, _ = measured(DeepCache(warm_up=STEPS))
    fewer, report = measured(DeepCache(interval=2, warm_up=2))
    cells = report.techniques["deepcache"]
    assert cells.predicted == 2 and cells.computed == 4
    expected = plain.total - region() * cells.predicted / STEPS
    assert fewer.total == pytest.approx(expected, rel=0.01)
    assert fewer.total < 0.9 * plain.total


@pytest.mark.filterwarnings("ignore::accel.AccelWarning")
def test_operations_fall_with_the_rows_that_the_report_says_were_computed():
    plain, _ = measured(DeepCache(warm_up=STEPS))
    fewer, report = measured(GuidanceCache(interval=2, warm_up=2))
    assert (report.rows_computed, report.rows) == (10, 12)
    assert denoiser(fewer) == pytest.approx(denoiser(plain) * report.rows_computed / report.rows, rel=0.01)

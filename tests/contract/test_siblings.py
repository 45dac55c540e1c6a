"""Pipelines that share a denoiser and a scheduler, or only a class, never feel each other's plans."""

from __future__ import annotations

import copy

import pytest
from diffusers import StableDiffusionPipeline

import accel
from accel.contract.isolation import second_pipeline
from accel.contract.trace import differences, trace
from tests.contract.plans import PLANS
from tests.contract.support import bench, draw, fresh, may_save_nothing, same
from tests.families import case

FIRST = PLANS["deepcache(warm_up=2)"]
SECOND = PLANS["tgate(gate=2)"]


@pytest.mark.parametrize("first_goes_first", [True, False])
@pytest.mark.parametrize("name", ["pixart", "wan"])
def test_two_plans_over_one_denoiser(name: str, first_goes_first: bool) -> None:
    """Each pipeline follows its own plan, whoever came first and whoever leaves first."""
    one = case(name).build()
    plain = draw(name, one)
    other = second_pipeline(one)
    before = trace(one)
    handles = [accel.accelerate(one, FIRST), accel.accelerate(other, SECOND)]
    for _ in range(2):
        assert same(draw(name, one), fresh(name, FIRST))
        assert same(draw(name, other), fresh(name, SECOND))
    stays, goes = (other, 0) if first_goes_first else (one, 1)
    handles[goes].remove()
    wanted = fresh(name, SECOND if first_goes_first else FIRST)
    assert same(draw(name, stays), wanted)
    assert same(draw(name, one if stays is other else other), plain)
    handles[1 - goes].remove()
    assert differences(before, trace(one)) == []
    assert same(draw(name, one), plain) and same(draw(name, other), plain)


@pytest.mark.parametrize("goes", [0, 1, 2])
def test_three_plans_on_one_pipeline_leave_in_any_order(goes: int) -> None:
    """They work together as they would in one plan, and come off in any order without taking each other along."""
    pipe = case("pixart").build()
    plain, before = draw("pixart", pipe), trace(pipe)
    parts = [PLANS["deepcache(warm_up=2)"], PLANS["guidance(warm_up=2)"], PLANS["tgate(gate=2)"]]
    with accel.accelerate(pipe, parts) as together:
        wanted, predicted = draw("pixart", pipe), together.report().predicted
    handles = [accel.accelerate(pipe, part) for part in parts]
    assert same(draw("pixart", pipe), wanted)
    assert sum(handle.report().predicted for handle in handles) == predicted
    handles.pop(goes).remove()
    draw("pixart", pipe)
    assert all(handle.report().predicted for handle in handles)
    while handles:
        handles.pop(0).remove()
    assert differences(before, trace(pipe)) == []
    assert same(draw("pixart", pipe), plain)


def test_text_to_image_beside_image_to_image() -> None:
    """Another class over the same UNet and scheduler, also while a run of the first lies broken."""
    start = case("sd-img2img").build()
    text = StableDiffusionPipeline(**start.components, requires_safety_checker=False)
    text.set_progress_bar_config(disable=True)
    plain = draw("sd-plain", text, steps=4)
    with accel.accelerate(start, FIRST) as handle:

        def stop(pipe: object, step: int, *_: object) -> dict:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            draw("sd-img2img", start, callback_on_step_end=stop)
        assert same(draw("sd-plain", text, steps=4), plain)
        assert handle.report().steps_run == 1
        assert same(draw("sd-img2img", start), fresh("sd-img2img", FIRST))


def test_second_pipeline_of_the_class_is_untouched() -> None:
    one, other = case("pixart").build(), case("pixart").build()
    before = trace(other)
    with accel.accelerate(one, FIRST):
        assert differences(before, trace(other)) == []
        assert same(draw("pixart", other), bench("pixart").plain)


def test_copied_scheduler_is_independent() -> None:
    """Pipelines copy schedulers and drive the copies apart; a copy must not move the original's clock."""
    pipe = case("wan").build()
    with accel.accelerate(pipe, FIRST) as handle:
        copied = copy.deepcopy(pipe.scheduler)
        assert copied.step.__self__ is copied.set_timesteps.__self__ is copied
        copied.set_timesteps(3)
        assert len(pipe.scheduler.timesteps) != 3

        def count_on(other: object, step: int, *_: object) -> dict:
            copied.set_timesteps(3)
            return {}

        assert same(draw("wan", pipe, callback_on_step_end=count_on), fresh("wan", FIRST))
        assert handle.report().steps_run == 4


def test_scheduler_state_may_be_copied_and_restored() -> None:
    """Pipelines of several views save the ``__dict__`` of one scheduler and put it back."""
    pipe = case("wan").build()
    with accel.accelerate(pipe, FIRST) as handle:
        pipe.scheduler.__dict__.update(copy.deepcopy(pipe.scheduler.__dict__))
        assert same(draw("wan", pipe), fresh("wan", FIRST))
        assert handle.report().steps_run == 4
    assert not {"step", "set_timesteps"} & vars(pipe.scheduler).keys()


def test_scheduler_swapped_after_accelerating() -> None:
    """The clock follows the pipeline to its new scheduler, and leaves the old one clean."""
    pipe = case("pixart").build()
    with accel.accelerate(pipe, FIRST) as handle, may_save_nothing():
        draw("pixart", pipe)
        old, pipe.scheduler = pipe.scheduler, copy.deepcopy(case("pixart").build().scheduler)
        for _ in range(2):
            assert same(draw("pixart", pipe), fresh("pixart", FIRST))
            assert handle.report().predicted > 0
        assert not {"step", "set_timesteps"} & vars(old).keys()
        new = pipe.scheduler
    assert not {"step", "set_timesteps"} & vars(new).keys()

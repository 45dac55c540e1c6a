"""What is read off a denoiser's calls: rows, the order of guidance halves, adapters, step boundaries."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import accel
from accel.caches.deepcache import DeepCache
from accel.halves import conditional_first
from accel.tensors import height
from tests.families import case, run


def _halves(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(uncond, cond) as a trained denoiser gives them: nearly alike."""
    both = torch.randn(2, *shape)
    return both[0], both[0] + 0.02 * both[1]


@pytest.mark.parametrize("scale", [1.0, 1.5, 7.5, 100.0])
@pytest.mark.parametrize("factor", [1.0, 0.7, -1.0])
def test_conditional_half_weighs_more(scale: float, factor: float) -> None:
    """Whatever the scale; also when the mixture is rescaled or negated, in half precision, and in a batch."""
    uncond, cond = _halves(3, 4, 8, 8)
    guided = factor * (uncond + scale * (cond - uncond))
    for dtype in (torch.float32, torch.bfloat16):
        assert conditional_first(torch.cat([uncond, cond]).to(dtype), guided.to(dtype)) is False
        assert conditional_first(torch.cat([cond, uncond]).to(dtype), guided.to(dtype)) is True


def test_learned_variance_is_left_out() -> None:
    uncond, cond = _halves(1, 8, 6, 6)
    guided = (uncond + 5 * (cond - uncond))[:, :4]
    assert conditional_first(torch.cat([cond, uncond]), guided) is True


def test_order_that_cannot_be_told() -> None:
    uncond, cond = _halves(1, 4, 8, 8)
    both, guided = torch.cat([uncond, cond]), 4 * cond - 3 * uncond
    for output, given in [
        (torch.cat([cond, cond]), cond),  # alike
        (both, torch.randn(1, 4, 8, 8)),  # no mixture
        (both, torch.zeros(1, 4, 8, 8)),
        (both * torch.nan, guided),
        (both, guided.flatten(2)),  # other shapes
        (both[:1], guided),
        (both, None),
    ]:
        assert conditional_first(output, given) is None


def test_rows_of_lists() -> None:
    """Z-Image's samples and outputs: a list has one row in each item, a tuple is several outputs."""
    tensor = torch.zeros(4, 1, 2)
    assert height(tensor) == height((None, tensor)) == height({"sample": tensor}) == 4
    assert height([tensor]) == height(([tensor],)) == 1
    assert height((None, torch.tensor(0.0))) == 1


def test_list_of_samples_is_counted_by_its_length() -> None:
    pipe = case("z-image").build()
    with accel.accelerate(pipe, DeepCache(warm_up=2)) as handle:
        run(case("z-image"), pipe, steps=4, batch=3)
        assert handle.report().rows == handle.report().rows_computed == 4 * 2 * 3
        assert handle.report().predicted == 1


@torch.no_grad()
def _loop(pipe: Any, calls: int) -> None:
    """Many views of one picture, and one solver step for all of them."""
    sample = torch.randn(1, 4, 8, 8, generator=torch.Generator().manual_seed(5))
    pipe.scheduler.set_timesteps(4)
    for t in pipe.scheduler.timesteps:
        for _ in range(calls):
            noise = pipe.unet(sample, t, encoder_hidden_states=torch.ones(1, 8, 32) / 4).sample
        sample = pipe.scheduler.step(noise, t, sample).prev_sample


def test_too_many_calls_in_a_step_are_told_with_the_way_out() -> None:
    pipe = case("sd-plain").build()
    with accel.accelerate(pipe, DeepCache(warm_up=2)) as handle:
        _loop(pipe, calls=8)
        assert "clock" not in handle.report().techniques
        _loop(pipe, calls=10)
        (reason, count), *_ = handle.report().techniques["clock"].declined.items()
        assert count == 4 * 2
        assert reason.startswith(
            "unet was called more than 8 times before pipe.scheduler (DDIMScheduler) took a step, further calls ran "
            "plainly: if the loop steps another scheduler object, make it pipe.scheduler; if"
        )

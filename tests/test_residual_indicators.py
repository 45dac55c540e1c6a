"""The indicators of residual caches, each against a direct computation of its formula."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import accel
from accel import AccelError, AccelWarning
from accel.caches.dynamic.calibrate import calibrate_ratios
from accel.caches.dynamic.judge import Judge, Limits, change
from accel.caches.dynamic.magnitudes import cells, resampled
from accel.caches.dynamic.spectrum import filtered, gain, space
from accel.caches.dynamic.technique import ResidualCache
from accel.caches.past import Past
from accel.caches.table import Row
from accel.contract.trace import differences, trace
from accel.report import Recorder
from accel.runs import Run
from tests.contract.support import may_save_nothing
from tests.families import case, run
from tests.toy import ToyPipeline, draw, sample, toy

# --- the filter ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ratio, power", [(0.5, 2.0), (3.0, 3.0)])
def test_gain_is_that_of_a_wiener_filter_for_a_power_law(ratio: float, power: float) -> None:
    height, width = 4, 6
    signal = torch.empty(height, width)
    for i, j in itertools.product(range(height), range(width)):
        frequency = math.hypot(min(i, height - i) / height, min(j, width - j) / width)
        signal[i, j] = max(frequency, 1 / width) ** -power
    signal /= signal.mean()
    wanted = signal / (signal + ratio**2)
    torch.testing.assert_close(gain((height, width), ratio, power), wanted / wanted.mean())


def test_a_wave_is_multiplied_by_its_gain() -> None:
    i, j = torch.meshgrid(torch.arange(8.0), torch.arange(10.0), indexing="ij")
    wave = (2 * math.pi * (3 * i / 8 + 2 * j / 10)).cos()
    latent = torch.stack([wave, torch.ones(8, 10)])[None].half()
    factor = gain((8, 10), 1.3, 2.0)
    result = filtered(latent, (2, 3), 1.3, 2.0)
    assert result.dtype == torch.float32
    torch.testing.assert_close(result[0, 0], wave * factor[3, 2], atol=2e-3, rtol=0)
    torch.testing.assert_close(result[0, 1], torch.full((8, 10), factor[0, 0].item()), atol=1e-5, rtol=0)


def test_without_noise_everything_passes_and_in_noise_the_coarse() -> None:
    torch.testing.assert_close(gain((8, 8), 0.0, 2.0), torch.ones(8, 8))
    late, early = gain((16,), 0.3, 2.0), gain((16,), 30.0, 2.0)
    assert (early[1:9].diff() < 0).all() and early[1] / early[8] > 2 * late[1] / late[8]
    assert gain((8, 8), Run([9.0, 5.0], [math.inf, 1.0]).noise_over_signal[0], 2.0).isfinite().all()


def test_noise_levels_of_every_convention() -> None:
    times = [999.0, 500.0]
    assert Run(times, [1.0, 0.75], flow=True).noise_over_signal == pytest.approx([1000.0, 3.0])
    assert Run(times, [14.6, 0.75]).noise_over_signal == [14.6, 0.75]
    assert math.isnan(Run(times, [math.nan, math.nan]).noise_over_signal[1])


def test_channels_are_no_space() -> None:
    assert space((4, 32, 48), 4) == (1, 2)
    assert space((16, 5, 32, 48), 16) == (1, 2, 3)
    assert space((5, 16, 32, 48), 16) == (0, 2, 3)
    assert space((4096, 64), 64) == (0,)  # tokens
    assert space((64, 1024), 64) == (1,)  # sound
    assert space((64, 64), 64) == (0,)
    assert space((4, 32, 48), None) == (1, 2) and space((4096, 64), None) == (0,)


# --- changes and decisions -------------------------------------------------------------------------------------------


def test_change_is_a_ratio_of_sums() -> None:
    now = (torch.tensor([[1.0, 2.0]]), None, torch.tensor([[4.0]]), torch.tensor([[7]]))
    then = (torch.tensor([[2.0, 0.0]]), None, torch.tensor([[3.0]]), torch.tensor([[1]]))
    assert change(now, then).item() == pytest.approx((1 + 2 + 1) / (2 + 0 + 3))
    assert math.isnan(change(torch.ones(1, 2), torch.ones(1, 3)))
    assert math.isnan(change(torch.zeros(1, 2), torch.zeros(1, 2)))


def decisions(limits: Limits, values: list[list[float]], pictures: int) -> list[list[bool]]:
    """What is predicted at each step after the first, for rows whose indicator has these values step by step."""
    recorder = Recorder("Pipeline", "plan")
    recorder.run_began(len(values))
    judge, row = Judge(limits, Past(recorder)), Row("1" + "0" * len(values), "zero")
    keys = [("site", "0", number) for number in range(len(values[0]))]
    found = []
    for step, numbers in enumerate(values):
        seen = [torch.tensor([[number]]) for number in numbers]
        found.append(judge.decide(row, step, keys, pictures, seen, None)[0])
    return found[1:]


def test_first_block_compares_with_the_last_computed_step() -> None:
    values = [[10.0], [11.0], [11.9], [12.5], [12.6], [14.0]]
    assert decisions(Limits(0.2, 9), values, 1) == [[True], [True], [False], [True], [True]]
    assert decisions(Limits(0.2, 1), values, 1) == [[True], [False], [True], [False], [True]]


def test_accumulated_changes_are_those_from_step_to_step() -> None:
    """There and nearly back again is a small change to the last computed step, but a large sum."""
    values = [[10.0], [11.0], [10.1], [11.0], [10.1]]
    assert decisions(Limits(0.25, 9), values, 1) == [[True]] * 4
    assert decisions(Limits(0.25, 9, accumulates=True), values, 1) == [[True], [True], [False], [True]]


def test_a_polynomial_rescales_changes() -> None:
    """2 d + 0.1, the highest power first."""
    limits = Limits(0.5, 9, True, (2.0, 0.1))
    assert limits.measured(0.2) == pytest.approx(0.5) and Limits(1, 1).measured(0.2) == 0.2
    assert Limits(1, 1, True, (3.0, 0.0, 1.0)).measured(2.0) == 13.0
    values = [[10.0], [11.0], [11.0 * 1.05], [11.0 * 1.05**2]]
    assert decisions(limits, values, 1) == [[True], [False], [True]]


def test_rows_decide_for_their_picture() -> None:
    """Rows 0 and 2 are the halves of one picture, 1 and 3 of the other."""
    values = [[10.0, 10.0, 10.0, 10.0], [10.1, 10.1, 19.0, 10.1], [10.2, 10.2, 19.1, 10.2], [10.3, math.nan, 19.2, 1.0]]
    one, other = [False, True, False, True], [True, True, True, True]
    assert decisions(Limits(0.2, 9), values, 2) == [one, other, [True, False, True, False]]


# --- what they look at -----------------------------------------------------------------------------------------------

Look = Callable[[ToyPipeline, list[torch.Tensor]], Any]


def _first_block(pipe: ToyPipeline, seen: list[torch.Tensor]) -> Any:
    hook = lambda module, args, out: seen.append(out - args[0])  # noqa: E731
    return pipe.transformer.blocks[0].register_forward_hook(hook)


def _tea(pipe: ToyPipeline, seen: list[torch.Tensor]) -> Any:
    return pipe.transformer.blocks[0].attn.register_forward_pre_hook(lambda module, args: seen.append(args[0]))


def _sea(pipe: ToyPipeline, seen: list[torch.Tensor]) -> Any:
    """Eight tokens and six channels: filtered along the tokens."""

    def look(module: Any, args: Any) -> None:
        share = pipe.scheduler.sigmas[len(seen)].item()
        ratio = min(share / (1 - share), 1000.0) if share < 1 else 1000.0
        signal = torch.tensor([max(min(i, 8 - i) / 8, 1 / 8) ** -2.0 for i in range(8)])
        passed = signal / signal.mean() / (signal / signal.mean() + ratio**2)
        spectrum = torch.fft.fft(args[0], dim=1) * (passed / passed.mean())[None, :, None]
        seen.append(torch.fft.ifft(spectrum, dim=1).real)

    return pipe.transformer.register_forward_pre_hook(look)


@pytest.mark.parametrize("kind, look", [("first_block", _first_block), ("tea", _tea), ("sea", _sea)])
def test_the_first_decision_follows_the_formula(kind: str, look: Look) -> None:
    """With a threshold just above the change between the last two steps of the warm-up, and with one just below."""
    seen: list[torch.Tensor] = []
    pipe = toy()
    hook = look(pipe, seen)
    draw(pipe, sample(0), steps=5)
    hook.remove()
    moved = ((seen[2] - seen[1]).abs().sum() / seen[1].abs().sum()).item()
    assert moved > 0.01
    for factor, expected in ((1.001, "##.##"), (0.999, "#####")):
        settings = ResidualCache(indicator=kind, threshold=moved * factor, warm_up=2, end=2)
        with accel.accelerate(pipe, settings) as handle, may_save_nothing():
            draw(pipe, sample(0), steps=5)
            assert handle.report().techniques["residual"].strip == expected


@pytest.mark.parametrize("kind", ["first_block", "tea"])
def test_in_a_unet_they_look_at_what_goes_down(kind: str) -> None:
    seen: list[torch.Tensor] = []
    pipe = case("sd-plain").build()
    sampler = pipe.unet.down_blocks[0].downsamplers[0]
    hook = sampler.register_forward_pre_hook(lambda module, args: seen.append(args[0].clone()))
    run(case("sd-plain"), pipe, steps=5)
    hook.remove()
    moved = ((seen[2] - seen[1]).abs().sum() / seen[1].abs().sum()).item()
    for factor, expected in ((1.001, "##.##"), (0.999, "#####")):
        settings = ResidualCache(indicator=kind, threshold=moved * factor, warm_up=2, end=2)
        with accel.accelerate(pipe, settings) as handle, may_save_nothing():
            run(case("sd-plain"), pipe, steps=5)
            assert handle.report().techniques["residual"].strip == expected


def test_a_scheduler_without_noise_levels_is_said_to_have_none(monkeypatch: Any) -> None:
    monkeypatch.setattr(Run, "noise_over_signal", [math.nan] * 50)
    with accel.accelerate(toy(), ResidualCache(indicator="sea", threshold=99.0, warm_up=2)) as handle:
        with pytest.warns(AccelWarning, match="the scheduler tells no noise levels: use another indicator"):
            draw(handle.pipe, sample(0))


# --- MagCache --------------------------------------------------------------------------------------------------------


def test_cells_follow_the_summed_error() -> None:
    """Errors of steps 2, 3 and 4 after computing step 1: 0.1, 0.19 and 0.271, together 0.1, 0.29 and 0.561."""
    ratios = (1.0, *[0.9] * 9)
    assert cells(ratios, 0.3, 9, 2, 1) == "1100100101"
    assert cells(ratios, 0.6, 9, 2, 1) == "1100010001"
    assert cells(ratios, 0.3, 1, 2, 1) == "1101010101"
    assert cells(ratios, 0.05, 9, 2, 1) == "1" * 10
    assert cells((1.0, *[1.0] * 9), 0.0, 9, 2, 1) == "1" * 10
    assert cells((1.0, *[1.0] * 9), 1e-9, 9, 3, 2) == "1110000011"


def test_ratios_of_another_number_of_steps_span_the_same_drift() -> None:
    ratios = (1.0, 0.9, 0.8, 0.7, 0.6)
    assert resampled(ratios, 5) is ratios
    assert resampled(ratios, 3) == pytest.approx((1.0, 0.9 * 0.8, 0.7 * 0.6))
    nine = resampled(ratios, 9)
    assert math.prod(nine) == pytest.approx(math.prod(ratios))
    assert nine[1] == pytest.approx(0.9**0.5) and nine[8] == pytest.approx(0.6**0.5)
    assert resampled((1.0,), 3) == (1.0, 1.0, 1.0) and resampled(ratios, 1) == (1.0,)


def test_ratios_are_those_of_the_residuals() -> None:
    pipe = toy()
    sizes: list[list[float]] = []
    for prompt in ("a", "bcd"):
        given, out = [], []
        hooks = [
            pipe.transformer.blocks[1].register_forward_pre_hook(lambda m, args, g=given: g.append(args[0])),
            pipe.transformer.blocks[3].register_forward_hook(lambda m, args, y, o=out: o.append(y)),
        ]
        pipe(prompt, 6)
        sizes.append([(y - x).norm().item() for x, y in zip(given, out, strict=True)])
        [hook.remove() for hook in hooks]
    wanted = [1.0] + [sum(size[t] / size[t - 1] for size in sizes) / 2 for t in range(1, 6)]
    before = trace(pipe)
    assert calibrate_ratios(pipe, ["a", "bcd"], 6) == pytest.approx(wanted, abs=1e-4)
    assert differences(before, trace(pipe)) == []


@pytest.mark.parametrize("name", ["pixart", "wan-two-experts", "sd-plain"])
def test_calibrated_ratios_make_a_plan(name: str) -> None:
    """Measured with one number of steps, followed with another."""
    pipe = case(name).build()
    inputs = [{k: v for k, v in case(name).inputs(seed=seed).items() if k != "num_inference_steps"} for seed in (0, 1)]
    ratios = calibrate_ratios(pipe, inputs, 6)
    assert len(ratios) == 6 and ratios[0] == 1.0 and all(0.05 < ratio < 20 for ratio in ratios)
    assert name != "wan-two-experts" or ratios.count(1.0) == 2  # nothing to compare the second expert's first step with
    settings = ResidualCache(indicator="mag", ratios=ratios, threshold=1.0, warm_up=2, how="reuse")
    plain = run(case(name), pipe, steps=8)
    with accel.accelerate(pipe, settings) as handle:
        fast = run(case(name), pipe, steps=8)
        part = handle.report().techniques["residual"]
        assert part.predicted > 0 and fast.isfinite().all() and not torch.equal(fast, plain)
        wanted = cells(resampled(ratios, 8), 1.0, 2, 2, 1).replace("1", "#").replace("0", ".")
        assert part.strip == wanted or name == "wan-two-experts"  # whose second expert has to begin anew


def test_calibration_says_what_is_wrong() -> None:
    pipe = toy()
    with pytest.raises(AccelError, match="at least one prompt"):
        calibrate_ratios(pipe, [], 6)
    with pytest.raises(AccelError, match="no ratio was measured"):
        calibrate_ratios(pipe, ["a"], 1)
    with accel.accelerate(pipe, ResidualCache()), pytest.raises(AccelError, match="has a plan attached"):
        calibrate_ratios(pipe, ["a"], 6)
    for block in pipe.transformer.blocks:
        block.attn.to_q.weight.data.zero_()
        block.attn.to_q.bias.data.zero_()
    with pytest.raises(AccelError, match="the residuals vanish"):
        calibrate_ratios(pipe, ["a"], 6)


def test_many_ratios_are_summed_up_in_text() -> None:
    assert str(ResidualCache(indicator="mag", ratios=(1.0,) * 50)) == "residual(indicator=mag, ratios of 50 steps)"

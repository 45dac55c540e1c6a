"""What caches keep: rounded, moved to CPU memory, up to a budget; and that its bytes are told as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import accel
from accel import AccelError, AccelWarning, Plan, Report
from accel.caches import storing
from accel.caches.deepcache import DeepCache
from accel.caches.dynamic.technique import ResidualCache
from accel.caches.guidance import GuidanceCache
from accel.caches.past import Entry, Past
from accel.caches.predict import predict
from accel.caches.rehash import StepRehash
from accel.caches.storing import Storage, Store
from accel.contract import run_contract
from accel.report import Recorder
from tests.contract.support import bench, draw, same
from tests.families import case, run

MIB = 1 << 20
ROUNDED = 2.0**-8
"""Of bfloat16, which has eight bits: a value comes back within this share of itself."""


def stored(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> tuple[Past, Recorder]:
    """Where the values of a plan with these settings are kept."""
    recorder = Recorder("Pipeline", "plan")
    recorder.run_began(4)
    monkeypatch.setitem(storing._stores, recorder, Store(Storage(**settings)))
    return Past(recorder), recorder


def kept(past: Past, step: int, value: Any, key: str = "site", **kw: Any) -> None:
    past.keep(key, Entry(step, None, 4, value), order=2, **kw)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values are taken to be on a device that is not the CPU."""
    monkeypatch.setattr(storing, "_on_host", lambda tensor: False)


# --- values ----------------------------------------------------------------------------------------------------------


def test_bf16_halves_the_bytes_and_a_prediction_is_off_by_no_more_than_rounding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    past, recorder = stored(monkeypatch, store="bf16")
    values = [torch.randn(4, 100) * 3 for _ in range(2)]
    for step, value in enumerate(values):
        kept(past, step, value)
    assert recorder.report.cache_bytes == sum(value.nbytes for value in values) // 2
    weights = (1.75, -0.75)
    exact = predict(weights, list(enumerate(values)))
    guess = predict(weights, past.usable("site", None))
    assert guess.dtype == torch.float32
    bound = ROUNDED * (1.75 * values[1].abs() + 0.75 * values[0].abs()) * 1.0001
    assert ((guess - exact).abs() <= bound).all() and not torch.equal(guess, exact)


def test_only_what_is_longer_is_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    past, recorder = stored(monkeypatch, store="bf16")
    half, mask = torch.randn(4, 3).half(), torch.tensor([True, False, True, True])
    kept(past, 0, (half, mask, None))
    ((_, (half_again, mask_again, nothing)),) = past.usable("site", None)
    assert torch.equal(half_again, half) and torch.equal(mask_again, mask) and nothing is None
    assert recorder.report.cache_bytes == half.nbytes + mask.nbytes
    third = torch.full((4, 2), 1 / 3)
    kept(past, 0, third, "compared", exact=True)
    assert torch.equal(past.usable("compared", None)[0][1], third)


def test_rows_and_copies_are_those_of_any_storage(monkeypatch: pytest.MonkeyPatch) -> None:
    past, _ = stored(monkeypatch, store="bf16")
    value = torch.arange(8.0).reshape(4, 2)
    kept(past, 0, value)
    value.zero_()
    assert past.count("site", (1, 3)) == 1
    assert past.usable("site", (1, 3))[0][1].tolist() == [[2.0, 3.0], [4.0, 5.0]]


@pytest.mark.usefixtures("device")
def test_offloaded_bytes_are_told_apart_and_the_bits_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    past, recorder = stored(monkeypatch, offload=True)
    value = torch.randn(4, 10)
    for step in range(3):
        kept(past, step, value + step)
    report = recorder.report
    assert (report.cache_bytes, report.cache_bytes_peak) == (0, 0)
    assert report.offloaded_bytes == report.offloaded_bytes_peak == 2 * value.nbytes
    assert torch.equal(past.usable("site", None)[1][1], value + 2)
    past.clear()
    assert report.offloaded_bytes == 0
    report.steps_planned = 4
    assert "and 320 B in CPU memory" in str(report)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_keeps_nothing_of_what_is_offloaded() -> None:
    past = Past(recorder := Recorder("Pipeline", "plan"))
    recorder.run_began(4)
    storing._stores[recorder] = Store(Storage(offload=True, store="bf16"))
    value = torch.randn(4, MIB, device="cuda")
    before = torch.cuda.memory_allocated()
    kept(past, 0, value)
    assert torch.cuda.memory_allocated() == before
    ((_, again),) = past.usable("site", None)
    assert again.device == value.device and torch.equal(again, value.bfloat16().float())


def test_beyond_the_budget_a_site_is_given_up_for_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    past, recorder = stored(monkeypatch, budget=1)
    kept(past, 0, torch.zeros(4, MIB // 32))  # half a MiB
    kept(past, 0, torch.zeros(4, MIB // 32), "other")
    kept(past, 1, torch.zeros(4, MIB // 32), "other")  # one more would be too much: nothing old is predicted from
    assert (past.count("site", None), past.count("other", None)) == (1, 0)
    assert recorder.report.cache_bytes_peak == MIB
    kept(past, 2, torch.zeros(4, 1), "other")
    assert past.keys() == ["site"]
    recorder.run_ended(aborted=True)
    (reason,) = recorder.report.techniques["storage"].declined
    assert reason == "more than 1 MiB would be kept, so a site is computed: raise `budget`, or use store=bf16"
    past.clear()
    kept(past, 0, torch.zeros(4, 1), "other")  # the next run tries again
    assert past.count("other", None) == 1


@pytest.mark.parametrize("settings", [{"store": "fp8"}, {"offload": 1}, {"budget": 0}, {"budget": 1.5}])
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(AccelError, match=f"storage: {next(iter(settings))}"):
        Storage(**settings)


# --- pipelines -------------------------------------------------------------------------------------------------------

CACHES: dict[str, list[Any]] = {
    "sd": [DeepCache(warm_up=2), GuidanceCache(warm_up=2)],
    "wan": [ResidualCache(threshold=99.0, warm_up=2), GuidanceCache(warm_up=2)],
    "pixart": [StepRehash(warm_up=2)],
}


def under(name: str, plan: Any, **kw: Any) -> tuple[torch.Tensor, Report]:
    pipe = bench(name).pipe
    with accel.accelerate(pipe, plan) as handle:
        return draw(name, pipe, **kw), handle.report()


@pytest.mark.parametrize("name", CACHES)
def test_pipelines_keep_half_and_stay_close(name: str) -> None:
    plain = bench(name).plain
    usual, before = under(name, CACHES[name])
    rounded, after = under(name, [*CACHES[name], Storage("bf16")])
    assert after.predicted == before.predicted > 0
    assert after.cache_bytes == 0 < after.cache_bytes_peak < before.cache_bytes_peak
    if name != "wan":  # there the indicator's own values are compared, and kept as they are
        assert after.cache_bytes_peak == before.cache_bytes_peak // 2
    assert 0 < (rounded - usual).abs().max() < 0.1 * (usual - plain).abs().max() + 0.05 * plain.abs().max()
    again, _ = under(name, [Storage("bf16"), *CACHES[name]])
    assert same(again, rounded)


@pytest.mark.parametrize("name", CACHES)
def test_the_defaults_change_nothing(name: str) -> None:
    usual, before = under(name, CACHES[name])
    got, after = under(name, [*CACHES[name], Storage()])
    assert same(got, usual) and after.techniques.keys() == before.techniques.keys()


@pytest.mark.usefixtures("device")
def test_offloading_keeps_every_bit_of_a_picture() -> None:
    usual, before = under("sd", CACHES["sd"])
    got, after = under("sd", [*CACHES["sd"], Storage(offload=True)])
    assert same(got, usual)
    assert after.cache_bytes_peak == 0 and after.offloaded_bytes_peak == before.cache_bytes_peak
    assert after.offloaded_bytes == 0


def test_on_the_cpu_there_is_nothing_to_offload() -> None:
    _, report = under("sd", [*CACHES["sd"], Storage(offload=True)])
    assert list(report.techniques["storage"].declined) == [
        "the values are in CPU memory already: there is nothing to offload"
    ]
    assert report.offloaded_bytes_peak == 0 < report.cache_bytes_peak


def test_a_plan_that_keeps_nothing_is_told() -> None:
    _, report = under("sd", Storage("bf16"))
    assert list(report.techniques["storage"].declined) == ["no cache of this plan kept anything"]


def test_what_the_budget_leaves_no_room_for_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storing, "_MIB", 16)  # the tiny pipelines keep a few KiB
    with pytest.warns(AccelWarning, match="deepcache saved nothing"):
        got, report = under("sd", [DeepCache(warm_up=2), Storage(budget=1)])
    assert same(got, bench("sd").plain) and report.predicted == 0
    (reason,) = report.techniques["storage"].declined
    assert reason.startswith("more than 1 MiB would be kept, so a site is computed")


@pytest.mark.parametrize("name", ["sd", "wan"])
def test_contract(name: str) -> None:
    plan = Plan.of([*CACHES[name], Storage("bf16", budget=64)])
    pipe = case(name).build()
    checks = list(run_contract(pipe, plan, lambda p, steps: run(case(name), p, steps=steps), steps=4))
    assert len(checks) > 5 and [str(check) for check in checks if not check.passed] == []

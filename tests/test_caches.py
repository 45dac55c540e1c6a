"""Tables, predictors and what is kept for them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, WanVACETransformer3DModel

import accel
from accel.caches.deepcache import DeepCache
from accel.caches.past import Entry, Past
from accel.caches.predict import lagrange, predict
from accel.caches.table import Row, Table, every
from accel.errors import AccelError
from accel.report import Recorder
from accel.runs import Run
from tests.families import case
from tests.families.seeding import seed_weights


def values(row: Row, computed: list[int]) -> list[int]:
    """Steps whose value is kept when ``step`` after ``step`` runs and only these compute."""
    return [step for step in computed if row.keeps(step)]


def test_every_computes_the_warm_up_and_then_each_intervalth_step():
    assert every(2, 8, 3) == "11101010"
    assert every(3, 9, 2) == "110010010"
    assert every(1, 5, 1) == "11111"
    assert every(2, 3, 7) == "111"


def test_a_row_keeps_exactly_the_values_a_prediction_looks_at():
    assert values(Row("11101010", "linear"), [0, 1, 2, 4, 6]) == [1, 2, 4, 6]
    assert values(Row("11101011", "reuse"), [0, 1, 2, 4, 6, 7]) == [2, 4]
    assert values(Row("1111", "linear"), [0, 1, 2, 3]) == []
    assert values(Row("1100", "zero"), [0, 1]) == []
    assert values(Row("110100", "linear"), [2, 5]) == [2]  # cells that had to be computed after all


def test_steps_beyond_a_row_compute():
    assert not Row("10").predicts(5)


@pytest.mark.parametrize("cells, how", [("10x", "reuse"), ("10", "cubic")])
def test_a_row_refuses_what_it_does_not_know(cells, how):
    with pytest.raises(AccelError):
        Row(cells, how)


def test_a_table_survives_json_and_names_what_is_wrong():
    table = Table(4, {"cross_attn": Row("1100", "reuse")})
    assert Table.from_dict(table.to_dict()) == table
    with pytest.raises(AccelError, match="3 cells for 4 steps"):
        Table.from_dict({"steps": 4, "rows": {"ff": {"cells": "110"}}})
    with pytest.raises(AccelError, match="exactly the keys"):
        Table.from_dict({"steps": 4})
    with pytest.raises(AccelError, match="cells, how, axis and weights"):
        Table.from_dict({"steps": 1, "rows": {"ff": {"cell": "1"}}})


@pytest.mark.parametrize("how, degree", [("reuse", 0), ("linear", 1), ("quadratic", 2)])
def test_polynomials_are_exact_on_polynomials(how, degree):
    places = [900.0, 800.0, 650.0, 640.0]
    values = [
        (step, torch.full((2, 3), 5.0 - 0.25 * place**degree, dtype=torch.float64)) for step, place in enumerate(places)
    ]
    row = Row("1110", how)
    guess = predict(row.weigh(3, [0, 1, 2], places), values[:3])
    torch.testing.assert_close(guess, values[3][1])


def test_a_place_that_is_visited_twice_counts_once_with_its_newest_value():
    assert lagrange([500.0, 500.0], 400.0) == (1.0, 0.0)
    assert lagrange([600.0, 500.0, 500.0], 400.0) == (2.0, 0.0, -1.0)


def test_a_fitted_row_weighs_as_it_was_told():
    row = Row("1010", "fitted", weights=((0.9,), (1.5, -0.5)))
    assert [row.weigh(step, [0, 2], []) for step in (1, 3)] == [(0.9,), (1.5, -0.5)]
    assert (row.order(1), row.order(3), row.depth) == (1, 2, 2)
    assert values(row, [0, 2]) == [0, 2]
    past = [(0, torch.ones(2)), (2, torch.full((2,), 3.0))]
    torch.testing.assert_close(predict((1.5, -0.5), past), torch.full((2,), 4.0))
    assert Table.from_dict(Table(4, {"ff": row}).to_dict()).rows["ff"] == row


def test_a_fitted_row_needs_weights_for_every_predicted_cell_and_others_none():
    with pytest.raises(AccelError, match="2 lists of weights, not 1"):
        Row("1010", "fitted", weights=((0.9,),))
    with pytest.raises(AccelError, match="0 lists of weights, not 1"):
        Row("10", "linear", weights=((0.9,),))


def test_axes_follow_the_noise_levels_and_fall_back_on_the_times():
    run = Run([900.0, 500.0, 100.0], [8.0, 2.0, 0.5])
    assert run.along("time") == run.times and run.along("sigma") == run.sigmas
    assert run.along("logsnr") == pytest.approx([-2 * math.log(sigma) for sigma in run.sigmas])
    flow = Run([900.0, 500.0], [0.75, 0.5], flow=True)
    assert flow.along("logsnr") == pytest.approx([-2 * math.log(3.0), 0.0])
    late = Run([300.0, 100.0], [0.75, 0.5])  # image-to-image begins where there is less noise than signal
    assert late.along("logsnr") == pytest.approx([-2 * math.log(0.75), -2 * math.log(0.5)])
    assert Run([9.0, 5.0], [math.inf, 1.0]).along("logsnr") == pytest.approx([-2 * math.log(1000.0), 0.0])
    assert Run([9.0, 5.0], [math.nan, 1.0]).along("logsnr") == [9.0, 5.0]


@pytest.mark.parametrize("weights", [(1.0,), (1.5, -0.5)])
def test_a_prediction_never_shares_memory_with_what_is_kept(weights):
    kept = [(0, torch.zeros(3)), (1, torch.ones(3))]
    predict(weights, kept).fill_(torch.nan)
    assert torch.equal(kept[-1][1], torch.ones(3)) and torch.equal(kept[0][1], torch.zeros(3))


def test_a_prediction_keeps_the_structure_of_block_outputs():
    a, b, ids = torch.zeros(1, 2), torch.ones(1, 4), torch.arange(3)
    past = [(0, (a, b, None, ids)), (1, (a + 1, b + 1, None, ids))]
    hidden, text, nothing, same = predict((2.0, -1.0), past)
    assert nothing is None and torch.equal(same, ids)
    torch.testing.assert_close(hidden, a + 2)
    torch.testing.assert_close(text, b + 2)


def recorder() -> Recorder:
    made = Recorder("Pipeline", "plan")
    made.run_began(4)
    return made


def test_past_copies_counts_bytes_and_frees():
    account = recorder()
    past = Past(account)
    value = torch.ones(4, 8)
    for step in (0, 1, 2):
        past.keep("site", Entry(step, None, 4, value), order=2)
    value.zero_()
    assert [(step, kept.sum().item()) for step, kept in past.usable("site", None)] == [(1, 32.0), (2, 32.0)]
    assert account.report.cache_bytes == 2 * value.nbytes
    assert account.report.cache_bytes_peak == 2 * value.nbytes
    past.clear()
    assert account.report.cache_bytes == 0 and past.keys() == []


def test_past_hands_out_the_rows_that_are_being_computed():
    past = Past(recorder())
    past.keep("site", Entry(0, None, 4, torch.arange(4.0)), order=2)
    past.keep("site", Entry(1, (2, 4), 4, torch.tensor([20.0, 30.0])), order=2)
    assert [kept.tolist() for _, kept in past.usable("site", (2, 4))] == [[2.0, 3.0], [20.0, 30.0]]
    assert [kept.tolist() for _, kept in past.usable("site", None)] == [[0.0, 1.0, 2.0, 3.0]]
    assert [kept.tolist() for _, kept in past.usable("site", (0, 2))] == [[0.0, 1.0]]


def _vace() -> DiffusionPipeline:
    """Its control blocks are registered last, run first, and feed the others: they are no stretch of one stream."""
    pipe = case("wan").build()
    shape: dict[str, Any] = {"num_attention_heads": 2, "attention_head_dim": 12, "freq_dim": 16, "ffn_dim": 32}
    channels = {"in_channels": 4, "out_channels": 4, "vace_in_channels": 8, "text_dim": 32}
    model = WanVACETransformer3DModel(num_layers=4, vace_layers=[0, 2], rope_max_seq_len=32, **shape, **channels)
    pipe.transformer = seed_weights(model, 7).eval()
    return pipe


@torch.no_grad()
def _vace_loop(pipe: DiffusionPipeline) -> torch.Tensor:
    sample = torch.randn(1, 4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    steering = {"encoder_hidden_states": torch.ones(1, 8, 32) / 4, "control_hidden_states": torch.ones(1, 8, 1, 8, 8)}
    pipe.scheduler.set_timesteps(6)
    for t in pipe.scheduler.timesteps:
        noise = pipe.transformer(sample, t.expand(1), **steering, return_dict=False)[0]
        sample = pipe.scheduler.step(noise, t, sample, return_dict=False)[0]
    return sample


def test_a_region_that_others_listen_to_is_computed_and_reported():
    pipe = _vace()
    plain = _vace_loop(pipe)
    with accel.accelerate(pipe, DeepCache(warm_up=2)) as handle:
        with pytest.warns(accel.AccelWarning, match="listens to its inside"):
            assert torch.equal(_vace_loop(pipe), plain)
        part = handle.report().techniques["deepcache"]
        assert (part.computed, part.predicted, part.strip) == (6, 0, "######")
    with accel.accelerate(pipe, DeepCache(warm_up=2, blocks=(1, 3))) as handle:
        assert _vace_loop(pipe).isfinite().all()
        assert handle.report().predicted == 2

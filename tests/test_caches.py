"""Tables, predictors and what is kept for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, WanVACETransformer3DModel

import accel
from accel.caches.deepcache import DeepCache
from accel.caches.past import Entry, Past
from accel.caches.predict import predict
from accel.caches.table import Row, Table, every
from accel.errors import AccelError
from accel.report import Recorder
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
    with pytest.raises(AccelError, match="cells and how"):
        Table.from_dict({"steps": 1, "rows": {"ff": {"cell": "1"}}})


def test_linear_is_exact_on_a_line_and_reuse_on_a_constant():
    line = [(t, torch.full((2, 3), 5.0 - 0.25 * t, dtype=torch.float64)) for t in (900.0, 800.0)]
    expected = torch.full((2, 3), 5.0 - 0.25 * 640, dtype=torch.float64)
    torch.testing.assert_close(predict("linear", line, 640.0), expected)
    assert torch.equal(predict("reuse", line, 640.0), line[-1][1])


def test_linear_repeats_the_newest_value_when_a_time_is_visited_twice():
    past = [(500.0, torch.zeros(3)), (500.0, torch.ones(3))]
    assert torch.equal(predict("linear", past, 400.0), torch.ones(3))


@pytest.mark.parametrize("how", ["reuse", "linear"])
def test_a_prediction_never_shares_memory_with_what_is_kept(how):
    kept = [(2.0, torch.zeros(3)), (1.0, torch.ones(3))]
    predict(how, kept, 0.0).fill_(torch.nan)
    assert torch.equal(kept[-1][1], torch.ones(3))


def test_a_prediction_keeps_the_structure_of_block_outputs():
    a, b = torch.zeros(1, 2), torch.ones(1, 4)
    hidden, text, nothing = predict("linear", [(1.0, (a, b, None)), (0.5, (a + 1, b + 1, None))], 0.0)
    assert nothing is None
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
    for time in (3.0, 2.0, 1.0):
        past.keep("site", Entry(time, None, 4, value), order=2)
    value.zero_()
    assert [(time, kept.sum().item()) for time, kept in past.usable("site", None)] == [(2.0, 32.0), (1.0, 32.0)]
    assert account.report.cache_bytes == 2 * value.nbytes
    assert account.report.cache_bytes_peak == 3 * value.nbytes
    past.clear()
    assert account.report.cache_bytes == 0 and past.keys() == []


def test_past_hands_out_the_rows_that_are_being_computed():
    past = Past(recorder())
    past.keep("site", Entry(2.0, None, 4, torch.arange(4.0)), order=2)
    past.keep("site", Entry(1.0, (2, 4), 4, torch.tensor([20.0, 30.0])), order=2)
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

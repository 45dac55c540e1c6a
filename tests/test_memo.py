"""Memos: which inputs are the same, and what is handed out again for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from accel.caches.lossless.alike import Key, Untold
from accel.caches.lossless.memo import Account, Memo, Table
from accel.report import Recorder

# --- are two inputs the same? ----------------------------------------------------------------------------------------


def key(*args: Any, **kwargs: Any) -> Key:
    return Key.of(args, kwargs)


def test_the_same_memory_is_the_same_through_any_view_until_it_is_written_to():
    text = torch.randn(4, 8)
    seen = key(text)
    assert seen.same(key(text), by_bits=False) and seen.same(key(text.view(4, 8)), by_bits=False)
    assert not seen.same(key(text[:2]), by_bits=True) and not seen.same(key(text.view(8, 4)), by_bits=True)
    half = key(text[2:])
    assert half.same(key(text[2:]), by_bits=False) and not half.same(key(text[:2]), by_bits=True)
    text[3, 7] += 1
    assert not seen.same(key(text), by_bits=True) and not half.same(key(text[2:]), by_bits=True)
    assert not seen.untouched


def test_memory_that_was_exchanged_is_not_the_same():
    text = torch.zeros(4)
    seen = key(text)
    text.data = torch.ones(4)  # counts as no write
    assert not seen.same(key(text), by_bits=True)


def test_other_memory_is_compared_by_its_bits():
    ids = torch.tensor([[0.0, 1.5], [2.0, 3.0]])
    assert key(ids).same(key(ids.clone()), by_bits=True) and not key(ids).same(key(ids.clone()), by_bits=False)
    for other in (ids + 1, ids.double(), ids.t().contiguous().t(), ids[None], torch.complex(ids, ids)):
        assert not key(ids).same(key(other), by_bits=True)
    zero = torch.zeros(2)
    assert torch.equal(zero, -zero) and not key(zero).same(key(-zero), by_bits=True)
    spin = torch.polar(torch.ones(3), torch.arange(3.0))
    assert key(spin).same(key(spin.clone()), by_bits=True)
    assert not key(spin).same(key(spin.conj()), by_bits=True)
    assert not key(spin.conj()).same(key(spin.clone().conj()), by_bits=True)  # not told, so not the same


def test_all_arguments_count():
    t = torch.ones(2)
    first = key(t, {"size": None}, batch=2, dtype=torch.float32, scale=0.5)
    assert first.same(key(t, {"size": None}, batch=2, dtype=torch.float32, scale=0.5), by_bits=False)
    others = [
        key(t, {"size": t}, batch=2, dtype=torch.float32, scale=0.5),
        key(t, {"ratio": None}, batch=2, dtype=torch.float32, scale=0.5),
        key(t, {"size": None}, batch=3, dtype=torch.float32, scale=0.5),
        key(t, {"size": None}, batch=2.0, dtype=torch.float32, scale=0.5),
        key(t, {"size": None}, batch=2, dtype=torch.float16, scale=0.5),
        key(t, {"size": None}, batch=2, dtype=torch.float32, scale=-0.5),
        key(t, {"size": None}),
        key([t], {"size": None}, batch=2, dtype=torch.float32, scale=0.5),
    ]
    assert [first.same(other, by_bits=True) for other in others] == [False] * len(others)


def test_what_cannot_be_compared_is_not():
    with torch.inference_mode():
        uncounted = torch.ones(2)
    for thing in (uncounted, torch.ones(2).to_sparse(), torch.ones(2, device="meta"), object()):
        with pytest.raises(Untold):
            key(thing)


# --- a memo ----------------------------------------------------------------------------------------------------------


class Counted(nn.Linear):
    """Counts how often it runs."""

    runs = 0

    def forward(self, x: torch.Tensor, **kwargs: Any) -> Any:
        self.runs += 1
        return self.answer(super().forward(x), x, **kwargs)

    def answer(self, output: torch.Tensor, x: torch.Tensor) -> Any:
        return output


class Listing(Counted):
    def answer(self, output: torch.Tensor, x: torch.Tensor) -> Any:
        return [output, None]


class Passing(Counted):
    def answer(self, output: torch.Tensor, x: torch.Tensor) -> Any:
        return x[:, :2]


class Writing(Counted):
    def answer(self, output: torch.Tensor, x: torch.Tensor) -> Any:
        x.add_(1)
        return output


def account(limit: int = 1 << 20) -> Account:
    recorder = Recorder("Pipeline", "plan")
    recorder.matched("lossless", 1)
    recorder.run_began(4)
    return Account("lossless", recorder, limit)


def counted(cls: type[Counted] = Counted) -> Counted:
    torch.manual_seed(0)
    return cls(4, 4).requires_grad_(False).eval()


def ask(memo: Memo, module: Counted, x: torch.Tensor) -> Any:
    return memo.answer(module, module.forward, (x,), {})


def test_a_memo_computes_each_input_once_and_hands_out_the_same():
    memo, module = Memo(account(), by_bits=False), counted()
    cond, uncond = torch.randn(2, 4), torch.randn(2, 4)
    first = ask(memo, module, cond), ask(memo, module, uncond)
    for _ in range(3):
        assert ask(memo, module, cond) is first[0] and ask(memo, module, uncond) is first[1]
    assert module.runs == 2
    report = memo.account.recorder.report
    assert (report.techniques["lossless"].computed, report.techniques["lossless"].predicted) == (2, 6)
    assert report.cache_bytes == 2 * 2 * 4 * 4
    memo.clear()
    assert report.cache_bytes == 0 and memo.account.held == 0
    assert ask(memo, module, cond) is not first[0] and module.runs == 3


def test_what_was_handed_out_and_written_to_is_computed_again():
    memo, module = Memo(account(), by_bits=False), counted()
    x = torch.randn(2, 4)
    wanted = ask(memo, module, x).clone()
    ask(memo, module, x)[0].zero_()
    assert torch.equal(ask(memo, module, x), wanted) and module.runs == 2
    assert torch.equal(ask(memo, module, x), wanted) and module.runs == 2


def test_a_list_that_was_handed_out_may_be_changed():
    memo, module = Memo(account(), by_bits=False), counted(Listing)
    x = torch.randn(2, 4)
    ask(memo, module, x).clear()
    output, nothing = ask(memo, module, x)
    assert output.shape == (2, 4) and nothing is None and module.runs == 1


@pytest.mark.parametrize(
    ("cls", "reason"), [(Passing, "its output cannot be handed out twice"), (Writing, "it writes to its input")]
)
def test_modules_with_side_effects_are_left_alone(cls, reason):
    memo, module = Memo(account(), by_bits=True), counted(cls)
    ask(memo, module, torch.randn(2, 4))
    assert memo.idle and memo.entries == [] and memo.account.recorder._declined["lossless"] == {reason: 1}


def test_a_memo_gives_up_on_an_input_that_always_changes():
    memo, module = Memo(account(), by_bits=False), counted()
    for _ in range(4):
        ask(memo, module, torch.randn(2, 4))
        assert not memo.idle
    ask(memo, module, torch.randn(2, 4))
    assert memo.idle and memo.account.held == 0
    assert memo.account.recorder._declined["lossless"] == {"its input is another one at every call": 1}
    memo.clear()
    assert not memo.idle


def test_no_more_is_kept_than_the_budget_allows():
    shared = account(limit=100)
    one, other = Memo(shared, by_bits=False), Memo(shared, by_bits=False)
    module, x = counted(), torch.randn(4, 4)
    ask(one, module, x), ask(other, module, x)
    assert (shared.held, one.idle, other.idle) == (64, False, True)
    assert "raise `budget`" in next(iter(shared.recorder._declined["lossless"]))


@pytest.mark.parametrize(("training", "mode"), [(True, torch.no_grad), (False, torch.inference_mode)])
def test_in_training_and_where_writes_are_not_counted_all_is_computed(training, mode):
    memo, module = Memo(account(), by_bits=True), counted().train(training)
    with mode():
        x = torch.randn(2, 4)
        assert torch.equal(ask(memo, module, x), counted()(x))
    assert memo.idle and memo.account.held == 0 and module.runs == 1


class Grid(nn.Module):
    """A position table of the sample's size; ``scaled``: it also looks at the sample."""

    runs = 0

    def __init__(self, scaled: bool = False):
        super().__init__()
        self.scaled = scaled

    def forward(self, sample: torch.Tensor, step: int = 1) -> torch.Tensor:
        self.runs += 1
        table = torch.arange(0, sample.shape[-1] * sample.size(0), step, device=sample.device, dtype=sample.dtype)
        return table * sample.mean() if self.scaled else table


def test_a_table_made_from_a_shape_is_kept_for_the_shape():
    table, grid = Table(account()), Grid().eval()

    def asked(sample: torch.Tensor, step: int = 1) -> torch.Tensor:
        return table.answer(grid, grid.forward, (sample,), {"step": step})

    first = asked(torch.randn(2, 6))
    assert type(first) is torch.Tensor and torch.equal(first, torch.arange(12.0))
    assert asked(torch.randn(2, 6)) is first and grid.runs == 1
    assert len(asked(torch.randn(2, 5))) == 10 and len(asked(torch.randn(2, 6), 2)) == 6 and grid.runs == 3
    assert asked(torch.randn(2, 6).double()).dtype == torch.float64 and grid.runs == 4


def test_a_table_that_looks_at_values_is_kept_for_the_values():
    table, grid = Table(account()), Grid(scaled=True).eval()
    sample = torch.randn(2, 6)
    for other in (sample, sample.clone(), sample + 1, sample):
        expected = Grid(scaled=True)(other)
        assert torch.equal(table.answer(grid, grid.forward, (other,), {}), expected)
    assert table.looks and grid.runs == 3  # the first is broken off where it looks

"""Residual caches: what a predicted step is, when one is taken, and that pictures of a batch keep apart."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import accel
from accel import AccelError, AccelWarning, Refused
from accel.caches.dynamic import judge
from accel.caches.dynamic.streams import Ear, minus, named, pair, plus, put, taken
from accel.caches.dynamic.technique import ResidualCache
from accel.caches.guidance import GuidanceCache
from accel.caches.past import Entry, Past
from accel.caches.table import Row
from accel.caches.tgate import TGate
from accel.hooks import install
from accel.report import Recorder
from tests.contract.support import may_save_nothing
from tests.families import case, run
from tests.toy import Block, Folding, InPlace, ToyPipeline, by_hand, draw, sample, toy

ALWAYS = 1e9
"""A threshold that every change is below."""


def strip(handle: accel.Handle) -> str:
    return handle.report().techniques["residual"].strip


# --- what a predicted step is ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["reuse", "linear"])
@pytest.mark.parametrize("front, back, depth", [(1, 0, 4), (2, 0, 4), (3, 0, 4), (1, 0, 2)])
def test_a_predicted_step_is_the_input_plus_one_residual(how: str, front: int, back: int, depth: int) -> None:
    """Also of a stretch that is a single block."""
    pipe = toy(depth=depth)
    settings = ResidualCache(threshold=ALWAYS, front=front, back=back, warm_up=2, max_consecutive=2, how=how)
    with accel.accelerate(pipe, settings) as handle:
        fast = draw(pipe, sample(0))
        assert strip(handle) == "##..#..#"
        assert handle.report().cache_bytes == 0 < handle.report().cache_bytes_peak
    torch.testing.assert_close(fast, by_hand(toy(depth=depth), sample(0), "##..#..#", how, front), atol=1e-6, rtol=0)
    assert not torch.allclose(fast, draw(pipe, sample(0)), atol=1e-4)


def test_the_last_blocks_always_run() -> None:
    pipe, seen = toy(), []
    for block in pipe.transformer.blocks:
        block.attn.register_forward_hook(lambda module, args, out: seen.append(module))
    with accel.accelerate(pipe, ResidualCache(threshold=ALWAYS, front=1, back=2, warm_up=2)):
        draw(pipe, sample(0))
    assert [seen.count(block.attn) for block in pipe.transformer.blocks] == [8, 4, 8, 8]


def test_blocks_that_write_over_their_input_give_the_same() -> None:
    """Comparing such an input with the output would show no residual and no change."""
    settings, results = ResidualCache(threshold=0.35, warm_up=2), []
    for kind in (Block, InPlace):
        pipe = toy(kind)
        with accel.accelerate(pipe, settings) as handle:
            results.append((draw(pipe, sample(0)), strip(handle)))
    (plain, one), (written, other) = results
    assert one == other and 0 < one.count(".") < 4
    assert torch.equal(plain, written)


def test_outputs_are_paired_with_inputs_by_shape() -> None:
    text, picture, temb = torch.ones(2, 3, 4), torch.zeros(2, 5, 4), torch.ones(2, 4)
    inputs = {"hidden_states": picture, "encoder_hidden_states": text, "temb": temb}
    assert pair(inputs, (text + 1, picture + 1)) == ("encoder_hidden_states", "hidden_states")
    assert pair(inputs, (picture + 1, None, text)) == ("hidden_states", "encoder_hidden_states")
    assert pair(inputs, torch.cat([text, picture], 1)) == (None,)
    assert pair(inputs, picture.half()) == (None,)
    output = (text + 2, None, picture + 3, torch.zeros(7))
    pairs = pair(inputs, output)
    residual = minus(output, inputs, pairs)
    assert pairs == ("encoder_hidden_states", "hidden_states", None)
    assert [part if part is None else part.mean().item() for part in residual] == [2.0, None, 3.0, 0.0]
    moved = {name: value + 10 for name, value in inputs.items()}
    assert [part if part is None else part.mean().item() for part in plus(residual, moved, pairs)] == [13, None, 13, 0]


def test_streams_of_one_shape_are_paired_only_where_there_is_one_output() -> None:
    inputs = {"hidden_states": torch.zeros(2, 5, 4), "encoder_hidden_states": torch.ones(2, 5, 4)}
    both = (torch.ones(2, 5, 4), torch.zeros(2, 5, 4))
    assert pair(inputs, both) == (None, None)
    assert pair(inputs, both[0]) == ("hidden_states",)
    assert pair({"x": torch.zeros(2, 5, 4)}, both) == (None, None)


def test_inputs_come_in_the_order_of_the_parameters() -> None:
    class Dual(nn.Module):
        def forward(self, hidden_states: Any, encoder_hidden_states: Any, temb: Any = None) -> None: ...

    a, b, mask = torch.zeros(1, 2), torch.ones(1, 2), torch.ones(1, 2, dtype=torch.long)
    assert list(named(Dual(), (), {"encoder_hidden_states": b, "hidden_states": a})) == [
        "hidden_states",
        "encoder_hidden_states",
    ]
    assert list(named(Dual(), (a, mask), {"temb": b})) == ["hidden_states", "temb"]


def test_rows_are_taken_from_what_has_them() -> None:
    class Block(nn.Module):
        def forward(self, x: Any, rope: Any, temb: Any) -> None: ...

    x, rope, chosen = torch.arange(3.0)[:, None], torch.ones(6, 2), torch.tensor([0, 2])
    args, kwargs = taken(Block(), (x, rope), {"temb": x + 1}, 3, chosen)
    assert args[0].flatten().tolist() == [0.0, 2.0] and args[1] is rope
    assert kwargs["temb"].flatten().tolist() == [1.0, 3.0]
    assert taken(Block(), (x, rope), {"temb": torch.ones(6, 2)}, 3, chosen) is None  # two rows for each, or six?
    whole = put((torch.full((3, 1), torch.nan), None), (args[0], None), 3, chosen)
    assert whole[1] is None and whole[0].flatten().nan_to_num(-1).tolist() == [0.0, -1.0, 2.0]


# --- when ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indicator", ["first_block", "tea", "sea"])
@pytest.mark.parametrize("kind", [Block, InPlace])
def test_a_threshold_of_zero_has_the_plain_bits(indicator: str, kind: type[Block]) -> None:
    pipe = toy(kind)
    plain = draw(pipe, sample(0, 1))
    with accel.accelerate(pipe, ResidualCache(indicator=indicator, threshold=0)) as handle:
        with pytest.warns(AccelWarning, match="residual saved nothing in this run .the indicator was above"):
            assert torch.equal(draw(pipe, sample(0, 1)), plain)
        assert strip(handle) == "########"


@pytest.mark.parametrize(
    "settings, expected",
    [
        ({"warm_up": 2, "end": 1, "max_consecutive": 2}, "##..#..#"),
        ({"warm_up": 3, "end": 2, "max_consecutive": 1}, "###.#.##"),
        ({"warm_up": 2, "end": 0, "max_consecutive": 9}, "##......"),
        ({"warm_up": 0.5, "end": 1, "max_consecutive": 9}, "####...#"),
        ({"warm_up": 1, "end": 1, "how": "reuse", "max_consecutive": 3}, "#...#..#"),
        ({"warm_up": 1, "end": 1, "how": "linear", "max_consecutive": 3}, "##...#.#"),
    ],
)
@pytest.mark.parametrize("indicator", ["first_block", "tea", "sea"])
def test_warm_up_end_and_streaks(indicator: str, settings: dict[str, Any], expected: str) -> None:
    pipe = toy()
    with accel.accelerate(pipe, ResidualCache(indicator=indicator, threshold=ALWAYS, **settings)) as handle:
        draw(pipe, sample(0))
        part = handle.report().techniques["residual"]
        assert part.strip == expected
        assert (part.computed, part.predicted) == (expected.count("#"), expected.count("."))


def test_an_indicator_that_is_no_number_computes_and_says_so() -> None:
    pipe = toy()
    with accel.accelerate(pipe, ResidualCache(threshold=ALWAYS, warm_up=2)) as handle:
        with pytest.warns(AccelWarning, match="the indicator is not a number"):
            draw(pipe, sample(0) * torch.nan)
        assert strip(handle) == "########"


def test_an_indicator_that_sees_nothing_change_computes_and_says_so() -> None:
    """Blocks in front that only see the text would otherwise predict all the time."""
    pipe = toy()
    pipe.transformer.blocks[0].attn.forward = lambda x: torch.ones_like(x)  # adds the same at every step
    pipe.transformer.embed = lambda x, t: (x * 0, x[:, 0] * 0)
    with accel.accelerate(pipe, ResidualCache(threshold=ALWAYS, warm_up=2)):
        with pytest.warns(AccelWarning, match="the indicator sees nothing change: it does not look at the picture"):
            draw(pipe, sample(0))


# --- pictures of a batch ---------------------------------------------------------------------------------------------


def jumping(step: int, now: torch.Tensor) -> torch.Tensor:
    """The first picture drifts so fast that it is never predicted, the others are left alone."""
    return torch.cat([now[:1] * (-1.5 if step % 2 else -0.7), now[1:]])


@pytest.mark.parametrize("halves", [1, 2])
@pytest.mark.parametrize("indicator", ["first_block", "tea", "sea"])
def test_a_drifting_neighbour_changes_nothing(indicator: str, halves: int) -> None:
    """Each picture is the one that it would be alone, and is predicted when it would be alone."""
    pipe = toy()
    settings = ResidualCache(indicator=indicator, threshold=0.6, warm_up=2, max_consecutive=3)
    with accel.accelerate(pipe, settings) as handle:
        with pytest.warns(AccelWarning, match="saved nothing"):
            drifting = draw(pipe, sample(0), halves=halves, drift=jumping)
        calm = draw(pipe, sample(1), halves=halves)
        assert strip(handle).count(".") >= 3
        other = draw(pipe, sample(2), halves=halves)
        together = draw(pipe, sample(0, 1, 2), halves=halves, drift=jumping)
        assert set(strip(handle)) == {"#", "="}  # not all of the batch, but some
    torch.testing.assert_close(together, torch.cat([drifting, calm, other]), atol=1e-5, rtol=0)


def rows_seen(pipe: ToyPipeline, block: int, **kw: Any) -> tuple[list[int], torch.Tensor]:
    seen: list[int] = []
    hook = pipe.transformer.blocks[block].attn.register_forward_pre_hook(lambda m, args: seen.append(len(args[0])))
    with may_save_nothing(), accel.accelerate(pipe, ResidualCache(threshold=0.6, warm_up=2, max_consecutive=3)):
        result = draw(pipe, sample(0, 1), drift=jumping, **kw)
    hook.remove()
    return seen, result


@pytest.mark.parametrize("block", [1, 3])
def test_only_the_rows_that_are_computed_go_through_the_blocks(block: int) -> None:
    """From the first block of the stretch to its last."""
    seen, _ = rows_seen(toy(), block)
    assert seen[:2] == [2, 2] and seen[-1] == 2 and set(seen[2:-1]) == {1, 2}
    guided, _ = rows_seen(toy(), block, halves=2)
    assert guided[:2] == [4, 4] and set(guided[2:-1]) == {2, 4}


def test_all_rows_are_computed_where_something_else_listens() -> None:
    pipe = toy()
    _, wanted = rows_seen(toy(), 2)

    class Clockless:
        call = None

    remove = install(pipe.transformer.blocks[2].attn, Ear(Clockless()), "other")  # type: ignore[arg-type]
    seen, result = rows_seen(pipe, 2)
    remove()
    assert set(seen) == {2}
    torch.testing.assert_close(result, wanted, atol=1e-5, rtol=0)


class SecondHalfJumps(nn.Module):
    """An attention whose second half of rows turns over from call to call."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.to_q, self.inner, self.sign = nn.Identity(), inner, 1.0

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        self.sign *= -1.5 if self.sign > 0 else -1 / 1.5
        first, second = self.inner(hidden_states).chunk(2)
        return torch.cat([first, second * self.sign])


def test_both_halves_of_guidance_must_agree() -> None:
    pipe = toy()
    with accel.accelerate(pipe, ResidualCache(threshold=1.0, warm_up=2)) as handle:
        draw(pipe, sample(0), halves=2)
        assert strip(handle) == "##..#..#"
    pipe.transformer.blocks[0].attn = SecondHalfJumps(pipe.transformer.blocks[0].attn)
    with accel.accelerate(pipe, ResidualCache(threshold=1.0, warm_up=2)) as handle:
        with pytest.warns(AccelWarning, match="the indicator was above the threshold .5x"):
            draw(pipe, sample(0), halves=2)
        assert strip(handle) == "########"


@torch.no_grad()
def _two_calls(pipe: Any, start: torch.Tensor, other: torch.Tensor, drift: bool) -> torch.Tensor:
    """Guidance as two calls a step, of which the second may jump from step to step."""
    now = start.clone()
    pipe.scheduler.set_timesteps(8)
    for step, t in enumerate(pipe.scheduler.timesteps):
        first = pipe.transformer(now, t.expand(1))
        pipe.transformer(other * (-1.5 if step % 2 and drift else 1.0) + 0.1 * step, t.expand(1))
        now = pipe.scheduler.step(first, t, now, return_dict=False)[0]
    return now


def test_of_two_calls_of_a_step_the_first_decides_for_both() -> None:
    """Both are predicted in the same steps, however much the second one jumps; each has a past of its own."""
    pipe = toy()
    with accel.accelerate(pipe, ResidualCache(threshold=0.6, warm_up=2, max_consecutive=3)) as handle:
        wanted = draw(pipe, sample(0))
        cells = strip(handle)
        for drift in (False, True):
            assert torch.equal(_two_calls(pipe, sample(0), sample(1), drift), wanted)
            assert strip(handle) == cells and {"#", "."} == {*cells}
        part = handle.report().techniques["residual"]
        assert part.predicted == 2 * cells.count(".") and part.computed == 2 * cells.count("#")
        assert part.declined["the other half of guidance was computed"] == cells[2:-1].count("#")


@pytest.mark.parametrize(("name", "indicator"), [("wan", "first_block"), ("flux-cfg", "tea"), ("wan", "sea")])
def test_halves_of_guidance_in_two_calls_are_of_the_same_step(
    name: str, indicator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The threshold lies between the changes that are seen, so that some steps are predicted and some are not."""
    decided: list[tuple[int, str, tuple[bool, ...]]] = []
    decide = judge.Judge.decide

    def listening(self: Any, row: Any, step: int, keys: Any, *rest: Any) -> Any:
        guessed, reasons = decide(self, row, step, keys, *rest)
        decided.append((step, keys[0][1], tuple(guessed)))
        return guessed, reasons

    monkeypatch.setattr(judge.Judge, "decide", listening)
    pipe, mixed = case(name).build(), []
    for threshold in (0.1, 1.0, 10.0):
        decided.clear()
        settings = ResidualCache(indicator=indicator, threshold=threshold, warm_up=2, max_consecutive=3)
        with may_save_nothing(), accel.accelerate(pipe, settings):
            run(case(name), pipe, steps=8)
        by_step: dict[int, dict[str, tuple[bool, ...]]] = {}
        for step, branch, guessed in decided:
            by_step.setdefault(step, {})[branch] = guessed
        assert all(len(each) == 2 and len(set(each.values())) == 1 for each in by_step.values())
        mixed.append(len({any(guessed) for step, _, guessed in decided if step >= settings.warm_up}) == 2)
    assert any(mixed)


def test_a_half_that_is_asked_for_less_often_holds_the_other_back_only_where_it_must() -> None:
    """Guidance caching leaves out second calls: they are computed again in time, and with the first ones."""
    pipe = case("wan").build()
    plan = [ResidualCache(threshold=ALWAYS, warm_up=2, max_consecutive=1), GuidanceCache(interval=2, warm_up=2)]
    with accel.accelerate(pipe, plan) as handle:
        run(case("wan"), pipe, steps=12)
        part = handle.report().techniques["residual"]
    assert "+" not in part.strip and part.predicted > 0
    assert "the other half of guidance was computed" in part.declined


def test_guidance_that_ends_in_mid_run_does_not_hold_the_rest_back() -> None:
    limits = judge.Limits(1.0, 2)
    past = Past(recorder := Recorder("Pipeline", "plan"))
    recorder.run_began(12)
    deciding, row = judge.Judge(limits, past), Row("11" + "0" * 10, "reuse")
    predicted = []
    for step in range(12):
        for branch in ("cond", "uncond")[: 2 if step < 4 else 1]:
            keys = [("site", branch, 0)]
            (guessed,), _ = deciding.decide(row, step, keys, 1, None, None)
            if not guessed:
                past.keep(keys[0], Entry(step, None, 1, torch.ones(1, 1)), 1)
            predicted.append((step, branch, guessed))
    alone = [guessed for step, branch, guessed in predicted if branch == "cond" and step >= 8]
    assert alone == [True, False, True, True]
    assert all(len({yes for at, _, yes in predicted if at == step}) == 1 for step in range(4))


def test_rows_that_hold_frames_are_one_picture() -> None:
    """Alone it is clear whose they are; of several pictures nothing is predicted, and the report says why."""
    pipe = toy(Folding)
    settings = ResidualCache(threshold=ALWAYS, warm_up=2)
    with accel.accelerate(pipe, settings) as handle:
        fast = draw(pipe, sample(0))
        assert strip(handle) == "##..#..#"
        torch.testing.assert_close(fast, by_hand(toy(Folding), sample(0), "##..#..#", "linear"), atol=1e-6, rtol=0)
        with pytest.warns(AccelWarning, match="does not show which picture is where"):
            draw(pipe, sample(0, 1))


# --- runs ------------------------------------------------------------------------------------------------------------


class Stop(Exception):
    """Raised by a step callback."""


def test_a_broken_run_leaves_nothing_to_one_of_another_size() -> None:
    def stop(pipe: object, step: int, *_: object) -> dict[str, Any]:
        if step == 3:
            raise Stop
        return {}

    settings, fresh = ResidualCache(threshold=ALWAYS, warm_up=2), {}
    for size in (64, 96):
        pipe = case("wan").build()
        with accel.accelerate(pipe, settings):
            fresh[size] = run(case("wan"), pipe, steps=6, size=size)
    pipe = case("wan").build()
    with accel.accelerate(pipe, settings) as handle:
        for size in (96, 64):
            with pytest.raises(Stop):
                run(case("wan"), pipe, steps=6, callback_on_step_end=stop)
            assert handle.report().cache_bytes == 0 < handle.report().cache_bytes_peak
            assert torch.equal(run(case("wan"), pipe, steps=6, size=size), fresh[size])


def test_a_text_of_another_length_in_mid_run_is_noticed() -> None:
    def change(pipe: object, step: int, t: object, now: dict[str, Any]) -> dict[str, Any]:
        return {"prompt_embeds": now["prompt_embeds"].repeat(1, 2, 1)} if step == 3 else {}

    pipe = case("cogvideox").build()
    kw = {"callback_on_step_end": change, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}
    pipe.transformer.config["max_text_seq_length"] = 16
    with accel.accelerate(pipe, ResidualCache(threshold=ALWAYS, warm_up=2, max_consecutive=9)) as handle:
        run(case("cogvideox"), pipe, steps=8, **kw)
        part = handle.report().techniques["residual"]
        assert part.declined["what the stretch is given changed its shape or type"] == 1
        assert part.strip == "##..##.#"


def test_combined_with_half_a_batch() -> None:
    """Where only the conditional half is computed, its rows have a newer past than those of the other."""
    pipe = case("pixart").build()
    with accel.accelerate(pipe, [ResidualCache(threshold=ALWAYS, warm_up=2), GuidanceCache(warm_up=3)]) as handle:
        assert run(case("pixart"), pipe, steps=8).isfinite().all()
        techniques = handle.report().techniques
        assert techniques["residual"].strip == "##..#..#" and techniques["guidance"].strip == "###.#.#."
        assert handle.report().cache_bytes == 0


@pytest.mark.parametrize("name, guided", [("sd", False), ("sd", True), ("wan", True), ("z-image", False)])
def test_pictures_of_a_real_batch_keep_apart(name: str, guided: bool) -> None:
    """At a threshold at which they decide differently, also where guidance leaves half of the rows out."""
    pipe = case(name).build()
    settings = ResidualCache(indicator="tea", threshold=0.5, warm_up=2, max_consecutive=3)
    with accel.accelerate(pipe, [settings, GuidanceCache(warm_up=2)] if guided else settings):
        together = run(case(name), pipe, steps=9, batch=2)
        apart = [run(case(name), pipe, steps=9, seed=seed) for seed in (0, 1)]
    torch.testing.assert_close(together, torch.cat(apart), atol=1e-3, rtol=0)


def test_what_keeps_values_inside_of_a_stretch_is_refused() -> None:
    """It would keep them for rows that are predicted, too, and a picture would depend on its neighbours."""
    problems = accel.check(case("pixart").build(), [ResidualCache(), TGate()])
    assert problems == ["residual and tgate both take over cross_attn_outputs: use one of them"]


# --- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings, reason",
    [
        ({"indicator": "second_block"}, "indicator is one of first_block, tea, sea, mag"),
        ({"front": 0}, "front is a whole number of at least 1 here"),
        ({"indicator": "sea", "front": -1}, "front is a whole number of at least 0 here"),
        ({"threshold": -0.1}, "threshold is a number of at least 0"),
        ({"threshold": float("nan")}, "threshold is a number of at least 0"),
        ({"warm_up": 0}, "warm_up is a number of steps or a share"),
        ({"max_consecutive": 0}, "max_consecutive must be a whole number of at least 1"),
        ({"how": "zero"}, "no predictor here is called 'zero'"),
        ({"indicator": "mag"}, "mag needs ratios, measured by calibrate_ratios"),
        ({"ratios": (1.0, 0.9)}, "ratios belong to the indicator mag, not to first_block"),
        ({"indicator": "mag", "ratios": (1.0, 0.0)}, "ratios are positive"),
        ({"coefficients": (1.0, 0.0)}, "coefficients belong to the indicator tea"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(AccelError, match=reason):
        ResidualCache(**settings)


def test_a_stretch_that_is_not_there_is_refused() -> None:
    with pytest.raises(Refused, match=r"residual: transformer has no such stretch.* 4 blocks, and none of them lies"):
        accel.accelerate(toy(), ResidualCache(front=2, back=2))

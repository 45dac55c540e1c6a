"""Static schedules: error curves, what is solved from them, and other step counts."""

from __future__ import annotations

import itertools
import json
import math
import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import accel
from accel import AccelError
from accel.caches.deepcache import DeepCache
from accel.caches.schedule import ErrorCurves, calibrate, solve
from accel.caches.schedule.calibration import _Probe
from accel.caches.schedule.curves import lags
from accel.caches.schedule.solving import bounds, scan
from accel.caches.schedule.stretching import stretch
from accel.contract.trace import differences, trace
from accel.fingerprint import Fingerprint
from tests.families import case, run


@cache
def pipeline(name: str) -> Any:
    """Built once: calibrating and plans leave nothing behind, as the tests prove."""
    return case(name).build()


def calls(name: str, count: int = 1) -> list[dict[str, Any]]:
    """Arguments of ``count`` calls with different prompts and noise."""
    return [case(name).inputs(seed=seed) for seed in range(count)]


@cache
def measured(name: str, steps: int = 6) -> ErrorCurves:
    return calibrate(pipeline(name), calls(name), steps=steps)


# --- error curves ----------------------------------------------------------------------------------------------------


def outputs(name: str, site: str, seed: int, steps: int, branches: int) -> list[list[torch.Tensor]]:
    """What ``site`` puts out in a plain run, [branch][step], seen by plain torch hooks."""
    pipe, seen = pipeline(name), []
    module = pipe.transformer.get_submodule(site.partition(".")[2])
    hook = module.register_forward_hook(lambda module, args, out: seen.append(out.clone()))
    run(case(name), pipe, seed=seed, steps=steps)
    hook.remove()
    return [seen[branch::branches] for branch in range(branches)]


def numbers(errors: Any) -> list[float]:
    """With NaN for what was not measured."""
    return [math.nan if error is None else error for error in errors]


def by_hand(name: str, site: str, branches: int, steps: int, ago: tuple[int, ...], seeds: int) -> list[float | None]:
    """The mean relative L1 error of a line through, or of, the outputs ``ago`` steps ago."""
    runs = [branch for seed in range(seeds) for branch in outputs(name, site, seed, steps, branches)]
    times = [float(t) for t in pipeline(name).scheduler.timesteps]

    def error(y: list[torch.Tensor], t: int) -> float:
        guess = y[t - ago[0]]
        if len(ago) == 2:
            newer, older = t - ago[0], t - ago[1]
            slope = (y[newer] - y[older]) / (times[newer] - times[older])
            guess = y[newer] + slope * (times[t] - times[newer])
        return float((guess - y[t]).abs().sum() / y[t].abs().sum())

    return [None if t < ago[-1] else sum(error(y, t) for y in runs) / len(runs) for t in range(steps)]


@pytest.mark.parametrize(("name", "branches"), [("pixart", 1), ("wan", 2)])
def test_error_curves_are_those_computed_by_hand(name: str, branches: int) -> None:
    """Over two prompts, with guidance in one batch and in two calls, at one site and on average over a kind."""
    curves = calibrate(pipeline(name), calls(name, 2), steps=6)
    kind = [site for site, what in curves.kinds.items() if what == "self_attn"]
    assert len(kind) == 4
    for how, choices in {"reuse": [(1,), (3,)], "linear": [(1, 2), (2, 4)]}.items():
        for ago in choices:
            hand = [by_hand(name, site, branches, 6, ago, seeds=2) for site in kind]
            for site, expected in zip(kind, hand, strict=True):
                assert numbers(curves.of(site, how)[ago]) == pytest.approx(numbers(expected), rel=1e-3, nan_ok=True)
            mean = [None if None in at else sum(at) / len(at) for at in zip(*hand, strict=True)]
            assert numbers(curves.of("self_attn", how)[ago]) == pytest.approx(numbers(mean), rel=1e-3, nan_ok=True)


def test_every_past_that_a_predictor_may_have_is_measured() -> None:
    assert lags("reuse", 3) == [(1,), (2,), (3,)]
    assert lags("linear", 2) == [(1, 2), (1, 3), (1, 4), (2, 3), (2, 4), (2, 5)]
    assert lags("quadratic", 1) == [(1, 2, 3), (1, 2, 4), (1, 3, 4), (1, 3, 5)]


def test_calibrating_again_gives_the_same_and_leaves_no_trace() -> None:
    """Counters that are never reset, or counted by call, would show in the second measurement."""
    for name in ("pixart", "wan"):
        pipe, first = pipeline(name), measured(name)
        plain, before = run(case(name), pipe, steps=4), trace(pipe)
        again = calibrate(pipe, calls(name), steps=6)
        assert again.to_dict() == first.to_dict()
        assert differences(before, trace(pipe)) == []
        assert torch.equal(run(case(name), pipe, steps=4), plain)


def test_guidance_in_two_calls_counts_as_one_step_and_two_branches() -> None:
    """A run without guidance has half the calls, as many steps, and its errors are those of the first branch alone."""
    pipe, inputs = pipeline("wan"), case("wan").inputs(guidance=False)
    alone = calibrate(pipe, [inputs], steps=6)
    assert alone.steps == measured("wan").steps == 6
    site = next(iter(alone.kinds))
    assert alone.of(site, "reuse")[1,][0] is None and None not in alone.of(site, "reuse")[1,][1:]
    assert alone.of(site, "reuse")[1,] != measured("wan").of(site, "reuse")[1,]


def test_only_the_last_outputs_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[int] = []
    saw = _Probe.saw

    def watched(self: _Probe, *args: Any) -> None:
        saw(self, *args)
        kept.append(max(map(len, self.past.values())))

    monkeypatch.setattr(_Probe, "saw", watched)
    calibrate(pipeline("pixart"), calls("pixart"), steps=8, lookahead=2)
    assert max(kept) == 2 + 3  # the newest at most 2 steps old, the one before it at most 3 older
    kept.clear()
    calibrate(pipeline("pixart"), calls("pixart"), steps=8, lookahead=2, predictors=("reuse",))
    assert max(kept) == 2


def test_curves_survive_their_file_and_name_what_is_wrong(tmp_path: Path) -> None:
    curves, file = measured("pixart"), tmp_path / "curves.json"
    curves.save(file)
    assert ErrorCurves.load(file).to_dict() == curves.to_dict()
    assert solve(ErrorCurves.load(file), target_share=0.6).rows == solve(curves, target_share=0.6).rows
    data = curves.to_dict()
    for wrong, message in [
        ({**data, "format": 9}, "format 9 is not 1"),
        ({**data, "speed": 2}, "exactly the keys"),
        ({**data, "steps": 5}, "6 errors for 5 steps"),
        ({**data, "sites": {"x": {}}}, "cannot be read"),
    ]:
        file.write_text(json.dumps(wrong))
        with pytest.raises(AccelError, match=message):
            ErrorCurves.load(file)


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({"prompts": []}, "at least one prompt"),
        ({"prompts": "a fox"}, "a list of at least one prompt"),
        ({"lookahead": 0}, "lookahead is a whole number"),
        ({"predictors": ()}, "at least one predictor"),
        ({"predictors": ("fitted",)}, "'fitted'"),
        ({"kinds": ("resnet",)}, "no resnet to measure"),
        ({"prompts": [{**calls("pixart")[0], "height": 33}]}, "PixArtAlphaPipeline cannot draw this"),
    ],
)
def test_what_cannot_be_measured_is_refused(kw: dict[str, Any], message: str) -> None:
    with pytest.raises(AccelError, match=message):
        calibrate(pipeline("pixart"), **{"prompts": calls("pixart"), "steps": 4, **kw})


def test_only_a_plain_pipeline_is_measured_and_only_runs_of_one_length() -> None:
    with accel.accelerate(pipeline("pixart"), DeepCache(warm_up=2)), pytest.raises(AccelError, match="plan attached"):
        calibrate(pipeline("pixart"), calls("pixart"))
    weak, strong = ({**case("sd3-img2img").inputs(), "strength": strength} for strength in (0.5, 1.0))
    with pytest.raises(AccelError, match="runs differ in length, 3 and 6 steps"):
        calibrate(pipeline("sd3-img2img"), [weak, strong], steps=6)


# --- solving ---------------------------------------------------------------------------------------------------------


def planted(seed: int, steps: int = 20, lookahead: int = 3) -> ErrorCurves:
    """Random errors of three kinds with 4, 4 and 2 sites, growing with the lag apart from noise."""
    draw = random.Random(seed)

    def curve(how: str) -> dict[tuple[int, ...], list[float | None]]:
        return {
            ago: [None if t < ago[-1] else ago[0] * draw.uniform(0.02, 0.2) for t in range(steps)]
            for ago in lags(how, lookahead)
        }

    kinds = {
        f"{kind}.{i}": kind for kind, count in (("self_attn", 4), ("ff", 4), ("cross_attn", 2)) for i in range(count)
    }
    sites = {site: {how: curve(how) for how in ("reuse", "linear")} for site in kinds}
    mark = Fingerprint("Model", "0", "Solver", steps, {}, {})
    return ErrorCurves(steps, lookahead, "time", kinds, sites, mark)


def skips(cells: str) -> list[tuple[int, tuple[int, ...]]]:
    """(step, lags of the two newest computed steps) of each predicted cell."""
    found = []
    for step, cell in enumerate(cells):
        earlier = [step - at for at in range(step) if cells[at] == "1"]
        found += [(step, tuple(sorted(earlier)[:2]))] if cell == "0" else []
    return found


def test_scan_takes_the_longest_skips_within_the_threshold() -> None:
    curve = {
        (1,): [None, 0.1, 0.1, 0.3, 0.1, 0.1, 0.1, 0.1],
        (2,): [None, None, 0.2, 0.3, 0.2, 0.2, 0.4, 0.2],
    }
    limits = bounds(curve, steps=8, lookahead=2)
    assert scan(limits, 0.05) == "11111111"
    assert scan(limits, 0.1) == "10110101"
    assert scan(limits, 0.2) == "10010011"
    assert scan(limits, 9.0) == "10010011"  # never further than the lookahead, and the last step is computed
    assert [scan(bounds({(1,): [0.0] * n}, n, 1), 1.0) for n in (1, 2, 3)] == ["1", "11", "101"]


@pytest.mark.parametrize("how", ["reuse", "linear"])
@pytest.mark.parametrize("seed", range(30))
def test_no_skip_is_worse_than_alpha_and_more_alpha_never_computes_more(seed: int, how: str) -> None:
    curves = planted(seed)
    every = [curve for site in curves.sites.values() for errors in site[how].values() for curve in errors]
    shares = []
    for alpha in sorted({0.0, 1.0, *(error for error in every if error is not None)})[:: 1 if seed < 8 else 7]:
        found = solve(curves, alpha=alpha, how=how)
        shares.append(found.share)
        for kind, cells in found.rows.items():
            assert cells[0] == cells[-1] == "1" and "0" * (curves.lookahead + 1) not in cells
            measured_at = curves.of(kind, how)
            for step, ago in skips(cells):
                assert measured_at[ago[: len(lags(how, 1)[0])]][step] <= alpha
    assert shares == sorted(shares, reverse=True) and shares[0] == 1.0 and shares[-1] < 0.5


@pytest.mark.parametrize("seed", range(30))
def test_scan_computes_as_few_steps_as_possible(seed: int) -> None:
    """Held against all schedules of nine steps."""
    curves = planted(seed, steps=9)
    limits = bounds(curves.of("ff", "reuse"), 9, 3)

    def allowed(cells: str, alpha: float) -> bool:
        return all(ago[0] <= 3 and limits[step][ago[0] - 1] <= alpha for step, ago in skips(cells))

    every = ["1" + "".join(middle) + "1" for middle in itertools.product("01", repeat=7)]
    for alpha in (0.05, 0.1, 0.2, 0.4):
        fewest = min(cells.count("1") for cells in every if allowed(cells, alpha))
        assert scan(limits, alpha).count("1") == fewest


@pytest.mark.parametrize("by", ["kind", "site"])
@pytest.mark.parametrize("target", [0.9, 0.7, 0.5, 0.45])
def test_a_target_share_is_hit_within_one_cell(target: float, by: Any) -> None:
    curves = planted(7)
    found = solve(curves, target_share=target, how="reuse", by=by)
    one_cell = (4 if by == "kind" else 1) / (curves.steps * len(curves.kinds))
    assert target - one_cell <= found.share <= target
    assert solve(curves, alpha=found.alpha, how="reuse", by=by) == found
    just_below = math.nextafter(found.alpha, 0)
    assert solve(curves, alpha=just_below, how="reuse", by=by).share > target
    assert solve(curves, target_share=target, how="reuse", by=by) == found


def test_the_predictor_with_the_smaller_error_is_chosen() -> None:
    curves = planted(1)
    better = {site: {"reuse": c["reuse"], "linear": _scaled(c["linear"], 0.1)} for site, c in curves.sites.items()}
    good = ErrorCurves(curves.steps, 3, "time", curves.kinds, better, curves.fingerprint)
    assert solve(good, target_share=0.6).how == "linear" == solve(good, alpha=0.05).how
    assert solve(good, target_share=0.6, how="reuse").how == "reuse"
    assert solve(good, target_share=0.26 + 0.07).how == "reuse"  # a line needs one more computed step at the start


def _scaled(curve: Any, by: float) -> Any:
    return {ago: [None if error is None else by * error for error in errors] for ago, errors in curve.items()}


@pytest.mark.parametrize(
    ("kw", "message"),
    [
        ({}, "needs one goal"),
        ({"alpha": 0.1, "target_share": 0.5}, "needs one goal"),
        ({"alpha": -1.0}, "at least 0"),
        ({"alpha": math.nan}, "at least 0"),
        ({"target_share": 0}, "above 0"),
        ({"target_share": 0.1}, "cannot be reached: what was measured allows 0.3.* longer lookahead"),
        ({"alpha": 0.1, "how": "quadratic"}, "no error curve of 'quadratic': measured were reuse, linear"),
        ({"alpha": 0.1, "by": "block"}, "by kind or by site"),
    ],
)
def test_a_goal_that_makes_no_sense_is_refused(kw: dict[str, Any], message: str) -> None:
    with pytest.raises(AccelError, match=message):
        solve(planted(0), **kw)


def test_the_first_step_of_a_second_expert_is_computed() -> None:
    """Nothing of its own was computed before, so nothing can be predicted there."""
    curves = measured("wan-two-experts")
    second = [site for site in curves.kinds if site.startswith("transformer_2.")]
    seen = [error is not None for error in curves.of(second[0], "reuse")[1,]]
    begins = seen.index(True) - 1  # its first error is that of its second step
    rows = solve(curves, alpha=99.0, by="site").rows
    assert begins > 0 and rows[second[0]][begins] == "1"


# --- other step counts -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cells", ["1010101010", "1101001001", "1000100011", "1111111111", "1100000000"])
@pytest.mark.parametrize("steps", [1, 2, 5, 7, 10, 13, 20, 50])
def test_a_stretched_schedule_keeps_its_ends_its_gaps_and_its_share(cells: str, steps: int) -> None:
    got = stretch(cells, steps)
    assert len(got) == steps and got[0] == "1" and (got[-1] == "1" or cells[-1] == "0")
    assert max(map(len, got.split("1"))) <= max(map(len, cells.split("1")))
    assert abs(got.count("1") - cells.count("1") * steps / len(cells)) <= 2


def test_regular_schedules_stay_regular() -> None:
    assert stretch("10" * 25, 25) == "10" * 12 + "1"
    assert stretch("10" * 5, 20) == "10" * 10
    assert stretch("1101", 4) == "1101"
    assert stretch("1" * 5 + "10" * 5, 30) == "1" * 10 + "10" * 10


@pytest.mark.parametrize("seed", range(4))
def test_from_50_to_25_and_back_keeps_the_shape(seed: int) -> None:
    cells = solve(planted(seed, steps=50), alpha=0.15, how="reuse").rows["ff"]
    half = stretch(cells, 25)
    back = stretch(half, 50)
    assert abs(half.count("1") - cells.count("1") / 2) <= 2
    assert abs(back.count("1") - cells.count("1")) <= 4
    for quarter in range(4):  # the share is kept where it was, not only on the whole
        then, now = (row[quarter * 12 : quarter * 12 + 14] for row in (cells, back))
        assert abs(now.count("1") - then.count("1")) <= 3

"""The comparison with constants: a gain is claimed where there is one, and nowhere else."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from accel.errors import AccelError
from accel.schedulers.difficulty import frontier
from accel.schedulers.difficulty.evaluate import evaluate, intraclass
from accel.schedulers.difficulty.evaluation import Evaluation
from tests.schedulers.planted import COUNTS, planted

QUICK = 200


@pytest.fixture(scope="module")
def found() -> Evaluation:
    return evaluate(planted(), resamples=QUICK)


def value(found: Evaluation, name: str, target: float = 0.9) -> float:
    return found.needs[name][target].value


def test_a_predictor_that_knows_beats_every_constant(found: Evaluation) -> None:
    gain = found.gains[0.95]
    assert gain.low > 0.05 and gain.value == pytest.approx(
        1 - value(found, "predictor", 0.95) / value(found, "two constants mixed", 0.95)
    )
    assert found.verdict.ship and "fewer steps at 95%" in str(found.verdict)
    assert found.rank > 0.9 and found.correlation.value > 0.7


def test_ways_are_in_their_order(found: Evaluation) -> None:
    ceiling, prompts = value(found, "oracle of pictures"), value(found, "oracle of prompts")
    assert ceiling < prompts < value(found, "predictor") < value(found, "two constants mixed")
    assert value(found, "two constants mixed") <= value(found, "constant")
    assert value(found, "shuffled predictor") > 1.15 * value(found, "predictor")
    assert value(found, "constant") in COUNTS


def test_calibration_alone_meets_the_target(found: Evaluation) -> None:
    for target in (0.8, 0.9):
        interval = found.deployed[target]["predictor, good"]
        assert interval.low - 0.02 <= target <= interval.high + 0.1


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_features_that_tell_nothing_gain_nothing(seed: int) -> None:
    found = evaluate(planted(tells=False, spread=0.3, seed=seed), resamples=QUICK)
    assert found.gains[0.95].low <= 0.02 and not found.verdict.ship
    assert found.correlation.value > 0.7  # there is something to predict, it just cannot be seen


def test_nothing_to_predict_is_said() -> None:
    found = evaluate(planted(spread=0.0), resamples=QUICK)
    assert abs(found.correlation.value) < 0.1
    assert not found.verdict.ship and "the noise's more than the prompt's" in found.verdict.reason


def test_what_no_constant_reaches_is_no_gain() -> None:
    found = evaluate(planted(spread=0.6), resamples=50)
    assert found.by_count[20] < 0.95 and math.isnan(found.gains[0.95].value)
    assert not found.verdict.ship and "no constant surely makes 95%" in found.verdict.reason
    assert "not known at 95%" in str(found) and found.to_dict()["gains"]["0.95"]["value"] is None


def test_result_is_json_and_a_table(found: Evaluation) -> None:
    told = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert told["needs"]["predictor"]["0.95"]["value"] == value(found, "predictor", 0.95)
    assert told["by_count"]["20"] == pytest.approx(float((planted().psnr[..., -1] >= 30).mean()))
    lines = str(found).splitlines()
    assert lines[1].startswith("intraclass correlation of log N*: 0.")
    assert any(line.startswith("oracle of pictures") for line in lines) and lines[-1].startswith("use the predictor")


def test_too_few_kinds_of_prompts_are_refused() -> None:
    with pytest.raises(AccelError, match="11 kinds of prompts are too few to judge by: give 12"):
        evaluate(planted(prompts=22))


# --- parts ------------------------------------------------------------------------------------------------------------


def test_intraclass_correlation_of_known_spreads() -> None:
    draw = np.random.default_rng(0)
    rows = draw.normal(size=(400, 1))
    assert intraclass(rows + draw.normal(size=(400, 8)), QUICK).value == pytest.approx(0.5, abs=0.06)
    assert intraclass(rows + np.zeros((400, 8)), QUICK).value == 1
    assert intraclass(draw.normal(size=(400, 8)), QUICK).value == pytest.approx(0, abs=0.05)
    assert intraclass(np.ones((5, 3)), QUICK).value == 0


def test_a_mixture_lies_between_two_constants() -> None:
    good = np.zeros((10, 2, 3), bool)
    good[:, :, 2] = True
    good[:5, :, 1] = True  # half of the prompts are good with 8 steps
    way = frontier.constant(good, (4, 8, 12))
    assert way.needs(0.75) == pytest.approx(10) and way.needs(0.75, mixed=False) == 12
    assert way.needs(0.5) == 8 and way.needs(0.25) == pytest.approx(6)
    assert math.isnan(frontier.constant(good[..., :2], (4, 8)).needs(0.75))


def test_a_lucky_position_does_not_count() -> None:
    way = frontier.Way("dips", np.array([[4.0, 8, 12, 16]]), np.array([[0.0, 1.0, 0.4, 1.0]]))
    assert way.needs(0.9) == pytest.approx(12 + 4 * 5 / 6)


def test_the_oracle_gives_steps_where_they_help() -> None:
    good = np.array([[[1, 1, 1]] * 2, [[0, 0, 1]] * 2, [[0, 0, 0]] * 2, [[0, 1, 1]] * 2], bool)
    way = frontier.oracle(good, (4, 8, 12), "oracle")
    assert way.steps[:, -1].tolist() == [4, 12, 4, 8]  # what no steps can mend gets the fewest
    assert way.good[:, -1].tolist() == [1, 1, 0, 1]

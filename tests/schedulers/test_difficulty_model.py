"""The predictor of step counts on planted worlds: what it promises, what it refuses, and that files bring it back."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.measure.identity import identity
from accel.schedulers.difficulty.curves import Curves, Goal, log_needed, needed
from accel.schedulers.difficulty.model import ABOUT, TENSORS, DifficultyModel, choose
from accel.schedulers.difficulty.ridge import fit, split
from accel.schedulers.difficulty.training import scores, train
from accel.target import Target
from tests.families import case
from tests.schedulers.planted import COUNTS, planted


@pytest.fixture(scope="module")
def model() -> DifficultyModel:
    return train(planted())


# --- needs ------------------------------------------------------------------------------------------------------------


def test_a_count_is_enough_when_it_and_all_larger_ones_are() -> None:
    good = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 0]], bool)
    assert needed(good).tolist() == [0, 1, 2, 3]
    assert np.exp(log_needed(needed(good), (4, 8, 12))).round(6).tolist() == [4, 8, 12, 18]


def test_the_score_is_where_the_choice_changes() -> None:
    expected, index = np.log(np.array([9.0, 5.0])), np.array([[0, 3, 7], [1, 6, 2]])
    for row, reached in enumerate(scores(expected, index, COUNTS)):
        for score, wanted in zip(reached, index[row], strict=True):
            if math.isfinite(score):
                assert choose(expected[row : row + 1] + score, COUNTS)[0] == wanted
                assert choose(expected[row : row + 1] + score - 1e-6, COUNTS)[0] < wanted
    assert choose(np.array([-np.inf, np.inf]), COUNTS).tolist() == [0, len(COUNTS) - 1]


def test_goals() -> None:
    curves = planted(prompts=4, seeds=2)
    right = np.zeros(curves.psnr.shape, bool)
    right[0, 0, 3:] = True
    long_right = np.array([[True, True]] * 4)
    long_right[1] = False
    judged = dataclasses.replace(curves, right=right, long_right=long_right)
    assert (judged.success(Goal("facts"))[1]).all()  # the long run cannot do it either
    assert judged.success(Goal("facts"))[0, 0].tolist() == [False] * 3 + [True] * 4
    assert (curves.success(Goal("30 dB")) == (curves.psnr >= 30)).all() and Goal("facts").decibels is None
    with pytest.raises(AccelError, match="without a judge: ask for a goal in dB"):
        curves.success(Goal("facts"))
    with pytest.raises(AccelError, match="no goal 'good': say '30 dB'"):
        Goal("good")


# --- fitting ----------------------------------------------------------------------------------------------------------


def test_the_planted_difficulty_is_found() -> None:
    found, fresh = train(planted()), planted(seed=1)
    true = log_needed(needed(fresh.success(Goal())), COUNTS).mean(1)
    assert np.corrcoef(found.difficulty(fresh.features), true)[0, 1] > 0.9


def test_features_that_tell_nothing_are_shrunk_away() -> None:
    features = planted().features
    spreads = [np.std(train(planted(tells=False, seed=seed)).difficulty(features)) for seed in (1, 2, 3)]
    assert max(spreads) < 0.15 < np.std(train(planted(seed=1)).difficulty(features))


def test_ridge_is_the_closed_form() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(20, 5)), draw.normal(size=20)
    found = fit(x, y, [str(row) for row in range(20)], ridges=(0.5,))
    z = (x - x.mean(0)) / x.std(0)
    expected = np.linalg.solve(z.T @ z + 0.5 * 20 * np.eye(5), z.T @ (y - y.mean()))
    assert found.weights == pytest.approx(expected) and found.bias == pytest.approx(y.mean())


def test_a_constant_feature_is_harmless() -> None:
    x = np.column_stack([np.full(10, 0.1), np.arange(10.0)])
    found = fit(x, np.arange(10.0), [str(row) for row in range(10)], ridges=(1e-6,))
    assert found(x) == pytest.approx(np.arange(10.0), abs=1e-3)
    assert found(x + [[5.0, 0.0]]) == pytest.approx(np.arange(10.0), abs=1e-3)


def test_groups_stay_whole() -> None:
    groups = [f"g{number // 3}" for number in range(30)]
    parts = split(groups, 3)
    assert all(len(set(parts[3 * k : 3 * k + 3])) == 1 for k in range(10)) and set(parts) == {0, 1, 2}
    assert (parts == split(groups, 3)).all()


# --- promises ---------------------------------------------------------------------------------------------------------


def test_success_is_monotone_in_steps(model: DifficultyModel) -> None:
    for features in (planted().features, 100 * planted(seed=5).features):
        found = model.probability(features)
        assert found.shape == (96, len(COUNTS)) and (np.diff(found, axis=1) >= 0).all()
        assert found.min() >= 0 and found.max() <= 1
        by_target = np.array([model.steps(features, target) for target in (0.5, 0.8, 0.9, 0.95)])
        assert (np.diff(by_target, axis=0) >= 0).all()


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("target", [0.8, 0.9])
def test_the_target_is_met_on_new_prompts(tells: bool, target: float) -> None:
    """Over 40 worlds; in each, half of the prompts are new. The mean share is held against its own standard error."""
    shares = []
    for seed in range(40):
        whole = planted(prompts=180, seeds=4, tells=tells, seed=seed)
        index = needed(whole.success(Goal()))
        model = train(_half(whole))
        chosen = np.searchsorted(COUNTS, model.steps(whole.features[90:], target))
        shares.append(float((chosen[:, None] >= index[90:]).mean()))
    error = np.std(shares) / math.sqrt(len(shares))
    assert target - 3 * error <= np.mean(shares) <= target + 0.12  # above: counts are coarse


def _half(curves: Curves) -> Curves:
    parts = ("prompts", "groups", "psnr", "features")
    return dataclasses.replace(curves, **{name: getattr(curves, name)[:90] for name in parts})


def test_what_cannot_be_promised_gets_the_most_steps(model: DifficultyModel) -> None:
    assert 0.95 < model.highest_target < 1
    assert set(model.steps(planted().features, 0.999)) == {20}
    few = dataclasses.replace(model, scores=model.scores[:9])  # 9 calibration prompts promise 90 % and no more
    assert few.highest_target <= 0.9 and math.isinf(few.offset(0.95)) and math.isfinite(few.offset(0.6))
    for target in (0.0, 1.0, math.nan):
        with pytest.raises(AccelError, match="between 0 and 1"):
            model.offset(target)


# --- files and pipelines ----------------------------------------------------------------------------------------------


def test_saved_and_loaded_is_the_same(model: DifficultyModel, tmp_path: Path) -> None:
    model.save(tmp_path / "made")
    again, features = DifficultyModel.load(tmp_path / "made"), planted(seed=9).features
    assert again.steps(features, 0.9) == model.steps(features, 0.9)
    assert (again.probability(features) == model.probability(features)).all()
    assert (again.counts, again.goal, again.fingerprint, again.call) == (COUNTS, Goal(), model.fingerprint, model.call)
    held = torch.from_numpy(features).requires_grad_()  # as a pipeline that is not frozen may give them
    assert again.steps(held, 0.9) == model.steps(features, 0.9)


def test_broken_files_are_refused(model: DifficultyModel, tmp_path: Path) -> None:
    def spoil(**changed: object) -> None:
        model.save(tmp_path)
        told = json.loads((tmp_path / ABOUT).read_text())
        (tmp_path / ABOUT).write_text(json.dumps(told | changed))

    with pytest.raises(AccelError, match="No such file"):
        DifficultyModel.load(tmp_path / "nowhere")
    for changed in ({"counts": [8, 4]}, {"counts": ["8", 4]}, {"goal": "nice"}, {"fingerprint": {}}, {"bias": None}):
        spoil(**changed)
        with pytest.raises(AccelError, match="holds no predictor of accel difficulty train"):
            DifficultyModel.load(tmp_path)
    spoil(format=99)
    with pytest.raises(AccelError, match="not of this version"):
        DifficultyModel.load(tmp_path)
    (tmp_path / TENSORS).write_bytes(b"\x80\x04pickle")
    with pytest.raises(AccelError, match="damaged or something else"):
        DifficultyModel.load(tmp_path)


def test_other_features_are_refused(model: DifficultyModel) -> None:
    with pytest.raises(AccelError, match="reads 12 features of a prompt, not .*another text encoder"):
        model.steps(np.zeros((2, 13)))
    with pytest.raises(AccelError, match="NaN or infinity"):
        model.steps(np.full((2, 12), np.nan))


def test_another_pipeline_is_refused_or_warned_of(model: DifficultyModel) -> None:
    pipe = case("sd").build()
    target = Target.of(pipe)
    mark = Fingerprint.of(target, 64, {})
    fits = dataclasses.replace(model, fingerprint=mark, weights_mark=identity(pipe)["weights"])
    assert fits.fingerprint_problems(target) == ([], [])
    for changed, reason in (
        ({"denoiser": "Other"}, "trained for Other, this is UNet2DConditionModel"),
        ({"config": "x"}, "another UNet2DConditionModel"),
        ({"scheduler": "LCMScheduler"}, "trained with LCMScheduler, this pipeline has"),
    ):
        (refused,), warned = dataclasses.replace(
            fits, fingerprint=dataclasses.replace(mark, **changed)
        ).fingerprint_problems(target)
        assert reason in refused and not warned
    other = dataclasses.replace(fits, weights_mark="12345678")
    assert other.fingerprint_problems(target)[1] == [
        "the predictor was trained for other weights, or another precision, of this model"
    ]
    (warning,) = model.call_problems({"guidance_scale": 7.5, "prompt": "x"})
    assert warning == "the predictor was trained with guidance_scale=4.0, this call has 7.5"


def test_too_little_to_learn_from_is_refused() -> None:
    curves = planted(prompts=6, spread=0.0)
    with pytest.raises(AccelError, match="every picture reaches 1 dB with 4 steps"):
        train(curves, "1 dB")
    with pytest.raises(AccelError, match="no picture reaches 90 dB with 20 steps"):
        train(curves, "90 dB")
    one = dataclasses.replace(curves, groups=("a",) * 6)
    with pytest.raises(AccelError, match="too few to train on some and calibrate on others"):
        train(one)

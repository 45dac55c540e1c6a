"""Searching for a noise: the planted best is found, the work is counted true, and the pipeline is left as it was."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import accel
from accel.caches.deepcache import DeepCache
from accel.contract.census import Census
from accel.contract.trace import trace
from accel.errors import AccelError
from accel.measure.arms import draw
from accel.schedulers.search import Found, search
from accel.schedulers.search.drawing import Prune, best
from accel.schedulers.search.verifiers import Clip, Facts
from accel.tiny.prompts import prompts
from accel.tiny.render import render
from tests.families import case, with_scheduler
from tests.schedulers.small import small

PROMPT, STEPS = "a red star", 4


def brightness(pictures: torch.Tensor, prompt: str) -> torch.Tensor:
    """Smooth, and a picture's own."""
    return pictures.mean((1, 2, 3))


@pytest.fixture(scope="module")
def pipe() -> Any:
    return small()


def found(pipe: Any, **more: Any) -> Found:
    return search(pipe, PROMPT, **{"verifier": brightness, "steps": STEPS, "candidates": 4, "seed": 5, **more})


def plainly(pipe: Any, *seeds: int, steps: int = STEPS) -> torch.Tensor:
    return draw(pipe, [PROMPT] * len(seeds), seeds, steps, {})


# --- what is found ----------------------------------------------------------------------------------------------------


def test_the_planted_best_is_found_and_drawn_again_from_its_seed(pipe: Any) -> None:
    wanted = plainly(pipe, 8)[0]

    def likeness(pictures: torch.Tensor, prompt: str) -> torch.Tensor:
        assert prompt == PROMPT and pictures.shape[1:] == wanted.shape
        return -(pictures - wanted).square().mean((1, 2, 3))

    got = found(pipe, verifier=likeness, candidates=6, batch=4)
    assert got.seed == 8 and got.score == max(got.scores) == got.scores[3]
    assert torch.allclose(plainly(pipe, got.seed)[0], got.picture, atol=1e-4)
    again = pipe(PROMPT, latents=got.noise, num_inference_steps=STEPS, output_type="pt").images[0]
    assert torch.allclose(again, got.picture, atol=1e-4)


@pytest.mark.parametrize("method", ["random", "zero_order", "paths"])
def test_the_same_seed_finds_the_same_picture(pipe: Any, method: str) -> None:
    one, two = (found(pipe, method=method, steps=8) for _ in range(2))
    assert torch.equal(one.picture, two.picture) and one.scores == two.scores
    assert one.scores != found(pipe, method=method, steps=8, seed=50).scores
    assert one.score == max(one.scores) and one.score == brightness(one.picture[None], "").item()


@pytest.mark.parametrize("method", ["random", "zero_order"])
def test_more_candidates_are_never_worse(pipe: Any, method: str) -> None:
    few, many = (found(pipe, method=method, candidates=count) for count in (4, 9))
    assert many.scores[:4] == pytest.approx(few.scores, abs=1e-5)
    assert many.score >= few.score - 1e-5


def test_zero_order_climbs(pipe: Any) -> None:
    got = found(pipe, method="zero_order", candidates=16)
    bests = [score for _, score in got.progress]
    assert len(bests) == 4 and bests == sorted(bests) and bests[-1] > bests[0]
    assert got.seed is None and got.noise is not None and got.noise.shape == (1, 4, 8, 8)
    later = got.scores[4:]
    assert sum(later) / len(later) > sum(got.scores[:4]) / 4  # neighbours of a good noise are good


def test_paths_take_noise_on_the_way(pipe: Any) -> None:
    got = found(pipe, method="paths", candidates=4, steps=10)
    assert len(got.scores) == 4 and len(set(got.scores)) == 4
    assert got.seed is None and got.noise is None and got.picture.isfinite().all()
    # 3 steps for four, back 2, 6 - 1 steps, back 2, 10 - 4 steps; guidance counts twice
    assert got.evaluations == 2 * 4 * (3 + 5 + 6)


# --- what it costs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["random", "zero_order", "paths"])
def test_work_is_counted_true(pipe: Any, method: str) -> None:
    inside = next(module for module in pipe.unet.modules() if isinstance(module, torch.nn.Conv2d))
    with Census.of({"first layer": inside}) as census:  # runs exactly when the denoiser is computed
        got = found(pipe, method=method, candidates=5, batch=2, steps=6)
    assert got.evaluations == census.total("first layer")
    assert got.progress[-1][0] == got.evaluations


def test_previews_save_calls_and_keep_the_pictures(pipe: Any) -> None:
    whole = found(pipe, candidates=8, steps=8)
    pruned = found(pipe, candidates=8, steps=8, prune=Prune(after=0.25, keep=0.25))
    assert whole.evaluations == 2 * 8 * 8 and pruned.evaluations == 2 * (8 * 2 + 2 * 6)
    kept = [row for row, dropped in enumerate(pruned.dropped) if not dropped]
    assert len(kept) == 2 and pruned.seed in [5 + row for row in kept]
    for row in kept:
        assert pruned.scores[row] == pytest.approx(whole.scores[row], abs=1e-5)
    assert torch.allclose(pruned.picture, plainly(pipe, pruned.seed, steps=8)[0], atol=1e-4)


@pytest.mark.parametrize("solver", ["dpm++", "euler-a", "lcm"])
def test_previews_with_other_solvers(solver: str) -> None:
    pipe = with_scheduler(small(), solver)
    whole, pruned = (found(pipe, steps=6, prune=prune) for prune in (None, Prune()))
    for row, dropped in enumerate(pruned.dropped):
        assert dropped or pruned.scores[row] == pytest.approx(whole.scores[row], abs=1e-4)
    assert sum(pruned.dropped) == 2


def test_the_alternative_has_the_same_work(pipe: Any) -> None:
    got = found(pipe, compare=True)
    assert got.more_steps is not None and got.more_steps.steps == 4 * STEPS
    assert torch.allclose(got.more_steps.picture, plainly(pipe, 5, steps=4 * STEPS)[0], atol=1e-4)
    cheaper = found(pipe, compare=True, steps=8, prune=Prune(0.25, 0.25))  # 4 · 2 + 1 · 6 steps
    assert cheaper.more_steps is not None and cheaper.more_steps.steps == 14
    assert got.evaluations == 2 * 4 * STEPS and "the same work as 16 steps of one picture" in str(got)


# --- what is left behind ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["random", "zero_order", "paths"])
def test_the_pipeline_is_left_as_it_was(pipe: Any, method: str) -> None:
    plain = plainly(pipe, 1)
    before = trace(pipe)
    found(pipe, method=method, steps=6)

    def fail(pictures: torch.Tensor, prompt: str) -> torch.Tensor:
        raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        found(pipe, method=method, steps=6, verifier=fail)
    assert trace(pipe) == before and torch.equal(plainly(pipe, 1), plain)


def test_a_plan_may_be_attached_where_runs_are_whole() -> None:
    pipe = small()
    with accel.accelerate(pipe, DeepCache(interval=2)) as handle:
        got = found(pipe, steps=6)
        assert handle.report().predicted > 0 and got.seed is not None
        with pytest.raises(AccelError, match="has a plan attached"):
            found(pipe, steps=6, prune=Prune())


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"candidates": 0}, "candidates must be a whole number from 1 up, not 0"),
        ({"steps": 2.5}, "steps must be a whole number"),
        ({"method": "luck"}, "no search is called 'luck': there are random, zero_order, paths"),
        ({"verifier": 3}, "int cannot be called"),
        ({"call": {"latents": None}}, "the search itself says what latents is"),
        ({"method": "paths", "prune": Prune()}, "paths are pruned at their own levels"),
        ({"verifier": lambda pictures, prompt: torch.zeros(2)}, r"gave \(2,\) for 4 pictures"),
        ({"verifier": lambda pictures, prompt: torch.full((4,), torch.nan)}, "not finite"),
    ],
)
def test_mistakes_are_told(pipe: Any, more: dict[str, Any], reason: str) -> None:
    with pytest.raises(AccelError, match=reason):
        found(pipe, **more)


def test_more_mistakes() -> None:
    with pytest.raises(AccelError, match="give a text that is not empty"):
        search(small(), "  ", brightness)
    with pytest.raises(AccelError, match="each within 0 and 1"):
        Prune(keep=1.0)
    with pytest.raises(AccelError, match="takes two steps for each timestep"):
        found(with_scheduler(small(), "heun"), method="paths")
    with pytest.raises(AccelError, match="keeps a history"):
        found(with_scheduler(small(), "pndm"), method="paths")
    with pytest.raises(AccelError, match="takes no latents"):
        search(case("dit").build(), PROMPT, brightness, method="zero_order")


def test_clip_is_asked_for_every_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    class Score:
        def __init__(self, source: str, device: str) -> None:
            assert (source, device) == ("my-clip", "cpu")

        def __call__(self, pictures: torch.Tensor, truth: torch.Tensor, prompts: list[str]) -> torch.Tensor:
            assert prompts == [PROMPT] * len(pictures)
            return brightness(pictures, PROMPT)

    monkeypatch.setattr("accel.measure.clip.ClipScore", Score)
    got = found(small(), verifier=Clip("my-clip"), candidates=2)
    assert got.scores == found(small(), candidates=2).scores


def test_best_takes_the_first_of_equals() -> None:
    assert best([1.0, 3.0, 2.0, 3.0], 2) == [1, 3] and best([1.0, 1.0, 1.0], 2) == [0, 1]


def test_facts_are_shares_of_what_is_stated() -> None:
    (scene,) = prompts("one", 1)
    drawn = torch.from_numpy(render(scene)).permute(2, 0, 1).float() / 255
    score = Facts(scene)
    right, empty = score(torch.stack([drawn, torch.full_like(drawn, 0.5)]), scene.caption).tolist()
    assert right == 1.0 and empty <= 0.5
    with pytest.raises(AccelError, match="this verifier is for"):
        score(torch.zeros(1, 3, 64, 64), PROMPT)

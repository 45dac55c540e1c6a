"""The report says why a run was not faster."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
from diffusers import EulerDiscreteScheduler

import accel
from accel import AccelWarning, Report
from accel.caches.deepcache import DeepCache
from accel.caches.dynamic.technique import ResidualCache
from accel.caches.guidance import GuidanceCache
from accel.distilled import signs
from accel.target import Target
from tests.families import case
from tests.toy import draw, sample, toy

FEW = "steps are far apart, and the first of them are computed: only `lossless` is sure to save there"


def hints(plan: Any, steps: int, pipe: Any = None) -> list[str]:
    """Of a run of a denoiser with a few blocks."""
    pipe = pipe or toy()
    with warnings.catch_warnings(), accel.accelerate(pipe, plan) as handle:
        warnings.simplefilter("ignore", AccelWarning)
        draw(pipe, sample(0), steps)
        report = handle.report()
    assert all(f"\nwhy not faster: {hint}" in str(report) for hint in report.hints)
    assert report.to_dict()["hints"] == report.hints
    return report.hints


def test_too_few_steps() -> None:
    """For the table, and for neighbouring steps to be alike."""
    assert hints(DeepCache(), 3) == [
        "deepcache saved nothing: its table has nothing to predict in 3 steps",
        f"3 {FEW}",
    ]
    assert hints(DeepCache(warm_up=2), 7) == [f"7 {FEW}"]
    assert hints(DeepCache(), 8) == []


def test_a_threshold_that_is_never_reached() -> None:
    (hint,) = hints(ResidualCache(threshold=1e-9, warm_up=2), 8)
    assert hint == "residual saved nothing: the indicator was above the threshold (5x)"


def test_no_hit_for_want_of_guidance() -> None:
    (hint,) = hints(GuidanceCache(), 8)
    assert hint.startswith("guidance saved nothing: the denoiser is not called with an unconditional and a conditional")


def test_a_technique_that_saves_is_not_blamed_for_the_other() -> None:
    assert [hint.partition(" ")[0] for hint in hints([DeepCache(), GuidanceCache()], 8)] == ["guidance"]


def test_a_broken_run_explains_nothing() -> None:
    pipe = toy()

    class Stop(Exception):
        pass

    def stop(step: int, now: Any) -> Any:
        raise Stop

    with accel.accelerate(pipe, DeepCache()) as handle:
        with pytest.raises(Stop):
            draw(pipe, sample(0), 3, drift=stop)
        handle.reset()
        assert handle.report().aborted and handle.report().hints == []


def test_every_run_explains_itself_alone() -> None:
    pipe = toy()
    with accel.accelerate(pipe, DeepCache()) as handle:
        with pytest.warns(AccelWarning, match="deepcache saved nothing in this run"):
            draw(pipe, sample(0), 3)
        draw(pipe, sample(0), 8)
        assert handle.report().hints == []


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("flux", ["transformer is told the guidance scale"]),
        ("sd-lcm", ["unet is told the guidance scale", "LCMScheduler is for models distilled to a few steps"]),
        ("flux-cfg", []),
        ("sd", []),
    ],
)
def test_distilled_models_are_known_by_their_configuration(name: str, expected: list[str]) -> None:
    pipe = case(name).build()
    found = signs(Target.of(pipe))
    assert [text.startswith(start) for text, start in zip(found, expected, strict=True)] == [True] * len(expected)
    if name == "sd-lcm":
        pipe.scheduler = EulerDiscreteScheduler.from_config(pipe.scheduler.config)
        assert len(signs(Target.of(pipe))) == 1


def test_a_distilled_model_is_told_where_something_saved_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = toy()
    monkeypatch.setattr(type(pipe.transformer), "config", {"guidance_embeds": True}, raising=False)
    assert hints(DeepCache(), 8, pipe) == []
    nothing, distilled = hints(GuidanceCache(), 8, pipe)
    assert distilled == (
        "transformer is told the guidance scale (distilled guidance), so no second half of guidance can be saved"
    )


def test_a_report_without_hints_says_nothing_more() -> None:
    assert "why not faster" not in str(Report("Pipe", "plan", 4, 4))

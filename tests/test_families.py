"""The tiny pipelines themselves: deterministic, batchable, and attentive to what they are told."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch

from tests.families import CASES, GUIDANCE_MODES, Case, case, run, scheduler_names, with_scheduler

ALL = pytest.mark.parametrize("name", CASES)
SOLVER_CASES = ("sd", "dit", "sd3", "flux", "wan", "ltx", "cogvideox", "stable-audio")


@cache
def _pipe(name: str) -> Any:
    """One pipeline per case: runs leave nothing behind, as the first test proves."""
    return case(name).build()


@cache
def _plain(name: str) -> torch.Tensor:
    """The output of the default inputs in two steps."""
    return run(case(name), _pipe(name), steps=2)


def _with_other_prompt(one: Case, pipe: Any) -> torch.Tensor:
    """As ``_plain``, but with the prompt of seed 1."""
    kept, other = one.inputs(steps=2), one.inputs(steps=2, seed=1)
    return one.output(pipe(**{k: other[k] if _is_prompt(k) else kept[k] for k in kept}))


def _is_prompt(key: str) -> bool:
    return key == "class_labels" or ("prompt_embeds" in key and "negative" not in key)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    """Difference of two outputs in units of their spread."""
    return ((a - b).std() / b.std()).item()


def _first(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor | list[torch.Tensor]:
    return args[0] if args else kwargs["hidden_states"]


def _counted(one: Case, pipe: Any, **kw: Any) -> tuple[torch.Tensor, list[int]]:
    """The output of one run, and the batch size of each of its denoiser calls."""
    seen: list[int] = []

    def note(_module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        seen.append(len(_first(args, kwargs)))

    hooks = [getattr(pipe, name).register_forward_pre_hook(note, with_kwargs=True) for name in one.denoisers]
    out = run(one, pipe, **kw)
    for hook in hooks:
        hook.remove()
    return out, seen


@ALL
def test_same_weights_and_same_output_every_time(name: str) -> None:
    one = case(name)
    pipe = _pipe(name)
    first = _plain(name)
    assert first.isfinite().all()
    assert first.shape[0] == 1
    assert torch.equal(first, run(one, pipe, steps=2))
    assert torch.equal(first, run(one, one.build(), steps=2))


@ALL
def test_batch_equals_singles(name: str) -> None:
    one = case(name)
    pipe = _pipe(name)
    both = run(one, pipe, steps=2, batch=2)
    singles = [_plain(name), run(one, pipe, steps=2, seed=1)]
    torch.testing.assert_close(both, torch.cat(singles), atol=1e-4, rtol=0)
    assert _distance(singles[0], singles[1]) > 0.1


@ALL
def test_output_reacts_to_prompt_and_steps(name: str) -> None:
    one = case(name)
    pipe = _pipe(name)
    plain = _plain(name)
    assert _distance(_with_other_prompt(one, pipe), plain) > 0.02
    assert _distance(run(one, pipe, steps=4), plain) > 0.02


@ALL
def test_other_resolutions(name: str) -> None:
    one = case(name)
    for size in one.sizes[1:]:
        out = run(one, _pipe(name), steps=2, size=size)
        assert out.isfinite().all()
        assert out.numel() > _plain(name).numel()


@ALL
def test_guidance_is_what_the_case_says(name: str) -> None:
    one = case(name)
    assert one.family in ("unet", "dit")
    assert one.guidance in GUIDANCE_MODES
    guided, on = _counted(one, _pipe(name), steps=2)
    unguided, off = _counted(one, _pipe(name), steps=2, guidance=False)
    assert set(off) == {1}
    assert set(on) == ({2} if one.guidance == "batched" else {1})
    assert len(on) == len(off) * (2 if one.guidance == "sequential" else 1)
    assert (_distance(unguided, guided) > 0.02) == (one.guidance != "none")


def test_both_experts_take_part() -> None:
    one = case("wan-two-experts")
    pipe = one.build()
    run(one, pipe)
    steps = pipe.scheduler.timesteps
    boundary = pipe.config.boundary_ratio * pipe.scheduler.config.num_train_timesteps
    assert 2 <= (steps >= boundary).sum() <= len(steps) - 2


@pytest.mark.parametrize("name", SOLVER_CASES)
def test_solvers(name: str) -> None:
    one = case(name)
    pipe = one.build()
    results = {}
    for solver in scheduler_names(pipe):
        results[solver] = run(one, with_scheduler(pipe, solver), steps=2)
        assert results[solver].isfinite().all()
        if solver in ("lcm", "euler-a"):  # they add noise in every step
            assert torch.equal(results[solver], run(one, pipe, steps=2)), solver
    assert len({float(value.sum()) for value in results.values()}) > 1


def test_unknown_names_are_refused() -> None:
    with pytest.raises(KeyError, match="there are sd,"):
        case("no such case")
    with pytest.raises(ValueError, match="LTXPipeline has no solver 'heun' here, only euler"):
        with_scheduler(case("ltx").build(), "heun")

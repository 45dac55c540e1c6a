"""Whole denoiser calls predicted: which, from what, and each picture of a batch for itself."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline
from diffusers.models.modeling_outputs import Transformer2DModelOutput

import accel
from accel import AccelError, AccelWarning
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.rehash import StepRehash
from accel.caches.rows import join, split
from accel.report import Report
from tests.contract.support import may_save_nothing, same
from tests.families import case, run

ROUNDING = {"atol": 1e-3, "rtol": 0.0}
"""Of matrix products of another batch size, see the contract."""


def _pipe(name: str) -> DiffusionPipeline:
    return case(name).build()


def _outputs(pipe: DiffusionPipeline, name: str, **kw: Any) -> list[torch.Tensor]:
    """What the denoiser gave the pipeline, call by call."""
    seen: list[torch.Tensor] = []
    hook = getattr(pipe, case(name).denoisers[0]).register_forward_hook(
        lambda module, args, output: seen.append(output[0].clone())
    )
    run(case(name), pipe, **kw)
    hook.remove()
    return seen


def _report(pipe: DiffusionPipeline, name: str, plan: Any, **kw: Any) -> Report:
    with may_save_nothing(), accel.accelerate(pipe, plan) as handle:
        run(case(name), pipe, **kw)
        return handle.report()


# Rows


def test_split_and_join_are_inverse() -> None:
    tensor = torch.arange(12.0).reshape(3, 4)
    for tree in [(tensor, None), {"sample": tensor}, Transformer2DModelOutput(sample=tensor), ([*tensor],)]:
        parts = split(tree, 3)
        again = join([parts[2], parts[0], parts[1]])
        assert type(again) is type(tree)
        (rows,) = (value for value in (again.values() if hasattr(again, "values") else again) if value is not None)
        assert torch.equal(torch.stack(list(rows)), tensor[[2, 0, 1]])


def test_joined_rows_are_new_memory() -> None:
    tensor = torch.zeros(2, 3)
    join(split(tensor, 2)).fill_(1)
    assert tensor.sum() == 0


# The fixed rule


@pytest.mark.parametrize(
    ("settings", "strip"),
    [
        (StepRehash(), "###.#.#.##"),
        (StepRehash(warm_up=2, how="reuse"), "##.#.#.#.#"),
        (StepRehash(interval=3, warm_up=2, how="reuse"), "##..#..#.#"),
        (StepRehash(interval=99, warm_up=1, how="reuse"), "#........#"),
        (StepRehash(warm_up=1), "##.#.#.#.#"),  # a line needs two values
        (StepRehash(interval=1), "##########"),
        (StepRehash(warm_up=9), "##########"),
    ],
    ids=str,
)
def test_steps_that_are_predicted(settings: StepRehash, strip: str) -> None:
    report = _report(_pipe("pixart"), "pixart", settings, steps=10)
    assert report.techniques["rehash"].strip == strip
    assert report.calls_computed == strip.count("#") and report.rows_computed == 2 * strip.count("#")
    assert report.cache_bytes == 0


def test_reused_and_extrapolated_outputs() -> None:
    """At step 2 the whole output is the last one, or lies on the line through the last two, at the solver's time."""
    pipe = _pipe("pixart")
    with accel.accelerate(pipe, StepRehash(warm_up=2, how="reuse")):
        seen = _outputs(pipe, "pixart", steps=4)
    assert torch.equal(seen[2], seen[1]) and not torch.equal(seen[1], seen[0])
    with accel.accelerate(pipe, StepRehash(warm_up=2)):
        seen = _outputs(pipe, "pixart", steps=4)
    t0, t1, t2 = pipe.scheduler.timesteps[:3].tolist()
    line = seen[0] + (t2 - t0) / (t1 - t0) * (seen[1] - seen[0])
    torch.testing.assert_close(seen[2], line, atol=1e-5, rtol=0)


def test_two_calls_per_step_are_predicted_together() -> None:
    pipe = _pipe("wan")
    report = _report(pipe, "wan", StepRehash(warm_up=2), steps=6)
    assert report.calls == {"transformer/cond": 6, "transformer/uncond": 6}
    assert report.techniques["rehash"].strip == "##.#.#"
    assert (report.techniques["rehash"].computed, report.techniques["rehash"].predicted) == (8, 4)


def test_kept_bytes_are_those_of_the_outputs() -> None:
    """Two values of (2 · batch) outputs with eight channels of 16 x 16 numbers of four bytes."""
    for batch in (1, 3):
        report = _report(_pipe("pixart"), "pixart", StepRehash(warm_up=2), steps=6, batch=batch)
        assert 2 * (2 * batch * 8 * 16 * 16 * 4) <= report.cache_bytes_peak <= 2 * (2 * batch + 1) * 8 * 16 * 16 * 4


def test_values_from_before_a_change_are_never_used() -> None:
    """The batch shrinks after step 2: what follows is computed until there are two new values."""

    def shrink(pipe: Any, step: int, t: Any, now: dict[str, Any]) -> dict[str, Any]:
        if step == 2:
            return {"latents": now["latents"][:1], "prompt_embeds": now["prompt_embeds"][::2]}
        return {}

    more = {"callback_on_step_end": shrink, "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"]}
    report = _report(_pipe("sd"), "sd", StepRehash(warm_up=2), steps=8, batch=2, **more)
    part = report.techniques["rehash"]
    assert part.strip == "##.##.##"
    assert part.declined["the denoiser's input changed its shape or type"] == 1


# The rule by similarity


def _similarities(outputs: list[torch.Tensor]) -> list[float]:
    """1 - |y_t - y_s| / |y_t| of neighbours, for one picture with all its guidance halves."""
    pairs = zip(outputs[1:], outputs, strict=False)
    return [1 - float((now - then).abs().sum() / now.abs().sum()) for now, then in pairs]


@pytest.mark.parametrize("name", ["pixart", "sd3", "flux-cfg"])
def test_similar_steps_are_predicted_and_others_are_not(name: str) -> None:
    """After each computed step: the threshold between what was measured decides as it must."""
    pipe = _pipe(name)
    calls = _outputs(pipe, name, steps=6)
    halves = len(calls) // 6
    outputs = [torch.cat(calls[halves * i : halves * i + halves]) for i in range(6)]
    first = _similarities(outputs)[0]  # known before step 2
    for similarity, predicted in [(first - 1e-3, True), (first + 1e-3, False)]:
        part = _report(pipe, name, StepRehash(warm_up=2, how="reuse", similarity=similarity), steps=6)
        assert (part.techniques["rehash"].strip[2] == ".") == predicted


def test_similarity_is_looked_at_again_after_each_computed_step() -> None:
    pipe = _pipe("sd3")
    outputs = _outputs(pipe, "sd3", steps=8)
    measured = _similarities(outputs)
    threshold = max(measured[:6]) + 1e-3  # nothing reaches it, until the outputs are made alike
    report = _report(pipe, "sd3", StepRehash(warm_up=2, how="reuse", similarity=threshold), steps=8)
    assert report.techniques["rehash"].strip == "########"
    reason = f"the last two computed outputs are less similar than {threshold}"
    assert report.techniques["rehash"].declined == {reason: 5}  # steps 2 to 6


def test_equal_outputs_are_always_similar_enough() -> None:
    """A network that gives the same at every step; and no more than two steps in a row are predicted."""
    pipe = _pipe("pixart")
    constant = torch.ones(2, 8, 16, 16)
    hook = pipe.transformer.proj_out.register_forward_hook(lambda module, args, output: torch.ones_like(output))
    settings = StepRehash(interval=3, warm_up=2, how="reuse", similarity=1.0)
    with accel.accelerate(pipe, settings) as handle:
        assert all(torch.equal(output, constant) for output in _outputs(pipe, "pixart", steps=9))
        assert handle.report().techniques["rehash"].strip == "##..#..##"
    hook.remove()


def _strips(pipe: DiffusionPipeline, settings: StepRehash, seeds: list[int]) -> list[str]:
    return [_report(pipe, "pixart", settings, steps=10, seed=seed).techniques["rehash"].strip for seed in seeds]


def test_pictures_of_a_batch_decide_for_themselves() -> None:
    """Where only some are similar enough all are computed, but each is the picture that it would be alone."""
    one, seeds = case("pixart"), [0, 1, 2]
    pipe = one.build()
    settings = StepRehash(interval=3, warm_up=2, how="reuse", similarity=_between(pipe, seeds))
    strips = _strips(pipe, settings, seeds)
    assert len(set(strips)) > 1 and "." in "".join(strips)
    with accel.accelerate(pipe, settings):
        singles = [run(one, pipe, steps=10, seed=seed) for seed in seeds]
    with may_save_nothing(), accel.accelerate(pipe, settings) as handle:
        batch = run(one, pipe, steps=10, batch=3)
        part = handle.report().techniques["rehash"]
        torch.testing.assert_close(batch, torch.cat(singles), **ROUNDING)
        assert same(run(one, pipe, steps=10, batch=3), batch)
    columns = [Counter(column) for column in zip(*strips, strict=True)]
    assert part.strip == "".join("." if column["."] == 3 else "#" for column in columns)
    mixed = sum(0 < column["."] < 3 for column in columns)
    reason = "not all pictures of the batch were similar enough, so all of them were computed"
    assert part.declined[reason] == mixed > 0


def _between(pipe: DiffusionPipeline, seeds: list[int]) -> float:
    """In the middle of what the pictures' first similarities are, so that the pictures disagree."""
    first = sorted(_similarities(_outputs(pipe, "pixart", steps=10, seed=seed)[:2])[0] for seed in seeds)
    gaps = [(after - before, before) for before, after in zip(first, first[1:], strict=False)]
    return max(gaps)[1] + max(gaps)[0] / 2


@torch.no_grad()
def _frames_loop(pipe: Any) -> None:
    """The solver is given the frames of a video as so many samples: more rows than the denoiser was called with."""
    sample = torch.randn(1, 4, 3, 8, 8, generator=torch.Generator().manual_seed(5))
    pipe.scheduler.set_timesteps(6)
    for t in pipe.scheduler.timesteps:
        noise = pipe.transformer(sample, t.expand(1), torch.ones(1, 8, 32) / 4, return_dict=False)[0]
        frames = (each.transpose(1, 2).flatten(0, 1) for each in (noise, sample))
        stepped = pipe.scheduler.step(next(frames), t, next(frames), return_dict=False)[0]
        sample = stepped.unflatten(0, (1, 3)).transpose(1, 2)


def test_rows_of_a_picture_that_are_not_known() -> None:
    """The fixed rule does not need them."""
    pipe = _pipe("wan")
    with accel.accelerate(pipe, StepRehash(warm_up=2)) as handle:
        _frames_loop(pipe)
        assert handle.report().techniques["rehash"].strip == "##.#.#"
    with accel.accelerate(pipe, StepRehash(warm_up=2, similarity=-9.0)):
        with pytest.warns(AccelWarning, match="rehash saved nothing.*not known which rows of the batch belong"):
            _frames_loop(pipe)


# Beside other techniques


@pytest.mark.parametrize("rehash_first", [True, False])
@pytest.mark.parametrize("name", ["pixart", "wan"])
def test_beside_guidance_and_block_caches(name: str, rehash_first: bool) -> None:
    """They keep older values over the calls that were left out, and go on from these."""
    others = [DeepCache(interval=9, warm_up=1, how="reuse"), GuidanceCache(interval=9, warm_up=1, how="reuse")]
    mine = StepRehash(warm_up=1, how="reuse")
    plan = [mine, *others] if rehash_first else [*others, mine]
    pipe = _pipe(name)
    with accel.accelerate(pipe, plan) as handle:
        picture = run(case(name), pipe, steps=6)
        report = handle.report()
        assert picture.isfinite().all()
        assert all(part.predicted for part in report.techniques.values())
        assert report.cache_bytes == 0
        assert same(run(case(name), pipe, steps=6), picture)
        both = run(case(name), pipe, steps=6, batch=2)
        torch.testing.assert_close(both[:1], picture, **ROUNDING)


def test_a_block_cache_predicts_from_before_the_call_that_was_left_out() -> None:
    """Reusing the deep part of step 0 at step 2, with or without a whole call left out at step 1, is the same call."""
    pipe = _pipe("pixart")
    deep = DeepCache(interval=9, warm_up=1, how="reuse")
    kept: list[torch.Tensor] = []
    block = pipe.transformer.transformer_blocks[2]
    hook = block.register_forward_hook(lambda module, args, output: kept.append(output.clone()))
    with accel.accelerate(pipe, [deep, StepRehash(warm_up=1, how="reuse")]) as handle:
        run(case("pixart"), pipe, steps=4)
        strips = {name: part.strip for name, part in handle.report().techniques.items()}
    hook.remove()
    assert strips == {"deepcache": "# ..", "rehash": "#.##"}
    assert len(kept) == 3 and torch.equal(kept[0], kept[1]) and torch.equal(kept[0], kept[2])


def test_another_taker_of_steps_is_refused() -> None:
    assert accel.check(_pipe("pixart"), [StepRehash(), StepRehash(interval=3)]) == [
        "rehash and rehash both take over steps: use one of them"
    ]


# Settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval": 0}, "rehash: interval must be a whole number"),
        ({"warm_up": 0}, "rehash: warm_up must be a whole number"),
        ({"similarity": 1.5}, "rehash: similarity is a number up to 1"),
        ({"similarity": True}, "rehash: similarity is a number up to 1"),
        ({"similarity": float("nan")}, "rehash: similarity is a number up to 1"),
        ({"how": "zero"}, "no predictor here is called 'zero'"),
        ({"axis": "step"}, "predictors run along"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(AccelError, match=message):
        StepRehash(**settings)


# AdaptiveDiffusion's rule


def _moves(pipe: DiffusionPipeline, name: str, **kw: Any) -> list[torch.Tensor]:
    """Mean change of every picture's sample, step by step."""
    seen: list[torch.Tensor] = []
    step = pipe.scheduler.step

    def watching(model_output: Any, timestep: Any, sample: torch.Tensor, **rest: Any) -> Any:
        result = step(model_output, timestep, sample, **rest)
        seen.append((result[0] - sample).abs().flatten(1).mean(1))
        return result

    pipe.scheduler.step = watching
    try:
        run(case(name), pipe, **kw)
    finally:
        del pipe.scheduler.step
    return seen


def test_a_step_is_predicted_while_the_sample_moves_evenly() -> None:
    """Up to the first predicted step the run is the plain one, so the rule can be followed by hand."""
    pipe, name = _pipe("sd"), "sd"
    d = torch.stack(_moves(pipe, name, steps=12))[:, 0]
    uneven = [float(abs((d[i] + d[i - 2]) / 2 - d[i - 1]) / d[i - 1]) for i in range(2, 11)]
    for threshold in sorted(uneven)[:3]:
        first = 3 + next(i for i, value in enumerate(uneven) if value <= threshold * (1 + 1e-6))
        if first >= 11:  # the last step is computed
            continue
        settings = StepRehash(warm_up=1, how="reuse", unevenness=threshold * (1 + 1e-6))
        strip = _report(pipe, name, settings, steps=12).techniques["rehash"].strip
        assert strip.index(".") == first


def test_an_uneven_path_is_computed_and_each_picture_decides_alone() -> None:
    pipe, name = _pipe("sd"), "sd"
    plain = run(case(name), pipe, steps=8)
    with may_save_nothing(), accel.accelerate(pipe, StepRehash(warm_up=1, how="reuse", unevenness=0.0)) as handle:
        assert same(run(case(name), pipe, steps=8), plain)
        assert any("less evenly" in reason for reason in handle.report().techniques["rehash"].declined)
    with may_save_nothing(), accel.accelerate(pipe, StepRehash(warm_up=1, how="reuse", unevenness=0.5)):
        singles = [run(case(name), pipe, steps=8, seed=seed) for seed in (0, 1)]
        together = run(case(name), pipe, steps=8, batch=2)
    torch.testing.assert_close(together, torch.cat(singles), **ROUNDING)


@pytest.mark.parametrize("bad", [-0.1, True])
def test_unevenness_is_a_number_from_zero_on(bad: Any) -> None:
    with pytest.raises(AccelError, match="unevenness is a number"):
        StepRehash(unevenness=bad)

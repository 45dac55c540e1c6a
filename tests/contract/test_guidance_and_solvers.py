"""Guidance in every form, and every solver: what is predicted, and that it repeats."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import accel
from accel import AccelWarning, Plan
from accel.caches.deepcache import DeepCache
from accel.caches.guidance import GuidanceCache
from accel.caches.tgate import TGate
from tests.contract.support import draw, may_save_nothing, same
from tests.families import case, run, scheduler_names, with_scheduler

BOTH = Plan((DeepCache(warm_up=2), GuidanceCache(warm_up=2)))
CUT = Plan((TGate(gate=3, cutoff="cond"),))


def _cut_off(at: int) -> Any:
    """The recipe of diffusers' documentation for ending guidance in the middle of a run."""

    def callback(pipe: Any, step: int, _time: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
        if step == at:
            pipe._guidance_scale = 1.0
            kwargs["prompt_embeds"] = kwargs["prompt_embeds"].chunk(2)[-1]
        return kwargs

    return {"callback_on_step_end": callback, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}


def test_guidance_cut_off_by_a_callback() -> None:
    """The batch halves in mid-run: nothing predicted from the old batch may reach the new one."""
    pipe = case("sd-plain").build()
    plain = _cut_off_run(pipe)
    with accel.accelerate(pipe, BOTH) as handle:
        fast = _cut_off_run(pipe)
        report = handle.report()
        assert report.steps_run == 8 and report.rows == 4 * 2 + 4
        assert report.rows_computed == report.rows - report.techniques["guidance"].predicted
        assert "the denoiser's input changed its shape or type" in report.techniques["deepcache"].declined
        assert report.techniques["deepcache"].strip == "##.###.#"  # two new values before the next prediction
        assert same(_cut_off_run(pipe), fast)
    assert not torch.equal(plain, fast)
    assert same(_cut_off_run(pipe), plain)


def _cut_off_run(pipe: Any) -> torch.Tensor:
    """Eight guided steps, of which the last four are cut off."""
    inputs = case("sd").inputs(steps=8)
    return case("sd").output(pipe(**inputs, **_cut_off(3)))


@pytest.mark.parametrize("name", ["pixart", "flux-cfg", "wan"])
def test_cutoff_computes_the_conditional_half_only(name: str) -> None:
    """After the gate both halves are the conditional one, in both ways of doing guidance."""
    plan = Plan((GuidanceCache(warm_up=3, interval=9, how="zero"),)) if name == "flux-cfg" else CUT
    pipe = case(name).build()
    seen: list[torch.Tensor] = []
    hook = pipe.transformer.register_forward_hook(lambda module, args, out: seen.append(out[0].clone()))
    with accel.accelerate(pipe, plan) as handle:
        draw(name, pipe)
        assert handle.report().rows_computed == 3 * 2 + 1
    hook.remove()
    halves = [tuple(out.chunk(2)) for out in seen] if len(seen) == 4 else list(zip(seen[::2], seen[1::2], strict=True))
    assert [torch.equal(one, other) for one, other in halves] == [False, False, False, True]


@pytest.mark.parametrize("how", ["zero", "linear"])
@pytest.mark.parametrize(("name", "half"), [("pixart", 1), ("sd3", 1), ("cogvideox", 1), ("lumina", 0)])
def test_conditional_half_is_told_by_the_guidance(name: str, half: int, how: str) -> None:
    """Lumina puts it first. It is the half that is still computed, and what it was in the plain run."""
    pipe = case(name).build()
    seen: list[torch.Tensor] = []
    hook = pipe.transformer.register_forward_hook(lambda module, args, out: seen.append(out[0].clone()))
    draw(name, pipe)
    with accel.accelerate(pipe, GuidanceCache(warm_up=2, how=how)) as handle:
        draw(name, pipe)
        assert handle.report().techniques["guidance"].strip == "##.#"
    hook.remove()
    plain, fast = seen[2].chunk(2), seen[4 + 2].chunk(2)
    torch.testing.assert_close(fast[half], plain[half], atol=1e-3, rtol=0)
    assert (fast[1 - half] - plain[1 - half]).abs().max() > 1e-2


def test_guidance_that_does_not_show_the_conditional_half() -> None:
    """A loop of unknown making: either half can be extrapolated, but nobody knows which one to keep alone."""

    @torch.no_grad()
    def loop(pipe: Any) -> torch.Tensor:
        sample = torch.randn(1, 4, 16, 16, generator=torch.Generator().manual_seed(5))
        more = {"added_cond_kwargs": {"resolution": None, "aspect_ratio": None}, "return_dict": False}
        text = torch.stack([torch.ones(8, 32) / 4, torch.zeros(8, 32)])
        pipe.scheduler.set_timesteps(6)
        for t in pipe.scheduler.timesteps:
            both = pipe.transformer(torch.cat([sample] * 2), text, t.expand(2), **more)[0]
            sample = pipe.scheduler.step(both.mean(0, keepdim=True)[:, :4].cos(), t, sample).prev_sample
        return sample

    pipe = case("pixart").build()
    plain = loop(pipe)
    with accel.accelerate(pipe, GuidanceCache(warm_up=2, how="zero")):
        with pytest.warns(AccelWarning, match="does not tell which half is the conditional one: use another predictor"):
            assert same(loop(pipe), plain)
    with accel.accelerate(pipe, GuidanceCache(warm_up=2, how="linear")) as handle:
        assert not same(loop(pipe), plain) and handle.report().predicted == 2


@pytest.mark.parametrize("name", ["flux", "dit", "sd-plain", "flux-img2img", "z-image"])
def test_guidance_that_cannot_be_halved_is_said_to_be_so(name: str) -> None:
    """Nothing is saved, the bits are the plain ones, and the warning names the reason."""
    pipe = case(name).build()
    plain = draw(name, pipe)
    reason = "there is no unconditional call|not called with an unconditional and a conditional half|takes a list"
    with accel.accelerate(pipe, GuidanceCache(warm_up=1)) as handle:
        with pytest.warns(AccelWarning, match=f"guidance saved nothing in this run .*({reason})"):
            assert same(draw(name, pipe), plain)
        assert handle.report().rows_computed == handle.report().rows


@pytest.mark.parametrize("what", ["batch", "resolution"])
def test_sample_changed_by_a_callback(what: str) -> None:
    """A difference of two pictures must not be spread over one, nor one of another resolution be used."""

    def change(pipe: object, step: int, t: object, now: dict) -> dict:
        if step != 2:
            return {}
        if what == "batch":
            return {"latents": now["latents"][:1], "prompt_embeds": now["prompt_embeds"][::2]}
        return {"latents": torch.nn.functional.interpolate(now["latents"], scale_factor=2)}

    pipe = case("sd").build()
    kw = {"callback_on_step_end": change, "callback_on_step_end_tensor_inputs": ["latents", "prompt_embeds"]}
    plain = draw("sd", pipe, batch=2, steps=8, **kw)
    with accel.accelerate(pipe, [GuidanceCache(warm_up=2), DeepCache(warm_up=2)]) as handle:
        fast = draw("sd", pipe, batch=2, steps=8, **kw)
        assert fast.shape == plain.shape and fast.isfinite().all()
        assert all("changed its shape" in str(part.declined) for part in handle.report().techniques.values())
        assert all(part.predicted for part in handle.report().techniques.values())


def test_keeping_the_unconditional_of_two_calls_is_declined() -> None:
    """The conditional call comes first: it cannot be left out, and keeping it instead would be another method."""
    pipe = case("wan").build()
    with accel.accelerate(pipe, TGate(gate=2, cutoff="uncond")) as handle:
        with pytest.warns(AccelWarning, match="tgate cutoff saved nothing in this run .*the one that can be kept"):
            draw("wan", pipe)
        assert handle.report().rows_computed == handle.report().rows


SOLVERS = [
    ("sd-plain", ("euler", "euler-a", "ddim", "dpm++", "heun", "lcm", "pndm", "unipc")),
    ("pixart", ("euler", "heun", "pndm", "lcm")),
    ("sd3", ("heun", "lcm", "dpm++")),
    ("wan", ("euler", "heun", "unipc", "lcm")),
    ("flux-cfg", ("euler", "unipc")),
    ("stable-audio", ("euler",)),
    ("cogvideox", ("ddim", "dpm++")),
]


@pytest.mark.parametrize(("name", "solver"), [(name, solver) for name, solvers in SOLVERS for solver in solvers])
def test_solver(name: str, solver: str) -> None:
    """One step of the clock is one evaluation, also for second-order solvers; runs repeat; removal gives plain bits."""
    pipe = with_scheduler(case(name).build(), solver)
    plain = draw(name, pipe)
    with may_save_nothing(), accel.accelerate(pipe, BOTH) as handle:
        fast = draw(name, pipe)
        report = handle.report()
        steps = len(pipe.scheduler.timesteps)
        assert report.steps_run == report.steps_planned == steps
        assert not report.aborted and report.cache_bytes == 0
        assert report.techniques["deepcache"].strip == "".join(".#"[i < 2 or i % 2] for i in range(steps))
        assert same(draw(name, pipe), fast)
    assert not torch.equal(fast, plain)
    assert same(draw(name, pipe), plain)


def test_every_solver_of_the_test_pipelines_is_covered() -> None:
    covered = {name: set(solvers) for name, solvers in SOLVERS}
    assert covered["sd-plain"] == set(scheduler_names(case("sd-plain").build()))


def test_first_expert_values_never_reach_the_second() -> None:
    pipe = case("wan-two-experts").build()
    with accel.accelerate(pipe, DeepCache(warm_up=2)) as handle:
        assert run(case("wan-two-experts"), pipe, steps=8).isfinite().all()
        report = handle.report()
        calls = {name.split("/")[0]: count for name, count in report.calls.items()}
        assert calls.keys() == {"transformer", "transformer_2"}
        assert report.techniques["deepcache"].strip[calls["transformer"]] == "#"  # the second expert's first step

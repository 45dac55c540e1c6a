"""Where a run's time goes."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import accel
from accel.caches.executor import Executor
from accel.measure import stages
from tests.families import case, run


def test_stages_add_up_and_a_planted_delay_is_seen_where_it_is():
    pipe = accel.load("tiny")
    pipe.set_progress_bar_config(disable=True)
    pipe.vae.decoder.register_forward_pre_hook(lambda *_: time.sleep(0.3))
    began = time.perf_counter()
    found = stages.split(pipe, lambda: pipe("a red star", num_inference_steps=2))
    whole = time.perf_counter() - began
    assert {"unet", "text_encoder", "vae.decoder", stages.REST} <= found.keys()
    assert 0.3 < found["vae.decoder"] < sum(found.values()) <= whole
    assert all(seconds >= 0 for seconds in found.values())


def test_what_a_plan_does_counts_in_the_denoiser_and_nothing_is_left_behind(monkeypatch: pytest.MonkeyPatch):
    pipe = case("sd").build()
    hooks = {name: len(module._forward_pre_hooks) for name, module in pipe.unet.named_modules()}
    at_site = Executor.at_site

    def slow(self: Executor, *args: Any) -> Any:
        time.sleep(0.1)
        return at_site(self, *args)

    monkeypatch.setattr(Executor, "at_site", slow)
    with accel.accelerate(pipe, "deepcache(warm_up=2)"):
        assert stages.split(pipe, lambda: run(case("sd"), pipe, steps=4))["unet"] > 0.4
    assert {name: len(module._forward_pre_hooks) for name, module in pipe.unet.named_modules()} == hooks


def test_a_run_that_fails_leaves_nothing_behind_either():
    pipe = case("sd").build()
    broken = pipe.unet.mid_block.register_forward_pre_hook(lambda *_: (_ for _ in ()).throw(RuntimeError("broken")))
    with pytest.raises(RuntimeError, match="broken"):
        stages.split(pipe, lambda: run(case("sd"), pipe, steps=2))
    broken.remove()
    assert not pipe.unet._forward_pre_hooks and not pipe.vae.decoder._forward_hooks
    assert torch.isfinite(run(case("sd"), pipe, steps=2)).all()

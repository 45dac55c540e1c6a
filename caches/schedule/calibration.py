"""Measuring error curves on a handful of prompts (SmoothCache, arXiv:2411.10510), for every predictor at once.

With y_t the output of a site at step t and p its prediction from outputs of earlier steps, the error is

    |p - y_t|_1 / |y_t|_1

The paper measures reuse, p = y_{t-k}. Here the same run also tells what `linear` and the other predictors would have
made of each choice of earlier outputs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

import torch
from diffusers.hooks import ModelHook
from torch import nn

from accel.caches.predict import Axis, check_how, lagrange, predict
from accel.caches.schedule.curves import Curve, ErrorCurves, Lags, lags
from accel.caches.schedule.names import KINDS, sites_of
from accel.clock import Clock
from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.hooks import install
from accel.runs import Run
from accel.sites import Site
from accel.target import Target
from accel.technique import Detach
from accel.tensors import Tree, map_tensors, signature, tensors
from accel.watching import Prompt, unchanged, watch


def calibrate(
    pipe: Any,
    prompts: Sequence[Prompt],
    *,
    steps: int = 25,
    lookahead: int = 3,
    predictors: Sequence[str] = ("reuse", "linear"),
    axis: Axis = "time",
    kinds: Sequence[str] = KINDS,
    seed: int = 0,
    call: Mapping[str, Any] | None = None,
) -> ErrorCurves:
    """Run the plain pipeline on each prompt and measure what predicting its sites would have cost.

    Args:
        pipe: Without a plan; it is left as it was.
        prompts: One call each; the noise of prompt ``i`` is that of ``seed + i``.
        steps: Handed to the pipeline as ``num_inference_steps``.
        lookahead: The longest run of predicted steps to be measured.
        predictors: Names from `accel.caches.predict`.
        axis: What they run along.
        kinds: Kinds of sites, also ``resnet``, ``block`` and ``region`` (the stretch that DeepCache skips).
        seed: Of the first prompt.
        call: Further arguments of every call, such as ``guidance_scale`` and ``height``.

    Of each site and guidance branch the last few outputs are kept, 2 ``lookahead`` + 1 of them for ``linear``.

    Raises:
        AccelError: when there is nothing to measure, the pipeline refuses a call, or its loop cannot be followed.
    """
    _check(lookahead, predictors, axis)
    target = Target.of(pipe)
    sites = sites_of(target, kinds)
    if not sites:
        raise AccelError(f"{type(pipe).__name__} has no {' and no '.join(kinds)} to measure: name other kinds")
    probe = _Probe(sites, predictors, lookahead, axis)
    watch(target, probe.attach, prompts, steps, seed, call)
    return ErrorCurves(
        steps=probe.steps,
        lookahead=lookahead,
        axis=axis,
        kinds={site.name: site.kind for site in probe.sites},
        sites={site.name: {how: probe.curve(site, how) for how in predictors} for site in probe.sites},
        fingerprint=Fingerprint.of(target, steps, {}),
    )


class _Probe:
    """Stands at the sites of plain runs and keeps the sums of errors."""

    def __init__(self, sites: Sequence[Site], predictors: Sequence[str], lookahead: int, axis: Axis):
        self.sites, self.axis = sites, axis
        self.lags = {how: lags(how, lookahead) for how in predictors}
        self.reach = max(oldest for choices in self.lags.values() for *_, oldest in choices)
        self.steps = 0
        self.places: list[float] = []
        self.past: dict[tuple[str, str], dict[int, Tree]] = {}  # by site and branch: the newest outputs, by step
        self.totals: dict[tuple[str, str, Lags], torch.Tensor] = {}  # (2, steps): sums of errors, and how many

    def attach(self, clock: Clock) -> Detach:
        """Hook the sites; returns what undoes it."""
        self.clock = clock
        with ExitStack() as undo:
            undo.callback(self.past.clear)
            for site in self.sites:
                undo.callback(install(site.module, _Listener(self, site), "calibration"))
            undo.callback(clock.subscribe(self._begin, self.past.clear, unchanged))
            return undo.pop_all().close

    def _begin(self, run: Run) -> None:
        if self.steps not in (0, run.steps):
            raise AccelError(f"the prompts' runs differ in length, {self.steps} and {run.steps} steps: calibrate apart")
        self.steps, self.places = run.steps, run.along(self.axis)

    def saw(self, site: Site, output: Tree) -> None:
        """``site`` computed ``output``: hold what would have been predicted against it, and keep it for later."""
        if self.clock.call is None:
            return
        step, past = self.clock.step, self.past.setdefault((site.name, self.clock.call.branch), {})
        if past and signature(output) != signature(next(iter(past.values()))):
            past.clear()  # the batch changed in mid-run
        for how, choices in self.lags.items():
            for ago in choices:
                computed = [step - lag for lag in reversed(ago)]
                if all(at in past for at in computed):
                    weights = lagrange([self.places[at] for at in computed], self.places[step])
                    guess = predict(weights, [(at, past[at]) for at in computed])
                    self._add((site.name, how, ago), step, relative(guess, output))
        for old in [at for at in past if at <= step - self.reach]:
            del past[old]
        past[step] = map_tensors(torch.Tensor.clone, output)

    def _add(self, key: tuple[str, str, Lags], step: int, error: torch.Tensor) -> None:
        total = self.totals.setdefault(key, torch.zeros(2, self.steps, device=error.device))
        total[0, step] += error
        total[1, step] += 1

    def curve(self, site: Site, how: str) -> Curve:
        """Mean errors of ``site`` under ``how``; raises `AccelError` where one is not a number."""
        return {ago: self._means(site, (site.name, how, ago)) for ago in self.lags[how]}

    def _means(self, site: Site, key: tuple[str, str, Lags]) -> list[float | None]:
        if key not in self.totals:
            return [None] * self.steps
        sums, counts = self.totals[key].tolist()
        means = [total / count if count else None for total, count in zip(sums, counts, strict=True)]
        if any(mean is not None and not math.isfinite(mean) for mean in means):
            raise AccelError(f"the outputs of {site.name} are not finite: calibrate in float32 or bfloat16")
        return means


class _Listener(ModelHook):
    def __init__(self, probe: _Probe, site: Site):
        super().__init__()
        self.probe, self.site = probe, site

    @torch.compiler.disable
    def post_forward(self, module: nn.Module, output: Tree) -> Tree:
        self.probe.saw(self.site, output)
        return output


def relative(guess: Tree, output: Tree) -> torch.Tensor:
    """|guess - output|_1 / |output|_1 over all tensors of both, as a tensor without dimensions; 0 / 0 is 0."""
    pairs = [(p.float(), y.float()) for p, y in zip(tensors(guess), tensors(output), strict=True)]
    off = torch.stack([(p - y).abs().sum() for p, y in pairs]).sum()
    size = torch.stack([y.abs().sum() for _, y in pairs]).sum()
    return off / size.clamp_min(torch.finfo(torch.float32).tiny)


def _check(lookahead: int, predictors: Sequence[str], axis: Axis) -> None:
    if not isinstance(lookahead, int) or lookahead < 1:
        raise AccelError(f"lookahead is a whole number of at least 1, not {lookahead!r}")
    if not predictors:
        raise AccelError("there is nothing to measure: name at least one predictor")
    for how in predictors:
        check_how(how, axis, without=("zero", "fitted"))

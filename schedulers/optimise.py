"""The best schedule of few steps for a model, found on one long trajectory by dynamic programming.

A run of many steps gives samples x_i (variance-preserving), noise levels and predicted clean samples D_i. One solver
step from node i to node j of that run, with λ = log(signal / noise), h = λ_j - λ_i and node g the step before, leads to

    x̂_j = (noise_j / noise_i) x_i + signal_j (1 - e^{-h}) (D_i + h / (2 (λ_i - λ_g)) (D_i - D_g))

which is DPM-Solver++(2M) (arXiv:2211.01095), and without the last term DDIM. What each step misses, |x̂_j - x_j|², is
known for all triples, so the path with the least sum through any number of nodes is as well (OptimalSteps,
arXiv:2503.21774, does so for first-order steps).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from accel.clock import Clock
from accel.errors import AccelError
from accel.runs import model_output, step_sample
from accel.schedulers.levels import clean, is_variance_exploding, level
from accel.schedulers.probe import abilities, equivalent
from accel.schedulers.schedule import rewrite
from accel.schedulers.steps import Steps
from accel.target import Target
from accel.technique import Detach
from accel.tensors import tensors
from accel.watching import Prompt, watch

Array = NDArray[np.float64]

_FIRST_ORDER = ("EulerDiscreteScheduler", "DDIMScheduler", "FlowMatchEulerDiscreteScheduler")


@dataclass
class Trajectory:
    """Long runs, node by node.

    Attributes:
        times: Timesteps of the nodes, falling.
        levels: Their ``(signal, noise)``.
        samples: ``(nodes + 1, values)``: the sample at every node, and the final one; the runs side by side.
        cleans: ``(nodes, values)``: the clean sample predicted there.
    """

    times: list[float] = field(default_factory=list)
    levels: list[tuple[float, float]] = field(default_factory=list)
    samples: list[list[torch.Tensor]] = field(default_factory=list)
    cleans: list[list[torch.Tensor]] = field(default_factory=list)

    def arrays(self) -> tuple[Array, Array]:
        """Samples and predicted clean samples, see the attributes."""
        return _stacked(self.samples), _stacked(self.cleans)


@dataclass(frozen=True)
class Optimised:
    """A schedule, and how it did on prompts that it was not chosen on.

    Attributes:
        steps: The better one of the chosen schedule and the solver's own.
        before: Mean squared distance of the final latents to the long run's, with the solver's own schedule.
        after: With the chosen one.
    """

    steps: Steps
    before: float
    after: float

    @property
    def gain(self) -> float:
        """In dB."""
        return 10 * math.log10(self.before / self.after) if self.after else math.inf

    def __str__(self) -> str:
        kept = "it is kept" if self.after < self.before else "the solver's own schedule is kept"
        return f"the chosen schedule is {self.gain:+.2f} dB closer to the long run than the solver's own: {kept}"


def optimise(
    pipe: Any,
    prompts: Sequence[Prompt],
    *,
    steps: int,
    nodes: int = 48,
    call: Mapping[str, Any] | None = None,
    seed: int = 0,
) -> Optimised:
    """The schedule of ``steps`` steps with the least error for ``pipe`` with its solver.

    Args:
        pipe: Without a plan; it is left as it was.
        prompts: A handful: the first half to choose on, the others to judge by.
        steps: How many steps the schedule shall have.
        nodes: Steps of the long runs, from which those of the schedule are taken.
        call: Further arguments of every call.
        seed: The noise of prompt ``i`` is that of ``seed + i``.

    Raises:
        AccelError: where the solver takes no schedule of ours, for fewer than two prompts, or where there are not more
            nodes than steps.
    """
    if isinstance(prompts, str) or len(prompts) < 2:
        raise AccelError("one half of the prompts chooses the schedule, the other judges it: give at least 2")
    if not 1 < steps < nodes:
        raise AccelError(f"a schedule of {steps} steps is chosen from more than that, at least 2 of them: not {nodes}")
    target = Target.of(pipe)
    if reason := abilities(target.scheduler).timesteps:
        hint = equivalent(target.scheduler)
        raise AccelError(f"no schedule can be given to the pipeline: {reason}" + (f"; {hint}" if hint else ""))
    half, order = len(prompts) // 2, 1 if type(target.scheduler).__name__ in _FIRST_ORDER else 2
    track = _record(target, prompts[:half], nodes, seed, call)
    chosen = Steps(timesteps=tuple(track.times[node] for node in best_path(errors(track, order), steps)))

    def final(count: int, timesteps: Sequence[float] = ()) -> torch.Tensor:
        return torch.cat(_record(target, prompts[half:], count, seed + half, call, timesteps).samples[-1])

    truth = final(nodes)
    before, after = (float(((x - truth) ** 2).mean()) for x in (final(steps), final(steps, chosen.timesteps)))
    return Optimised(chosen if after < before else Steps(count=steps), before, after)


def _record(
    target: Target,
    prompts: Sequence[Prompt],
    steps: int,
    seed: int,
    call: Mapping[str, Any] | None,
    timesteps: Sequence[float] = (),
) -> Trajectory:
    seen = _Recording(timesteps)
    watch(target, seen.attach, prompts, steps, seed, call)
    return seen.trajectory


def errors(trajectory: Trajectory, order: int) -> Array:
    """``(nodes, nodes, nodes + 1)``: mean squared error of the step from i to j after g at ``[g, i, j]``.

    Infinite where the nodes do not follow each other; ``g = i`` stands for a first step, which is of first order.
    """
    samples, cleans = trajectory.arrays()
    count = len(cleans)
    signal, noise = np.array([*trajectory.levels, (1.0, 0.0)]).T
    with np.errstate(divide="ignore"):
        lam = np.log(signal) - np.log(noise)
    cost = np.full((count, count, count + 1), np.inf)
    for i in range(count):
        after = np.arange(i + 1, count + 1)
        gone = -np.expm1(lam[i] - lam[after])  # 1 - e^{-h}
        plain = (noise[after] / noise[i])[:, None] * samples[i] + (signal[after] * gone)[:, None] * cleans[i]
        missed = plain - samples[after]
        cost[i, i, after] = (missed**2).mean(1)
        if order == 1:
            cost[:i, i, after] = cost[i, i, after]
            continue
        bend = cleans[i] - cleans[:i]  # D_i - D_g
        ratio = np.where(after < count, lam[after] - lam[i], 0.0) / (2 * (lam[i] - lam[:i]))[:, None]
        weight = ratio * signal[after] * gone  # the last step is of first order
        cross = 2 * weight * (bend @ missed.T) / missed.shape[1]
        cost[:i, i, after] = cost[i, i, after] + cross + weight**2 * (bend**2).mean(1)[:, None]
    return cost


def best_path(cost: Array, steps: int) -> list[int]:
    """The nodes of the cheapest path of ``steps`` steps from node 0 to the end, for the costs of `errors`."""
    count = cost.shape[0]
    best = np.full((count, count + 1), np.inf)  # of paths that end with the step from i to j
    best[0] = cost[0, 0]
    came: list[NDArray[np.int64]] = []
    for _ in range(steps - 1):
        longer = best[:, :count, None] + np.where(np.eye(count, dtype=bool)[:, :, None], np.inf, cost)
        came.append(longer.argmin(0))
        best = longer.min(0)
    node, path = int(best[:, count].argmin()), [count]
    for previous in reversed(came):
        path, node = [node, *path], int(previous[node, path[0]])
    return [node, *path[:-1]]


class _Recording:
    """Keeps what the scheduler is given, on its own schedule or on these ``timesteps``."""

    def __init__(self, timesteps: Sequence[float] = ()) -> None:
        self.trajectory, self.timesteps = Trajectory(), timesteps
        self._clock: Clock | None = None

    def attach(self, clock: Clock) -> Detach:
        """Stand around the solver's steps; returns what undoes it."""
        self._clock = clock
        with ExitStack() as undo:
            undo.callback(clock.guard_scheduler(set_timesteps=self._set, step=self._step))
            return undo.pop_all().close

    def _set(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = proceed(*args, **kwargs)
        assert self._clock is not None
        if self.timesteps:
            rewrite(self._clock.target.scheduler, self.timesteps)
        return result

    def _step(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = proceed(*args, **kwargs)
        assert self._clock is not None
        scheduler, run, step = self._clock.target.scheduler, self._clock.run, self._clock.step
        if run is None:
            return result
        output, sample = (read(scheduler, args, kwargs) for read in (model_output, step_sample))
        time, track = run.times[step], self.trajectory
        signal, noise = level(scheduler, time)
        if step == len(track.times):
            track.times.append(time)
            track.levels.append((signal, noise))
        scale = signal if is_variance_exploding(scheduler) else 1.0
        _keep(track.samples, step, sample * scale)
        _keep(track.cleans, step, clean(scheduler, output, sample, time))
        if step == run.steps - 1:
            _keep(track.samples, step + 1, next(tensors(result)))
        return result


def _keep(kept: list[list[torch.Tensor]], node: int, value: torch.Tensor) -> None:
    if node == len(kept):
        kept.append([])
    kept[node].append(value.detach().double().flatten().cpu())


def _stacked(kept: list[list[torch.Tensor]]) -> Array:
    return torch.stack([torch.cat(values) for values in kept]).numpy()

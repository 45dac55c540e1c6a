"""The best schedule of few steps for a model and its solver, found on a few long runs.

*Dynamic programming.* A run of many steps gives samples x_i (variance-preserving), noise levels and predicted clean
samples D_i. One solver step from node i to node j of that run, with λ = log(signal / noise), h = λ_j - λ_i and node g
the step before, leads to

    x̂_j = (noise_j / noise_i) x_i + signal_j (1 - e^{-h}) (D_i + h / (2 (λ_i - λ_g)) (D_i - D_g))

which is DPM-Solver++(2M) (arXiv:2211.01095), and without the last term DDIM. What each step misses, |x̂_j - x_j|², is
known for all triples, so the path with the least sum through any number of nodes is as well (OptimalSteps,
arXiv:2503.21774, does so for first-order steps).

*Refining.* That sum is not what counts: later steps carry an early error on, or mend it. So the better one of the path
and the solver's own spacing is bent until the final sample of the short run comes nearest to the long run's (`refine`).
What comes out is judged on other prompts, and only kept where it surely wins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from accel.errors import AccelError
from accel.measure.intervals import Interval, mean
from accel.schedulers.recording import Runs, Trajectory
from accel.schedulers.refine import Array, refined
from accel.schedulers.steps import Steps
from accel.watching import Prompt

_FIRST_ORDER = ("EulerDiscreteScheduler", "DDIMScheduler", "FlowMatchEulerDiscreteScheduler")


@dataclass(frozen=True)
class Optimised:
    """A schedule, and how it did on prompts that it was not chosen on.

    Attributes:
        steps: The chosen schedule where it is surely better than the solver's own, otherwise that one.
        timesteps: The chosen schedule.
        gain: Mean over prompts of how much closer, in dB, its final latents are to the long run's than with the
            solver's own schedule.
    """

    steps: Steps
    timesteps: tuple[float, ...]
    gain: Interval

    def __str__(self) -> str:
        kept = "it is kept" if self.steps.timesteps else "the solver's own schedule is kept"
        return f"the chosen schedule is {self.gain} dB closer to the long run than the solver's own: {kept}"


def optimise(
    pipe: Any,
    prompts: Sequence[Prompt],
    *,
    steps: int,
    nodes: int = 48,
    call: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int = 8,
) -> Optimised:
    """The schedule of ``steps`` steps with the least error for ``pipe`` with its solver.

    Args:
        pipe: Without a plan; it is left as it was.
        prompts: A handful: the first half to choose on, the others to judge by.
        steps: How many steps the schedule shall have.
        nodes: Steps of the long runs.
        call: Further arguments of every call.
        seed: The noise of prompt ``i`` is that of ``seed + i``.
        batch: Prompts drawn at once, where they are texts.

    Raises:
        AccelError: where the solver takes no schedule of ours, for fewer than two prompts, or where there are not more
            nodes than steps.
    """
    if isinstance(prompts, str) or len(prompts) < 2:
        raise AccelError("one half of the prompts chooses the schedule, the other judges it: give at least 2")
    half = len(prompts) // 2
    chosen = choose(Runs(pipe, prompts[:half], call, seed, batch), steps, nodes)
    return judge(Runs(pipe, prompts[half:], call, seed + half, batch), chosen, nodes)


def choose(runs: Runs, steps: int, nodes: int = 48) -> tuple[float, ...]:
    """The timesteps with which the final latents of ``runs`` come nearest to those of the long run.

    Every prompt counts by how much more or less is missed than with the solver's own spacing, so that none of them
    decides alone. Raises `AccelError` where there are not more nodes than steps.
    """
    if not 1 < steps < nodes:
        raise AccelError(f"a schedule of {steps} steps is chosen from more than that, at least 2 of them: not {nodes}")
    order = 1 if type(runs.target.scheduler).__name__ in _FIRST_ORDER else 2
    track = runs.record(nodes)
    truth, own = runs.rows(track), runs.record(steps)
    size = np.sqrt(missed(runs.rows(own), truth))[:, None]

    def residual(timesteps: Sequence[float]) -> Array:
        return ((runs.final(steps, timesteps) - truth) / size).flatten()

    path = tuple(track.times[node] for node in best_path(errors(track, order), steps))
    starts = [tuple(own.times), path]
    best = min(starts, key=lambda times: float((residual(times) ** 2).sum()))
    return refined(residual, best)


def judge(runs: Runs, timesteps: tuple[float, ...], nodes: int = 48) -> Optimised:
    """Hold a schedule against the solver's own on these runs."""
    steps = len(timesteps)
    truth, own, new = runs.final(nodes), runs.final(steps), runs.final(steps, timesteps)
    gain = mean((10 * np.log10(missed(own, truth) / missed(new, truth))).tolist())
    kept = Steps(timesteps=timesteps) if gain.low > 0 else Steps(count=steps)
    return Optimised(kept, timesteps, gain)


def missed(rows: Array, truth: Array) -> Array:
    """Mean squared distance of every row, never quite 0."""
    return np.maximum(((rows - truth) ** 2).mean(1), 1e-24)


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

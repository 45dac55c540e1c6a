"""Plain runs of a pipeline recorded step by step, on the solver's schedule or on one of ours."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

from accel.clock import Clock
from accel.errors import AccelError
from accel.runs import model_output, step_sample
from accel.schedulers.levels import clean, is_continuous, is_variance_exploding, level
from accel.schedulers.probe import abilities, equivalent
from accel.schedulers.refine import Array
from accel.schedulers.schedule import rewrite
from accel.target import Target
from accel.technique import Detach
from accel.tensors import tensors
from accel.watching import Prompt, watch


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


class Runs:
    """Draws prompts, up to the latents, with a number of steps or on timesteps; `optimise` tells of the arguments.

    Raises `AccelError` where the solver takes no schedule of ours.
    """

    def __init__(
        self, pipe: Any, prompts: Sequence[Prompt], call: Mapping[str, Any] | None = None, seed: int = 0, batch: int = 8
    ) -> None:
        self.target, self.prompts, self.call, self.seed = Target.of(pipe), prompts, call, seed
        self.batch = batch
        self._plain: dict[int, Trajectory] = {}
        if is_continuous(self.target.scheduler):
            raise AccelError("timesteps that are logarithms of the noise level are not chosen: take a spacing instead")
        if reason := abilities(self.target.scheduler).timesteps:
            hint = equivalent(self.target.scheduler)
            raise AccelError(f"no schedule can be given to the pipeline: {reason}" + (f"; {hint}" if hint else ""))

    def record(self, steps: int, timesteps: Sequence[float] = ()) -> Trajectory:
        """Every step; the solver's own schedule is drawn once only."""
        if not timesteps and steps in self._plain:
            return self._plain[steps]
        seen = _Recording(timesteps)
        watch(self.target, seen.attach, self._calls(), steps, self.seed, self.call)
        if not timesteps:
            self._plain[steps] = seen.trajectory
        return seen.trajectory

    def final(self, steps: int, timesteps: Sequence[float] = ()) -> Array:
        """The final latents, ``(prompts, values)``."""
        return self.rows(self.record(steps, timesteps))

    def _calls(self) -> Sequence[Prompt]:
        """Texts as calls of a whole batch, each picture with the noise that it has alone."""
        alone = any("prompt" in name and isinstance(value, str) for name, value in (self.call or {}).items())
        if alone or not all(isinstance(prompt, str) for prompt in self.prompts):
            return self.prompts  # a text beside a list of prompts is refused by some pipelines
        noises = [torch.Generator().manual_seed(self.seed + row) for row in range(len(self.prompts))]
        parts = [slice(start, start + self.batch) for start in range(0, len(noises), self.batch)]
        return [{"prompt": list(self.prompts[part]), "generator": noises[part]} for part in parts]

    def rows(self, track: Trajectory) -> Array:
        """The final latents of what was recorded."""
        return torch.cat(track.samples[-1]).reshape(len(self.prompts), -1).numpy()


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

"""One call of an untouched pipeline that computes only a stretch of its steps.

The pipeline runs its own loop from end to end, but inside of a `Walk` its denoisers and its solver answer as told:

- *leave* after some steps: the solver then returns the clean sample predicted so far and keeps it, no denoiser is
  computed any more, and the pipeline decodes that as it would a finished one. This is a preview.
- *replay* the beginning: denoiser outputs recorded in an earlier walk are handed out again, so that the solver takes
  the same steps as before, with its history and its noise, at no cost. This is how survivors of a preview go on.
- *enter* late: the solver is not asked before that step, which then begins with the sample given.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from diffusers.hooks import ModelHook
from torch import Tensor

from accel import tap
from accel.errors import AccelError
from accel.hooks import install
from accel.schedulers.levels import clean
from accel.target import Target
from accel.tensors import Tree, height, map_tensors

Lane = list[list[Tree]]
"""What the denoisers returned for one picture, by step and call; guidance halves are rows."""


@dataclass(frozen=True)
class Route:
    """Which steps are computed.

    Attributes:
        leave: Number of steps after which to leave with the predicted clean sample; ``None`` to go to the end.
        lanes: Of each picture, for the steps that are not computed.
        replay: How many steps are answered from ``lanes``.
        enter: The samples ``(batch, …)`` that step ``replay`` begins with; ``None`` where the replayed ones lead there.
    """

    leave: int | None = None
    lanes: Sequence[Lane] = ()
    replay: int = 0
    enter: Tensor | None = None


@dataclass
class Walk:
    """A context manager around one call of the pipeline with ``rows`` pictures.

    Attributes:
        evaluations: Denoiser evaluations of one picture: rows of all calls that were computed.
        start: The samples that the first step was given.
        sample: The samples after the last step that was computed or replayed.
        times: Timesteps of the steps.
        lanes: What was recorded, of each picture; only where the walk leaves early.
    """

    target: Target
    rows: int
    route: Route = field(default_factory=Route)
    evaluations: int = 0
    start: Tensor | None = None
    sample: Tensor | None = None
    times: list[float] = field(default_factory=list)
    lanes: list[Lane] = field(default_factory=list)

    def __enter__(self) -> Walk:
        self._step, self._asked = 0, 0
        self._outputs: list[list[Tree]] = [[]]
        with ExitStack() as undo:
            for denoiser in self.target.denoisers:
                undo.callback(install(denoiser.module, _Asked(self._call), "search"))
            undo.callback(tap.guard(self.target.scheduler, "step", self._solve))
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: Any, *error: object) -> None:
        self._undo.close()
        if kind is None and not self._step:
            raise AccelError(f"{type(self.target.pipe).__name__} does not step its scheduler: no search here")
        if kind is None and self.route.leave is not None:
            self.lanes = [_lane(self._outputs[: self.route.leave], row, self.rows) for row in range(self.rows)]

    @property
    def computed(self) -> int:
        """How many steps were computed."""
        last = len(self.times) if self.route.leave is None else min(self.route.leave, len(self.times))
        return last - self.route.replay

    # The denoisers

    def _call(self, compute: Callable[[], Tree]) -> Tree:
        number, route = self._asked, self.route
        self._asked += 1
        if self._step < route.replay:
            output = _joined([lane[self._step][number] for lane in route.lanes])
        elif route.leave is not None and self._step >= route.leave:
            output = self._outputs[route.leave - 1][number]
        else:
            output = compute()
            self.evaluations += height(output)
        if route.leave is not None:
            self._outputs[-1].append(output)
        return output

    # The solver

    def _solve(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        scheduler, step, route = self.target.scheduler, self._step, self.route
        given = inspect.signature(type(scheduler).step).bind(scheduler, *args, **kwargs).arguments
        sample: Tensor = given["sample"]
        self.times.append(float(given["timestep"]))
        self.start = sample if self.start is None else self.start
        self._step, self._asked = step + 1, 0
        self._outputs.append([])
        if route.leave is not None and step >= route.leave:
            return _answer(sample, kwargs)
        if route.enter is not None and step < route.replay:
            if hasattr(scheduler, "_step_index"):
                scheduler._step_index = step + 1
            return _answer(route.enter if step + 1 == route.replay else sample, kwargs)
        output = proceed(*args, **kwargs)
        self.sample = output[0] if isinstance(output, tuple) else output.prev_sample
        if step + 1 != route.leave:
            return output
        shown = given["model_output"][:, : sample.shape[1]]  # a learned variance comes last
        return _answer(clean(scheduler, shown.float(), sample.float(), self.times[-1]).to(sample.dtype), kwargs)


class _Asked(ModelHook):
    """Puts every call of a denoiser to the walk."""

    def __init__(self, ask: Callable[[Callable[[], Tree]], Tree]) -> None:
        super().__init__()
        self._ask = ask

    def new_forward(self, module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return self._ask(lambda: self.fn_ref.original_forward(*args, **kwargs))


def _answer(sample: Tensor, kwargs: dict[str, Any]) -> Any:
    """``sample`` in the form in which solvers return it, also to those who take the clean sample from it."""
    if kwargs.get("return_dict", True):
        return SimpleNamespace(prev_sample=sample, pred_original_sample=sample, denoised=sample)
    return sample, sample


def _lane(outputs: Sequence[Sequence[Tree]], row: int, rows: int) -> Lane:
    """One picture's rows of every output; the halves of batched guidance lie ``rows`` apart."""

    def take(tensor: Tensor) -> Tensor:
        return tensor[row::rows] if tensor.ndim else tensor

    for output in outputs[0]:
        if isinstance(output, list) or height(output) % rows:
            raise AccelError("the denoiser returns no rows that could be told apart: search without previews")
    return [[map_tensors(take, output) for output in step] for step in outputs]


def _joined(parts: Sequence[Tree]) -> Tree:
    """The inverse of `_lane`: first halves of all pictures, then second halves."""

    def join(*tensors: Tensor) -> Tensor:
        return torch.stack(tensors, dim=1).flatten(0, 1) if tensors[0].ndim else tensors[0]

    return map_tensors(join, *parts)

"""Rows of one loop on schedules of their own.

A pipeline runs one loop for a whole batch, but its pictures need not take the same steps: one may be simple, one may
have converged. Here the loop's iterations are only ticks. In each tick a picture takes the next step of *its* schedule,
with its own timestep, through a copy of the scheduler that holds its history; a picture that has reached the end is
left out of the denoiser's batch. So every picture is what it would be alone, and the pipeline need not know.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch

from accel.calls import Call, Proceed, narrowed
from accel.clock import Clock
from accel.errors import AccelError, AccelWarning
from accel.report import Recorder
from accel.target import Target
from accel.tensors import Tree, map_tensors, rows, tensors

_TIMES = ("timestep", "timesteps", "t", "timestep_ratio")

Form = Callable[[Any, float], Any]
"""What a pipeline hands to its denoiser for a timestep, and the number of training timesteps."""

_FORMS: tuple[Form, ...] = (lambda t, whole: t, lambda t, whole: t / whole, lambda t, whole: 1 - t / whole)


@dataclass
class Group:
    """Pictures that take the same steps: their places in the batch, their scheduler, and the steps they have done."""

    pictures: list[int]
    scheduler: Any
    done: int
    louder: float = 1.0
    """How much more noise its first step expects than the pipeline drew."""

    @property
    def finished(self) -> bool:
        """Has every step been taken?"""
        return self.done >= len(self.scheduler.timesteps)

    @property
    def time(self) -> torch.Tensor:
        """The timestep of the next step."""
        return self.scheduler.timesteps[self.done]


class Rows:
    """Follows the groups of a run; while there is only the pipeline's own scheduler, nothing is changed.

    Args:
        technique: In whose name cells are reported.
        clock: The pipeline's clock.
        recorder: Receives a cell for every denoiser call while there are groups.
        stepped: Called after every solver step with the prediction and the sample that went into it, all rows.

    Attributes:
        called: Called before every denoiser call.
        problem: Why the rows cannot be told apart in this run; known after its first denoiser call.
    """

    def __init__(
        self,
        technique: str,
        clock: Clock,
        recorder: Recorder,
        stepped: Callable[[torch.Tensor, torch.Tensor], None] | None = None,
    ) -> None:
        self.technique, self.clock, self.recorder, self.stepped = technique, clock, recorder, stepped
        self.groups: list[Group] = []
        self.pictures = 0
        self._form: Form | None = None
        self._batch = 1
        self._answer: Tree = None  # zeros in the shape of the denoiser's output, for calls that nobody needs
        self.problem: str | None = "no denoiser call was seen"
        self.called: Callable[[Call], None] | None = None

    def attach(self) -> Callable[[], None]:
        """Stand around the scheduler and the denoisers; returns what undoes it."""
        with ExitStack() as undo:
            undo.callback(self._leave)
            undo.callback(self.clock.guard_scheduler(step=self._step, scale_model_input=self._scale))
            undo.callback(self.clock.subscribe(lambda run: None, self.clear, self._around, outermost=True))
            return undo.pop_all().close

    def _leave(self) -> None:
        if self.groups and self.clock.run is not None:
            text = "the plan was removed while pictures followed schedules of their own: draw this run again"
            warnings.warn(text, AccelWarning, stacklevel=2)
        self.clear()

    def clear(self) -> None:
        """Back to the pipeline's own scheduler for all rows."""
        self.groups, self.pictures, self._form, self._answer = [], 0, None, None
        self.problem = "no denoiser call was seen"

    def divide(self, chosen: Iterable[int], pictures: int, change: Callable[[Any], None], done: int) -> None:
        """From the next step on ``chosen`` of the ``pictures`` follow a copy of their scheduler after ``change``.

        ``done`` steps of the schedule are behind them.
        """
        if not self.groups:
            whole = copy.deepcopy(self.clock.target.scheduler)
            self.groups, self.pictures = [Group(list(range(pictures)), whole, done)], pictures
        wanted = set(chosen)
        for group in list(self.groups):
            leaving = [picture for picture in group.pictures if picture in wanted]
            if not leaving:
                continue
            apart = _apart(group, leaving)
            before = getattr(apart.scheduler, "init_noise_sigma", 1.0)
            change(apart.scheduler)
            if done == 0:
                apart.louder = float(getattr(apart.scheduler, "init_noise_sigma", 1.0) / before)
            self.groups.remove(group)
            staying = [picture for picture in group.pictures if picture not in wanted]
            self.groups += [apart, *([_apart(group, staying)] if staying else [])]

    # --- the scheduler -----------------------------------------------------------------------------------------

    def _mine(self) -> bool:
        return self.clock.run is not None and self.clock.ours()

    def _scale(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not (self.groups and self._mine()):
            return proceed(*args, **kwargs)
        sample = args[0] if args else kwargs["sample"]
        scaled = sample.clone()
        for group in self._active():
            lane = [row for row in range(len(sample)) if row % self.pictures in group.pictures]
            scaled[lane] = group.scheduler.scale_model_input(_louder(group, sample[lane]), group.time)
        return scaled

    def _step(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._mine():
            return proceed(*args, **kwargs)
        given = _bound(self.clock.target.scheduler, args, kwargs)
        moving = not self.groups or bool(self._active())
        if not self.groups and self._batch % len(given["sample"]):
            self.problem = "the solver steps other rows than the denoiser is given"
        result = self._stepped(given) if self.groups else proceed(*args, **kwargs)
        if self.stepped and moving:
            self.stepped(given["model_output"], given["sample"])
        return result

    def _stepped(self, given: dict[str, Any]) -> Any:
        batch = len(given["sample"])
        if batch != self.pictures:
            raise AccelError(
                f"{self.technique}: the solver steps {batch} rows for {self.pictures} pictures, so these cannot take "
                "different steps in one batch: draw them one by one"
            )
        whole: Tree = None
        for group in self._active():
            part = {name: _of(value, batch, group.pictures) for name, value in given.items()}
            part |= {"timestep": group.time, "sample": _louder(group, part["sample"])}
            result = group.scheduler.step(**part)
            group.done += 1
            whole = _blank(result, batch, given["sample"]) if whole is None else whole
            _fill(whole, result, group.pictures)
        if whole is None:  # everybody is finished
            return _unmoved(self.groups[0].scheduler, given)
        return whole

    def _active(self) -> list[Group]:
        return [group for group in self.groups if not group.finished]

    # --- the denoisers -----------------------------------------------------------------------------------------

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        if self.called:
            self.called(call)
        self._batch = call.batch
        if self.clock.step == 0 and self._form is None:
            self.problem = self._read(call, args, kwargs)
            if self.problem and self.groups:
                self.recorder.decline(
                    self.technique, f"all pictures take the most steps that one needs: {self.problem}"
                )
                self.groups = []
        if not self.groups:
            return self._remember(proceed(*args, **kwargs))
        now = [(float(group.time), group.pictures) for group in self._active()]
        times = {picture: time for time, pictures in now for picture in pictures}
        keep = [row for row in range(call.batch) if row % self.pictures in times]
        self.recorder.cell(self.technique, predicted=not keep, lighter=0 < len(keep) < call.batch)
        if not keep:
            return map_tensors(lambda t: t.new_zeros(call.batch, *t.shape[1:]), self._answer)
        args, kwargs = self._at(args, kwargs, call, [times.get(row % self.pictures, 0.0) for row in range(call.batch)])
        if len(keep) == call.batch:
            return self._remember(proceed(*args, **kwargs))
        some, named = narrowed(args, kwargs, call.batch, keep)
        return map_tensors(lambda t: _spread(t, keep, call.batch), proceed(*some, **named))

    def _read(self, call: Call, args: Any, kwargs: Any) -> str | None:
        """Why the rows of this pipeline cannot be told apart; ``None`` when they can."""
        if len(call.sample) != 1:
            return "the denoiser takes a list with one tensor for each row"
        if self.groups and call.batch % self.pictures:
            return f"the denoiser is called with {call.batch} rows for {self.pictures} pictures"
        name, value = time_argument(call.denoiser.module, args, kwargs)
        self._form = form_of(self.clock.target.scheduler, value, self.clock.time)
        if self._form is None:
            return f"it is not known how the pipeline makes the denoiser's {name or 'timestep'} from the solver's"
        return unfit(self.clock.target)

    def _remember(self, output: Tree) -> Tree:
        if self._answer is None:
            self._answer = map_tensors(lambda t: t.new_zeros(()).expand(t.shape), output)  # a shape, no memory
        return output

    def _at(self, args: Any, kwargs: Any, call: Call, times: Sequence[float]) -> tuple[Any, Any]:
        """The arguments with the timestep of every row."""
        assert self._form is not None
        name, value = time_argument(call.denoiser.module, args, kwargs)
        whole = self.clock.target.scheduler.config.get("num_train_timesteps", 1000)
        dtype = value.dtype if isinstance(value, torch.Tensor) else torch.float32
        own = self._form(torch.tensor(times, dtype=torch.float64).to(call.sample[0][2], dtype), whole)
        if name in kwargs:
            return args, {**kwargs, name: own}
        place = _names(call.denoiser.module).index(name)
        return (*args[:place], own, *args[place + 1 :]), kwargs


def unfit(target: Target) -> str | None:
    """Why the pictures of a batch cannot go different ways; ``None`` when they can."""
    if len(target.denoisers) > 1:
        return "the pipeline chooses between its denoisers by its own timestep"
    if "mask_image" in inspect.signature(type(target.pipe).__call__).parameters:
        return "the pipeline blends in a picture with the noise of its own timestep"
    if target.helpers:
        return f"{' and '.join(target.helpers)} is given one timestep for the whole batch"
    scheduler = type(target.scheduler)
    if list(inspect.signature(scheduler.step).parameters)[1:4] != ["model_output", "timestep", "sample"]:
        return f"{scheduler.__name__}.step does not take (model_output, timestep, sample)"
    return None


def time_argument(module: torch.nn.Module, args: Any, kwargs: Any) -> tuple[str, Any]:
    """Name and value of the timestep in a denoiser's arguments; ``("", None)`` where there is none."""
    for place, name in enumerate(_names(module)):
        if name in _TIMES:
            return name, kwargs[name] if name in kwargs else args[place] if place < len(args) else None
    return "", None


def form_of(scheduler: Any, value: Any, time: float) -> Form | None:
    """How the pipeline made the denoiser's ``value`` from the timestep ``time``; ``None`` when that is not known."""
    if value is None or (isinstance(value, torch.Tensor) and value.ndim > 1):
        return None  # one timestep for each token
    number = float(value.flatten()[0]) if isinstance(value, torch.Tensor) else float(value)
    exact = isinstance(value, torch.Tensor) and value.is_floating_point()
    apart = max(1e-3, torch.finfo(value.dtype).eps if exact else 0.0)
    whole = scheduler.config.get("num_train_timesteps", 1000)
    return next((form for form in _FORMS if abs(form(time, whole) - number) <= apart * max(1.0, abs(number))), None)


def _names(module: torch.nn.Module) -> list[str]:
    return list(inspect.signature(type(module).forward).parameters)[1:]


def _bound(scheduler: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = inspect.signature(type(scheduler).step).bind(scheduler, *args, **kwargs)
    return dict(list(bound.arguments.items())[1:])


def _of(value: Any, batch: int, pictures: Sequence[int]) -> Any:
    """The part of an argument that belongs to ``pictures``: rows of a tensor, items of a list of generators."""
    if isinstance(value, list) and len(value) == batch:
        return [value[picture] for picture in pictures]
    return rows(value, batch, list(pictures))


def _louder(group: Group, sample: torch.Tensor) -> torch.Tensor:
    return sample if group.done or group.louder == 1 else sample * group.louder


def _apart(group: Group, pictures: list[int]) -> Group:
    """A group of some of the pictures, whose scheduler remembers only these."""
    places = [group.pictures.index(picture) for picture in pictures]
    scheduler = copy.deepcopy(group.scheduler)
    for name, value in vars(scheduler).items():
        if isinstance(value, (torch.Tensor, list)) and name not in ("timesteps", "sigmas"):
            setattr(scheduler, name, _history(value, len(group.pictures), places))
    return Group(pictures, scheduler, group.done)


def _history(value: Any, height: int, places: Sequence[int]) -> Any:
    """Samples and outputs of earlier steps, for some rows. Tables of the schedule have one dimension and stay whole."""
    if isinstance(value, list):
        return [_history(item, height, places) for item in value]
    if isinstance(value, torch.Tensor) and value.ndim > 1 and len(value) == height:
        return value[list(places)]
    return value


def _blank(result: Tree, batch: int, sample: torch.Tensor) -> Tree:
    """A result for the whole batch; pictures that take no step keep their sample."""

    def whole(t: torch.Tensor) -> torch.Tensor:
        return sample.to(t.dtype).clone() if t.shape[1:] == sample.shape[1:] else t.new_zeros(batch, *t.shape[1:])

    return map_tensors(whole, result)


def _fill(whole: Tree, result: Tree, pictures: Sequence[int]) -> None:
    for full, part in zip(tensors(whole), tensors(result), strict=True):
        full[list(pictures)] = part


def _unmoved(scheduler: Any, given: dict[str, Any]) -> Any:
    """What ``step`` returns, with the sample as it was."""
    sample = given["sample"]
    if not given.get("return_dict", True):
        return (sample, sample)
    from diffusers.schedulers.scheduling_utils import SchedulerOutput

    return SchedulerOutput(prev_sample=sample)


def _spread(part: torch.Tensor, keep: Sequence[int], batch: int) -> torch.Tensor:
    whole = part.new_zeros(batch, *part.shape[1:])
    whole[list(keep)] = part
    return whole

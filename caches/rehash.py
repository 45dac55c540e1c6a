"""Step rehash of Streamlined Inference (arXiv:2411.01171): whole denoiser calls predicted from earlier ones.

The output of the denoiser is a site like any other. With y_t and y_s the outputs of the last two computed steps, the
steps that follow are predicted while

    1 - |y_t - y_s|_1 / |y_t|_1  ≥  similarity

and never more than ``interval - 1`` of them in a row. AdaptiveDiffusion (arXiv:2410.09873) asks the sample instead,
whose path must be even, see `accel.caches.latents`. Each picture of a batch decides for itself, over its guidance
halves together, and keeps its own past, so that it is the picture that it would be alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch

from accel.caches.latents import Moves
from accel.caches.past import Entry, Past
from accel.caches.predict import ORDER, Axis, Sample, check_how, lagrange, predict
from accel.caches.rows import join, split
from accel.calls import Call, Proceed
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.runs import Run
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive
from accel.tensors import Tree, height, tensors

Key = tuple[str, str, int]
"""Denoiser, branch and row of the batch."""


@dataclass(frozen=True)
class StepRehash(Technique):
    """Predict the denoiser's whole output on some steps: always, or while the computed ones are alike.

    It saves whole calls for no more memory than a few copies of the output. So does taking fewer steps, with a solver
    that knows about it: hold the one against the other before using it.
    """

    name: ClassVar[str] = "rehash"
    summary: ClassVar[str] = "whole denoiser calls on some steps, their output extrapolated on the rest"
    source: ClassVar[str] = "arXiv:2411.01171, arXiv:2410.09873"
    choices: ClassVar[Mapping[str, tuple[Any, ...]]] = {"interval": (2, 3), "warm_up": (2, 3)}

    interval: int = 2
    """After the warm-up compute every ``interval``-th step at least."""
    warm_up: int = 3
    """Steps computed at the start; the last step is computed as well."""
    similarity: float | None = None
    """Predict only where the last two computed outputs were at least this similar, 1 being equal; ``None``: always."""
    unevenness: float | None = None
    """Predict only where the sample's last three moves were at most this uneven, 0 being even; ``None``: always."""
    how: str = "linear"
    """Predictor: ``reuse`` (the papers'), ``linear`` or ``quadratic``."""
    axis: Axis = "time"
    """What the predictor runs along: ``time``, ``sigma`` or ``logsnr``."""

    def __post_init__(self) -> None:
        positive(self, interval=self.interval, warm_up=self.warm_up)
        check_how(self.how, self.axis, without=("zero", "fitted"))
        if self.similarity is not None and (isinstance(self.similarity, bool) or not self.similarity <= 1):
            raise AccelError(f"rehash: similarity is a number up to 1 (equal), or None, not {self.similarity!r}")
        if self.unevenness is not None and (isinstance(self.unevenness, bool) or not self.unevenness >= 0):
            raise AccelError(f"rehash: unevenness is a number from 0 (even) on, or None, not {self.unevenness!r}")

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"steps"})

    def problems(self, target: Target) -> list[str]:
        return []

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        return _Rehash(self, clock, recorder).attach()


@dataclass
class _State:
    """What belongs to one run; the next one begins with a new object."""

    past: Past
    places: list[float] = field(default_factory=list)
    """Where each step is on the axis."""
    change: dict[Key, tuple[torch.Tensor, torch.Tensor]] = field(default_factory=dict)
    """|y_t - y_s| and |y_t| of the last two computed values of a row."""
    newest: dict[tuple[str, str], Call] = field(default_factory=dict)
    """By denoiser and branch."""
    in_a_row: dict[tuple[str, int], int] = field(default_factory=dict)
    """Steps predicted since the last computed one, by denoiser and picture."""
    chosen: dict[str, tuple[int, set[int]]] = field(default_factory=dict)
    """By denoiser: a step, and the pictures to predict in it."""


class _Rehash:
    """Stands around the denoisers' calls and decides which pictures need one."""

    def __init__(self, settings: StepRehash, clock: Clock, recorder: Recorder):
        self.settings, self.order = settings, ORDER[settings.how]
        self.clock, self.recorder = clock, recorder
        self.state = _State(Past(recorder))
        self.moves = Moves(clock)

    def attach(self) -> Detach:
        """Listen to the clock; returns what undoes it."""
        with ExitStack() as undo:
            undo.callback(self._end)
            if self.settings.unevenness is not None:
                undo.callback(self.moves.attach())
            undo.callback(self.clock.subscribe(self._begin, self._end, self._around, outermost=True))
            self.recorder.matched(StepRehash.name, len(self.clock.target.denoisers))
            return undo.pop_all().close

    def _begin(self, run: Run) -> None:
        self.state.places = run.along(self.settings.axis)

    def _end(self) -> None:
        self.state.past.clear()
        self.state = _State(Past(self.recorder))
        self.moves.clear()

    # --- a denoiser call ---------------------------------------------------------------------------------------

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        self._forget_if_changed(call)
        rows = range(*(self.clock.lane or (0, call.batch)))
        chosen = self._chosen(call, rows)
        guessed = {row: self._guess(call, row) for row in rows if row % _pictures(call) in chosen}
        self.recorder.cell(StepRehash.name, predicted=len(guessed) == len(rows))
        if len(guessed) == len(rows):
            return join([guessed[row] for row in rows])
        if guessed:
            self._decline("not all pictures of the batch were similar enough, so all of them were computed")
        output = proceed(*args, **kwargs)
        if height(output) != len(rows):  # nothing can be kept of rows that are not there
            return output
        computed = dict(zip(rows, split(output, len(rows)), strict=True))
        for row in computed.keys() - guessed.keys():
            self._keep(call, row, computed[row])
        return join([(computed | guessed)[row] for row in rows]) if guessed else output

    def _forget_if_changed(self, call: Call) -> None:
        key = (call.denoiser.name, call.branch)
        earlier, self.state.newest[key] = self.state.newest.get(key), call
        if earlier and (reason := call.changed_since(earlier)):
            self._decline(reason)
            self.state.past.forget(*(k for k in self.state.past.keys() if k[:2] == key))  # type: ignore[index]
            self.state.change = {k: change for k, change in self.state.change.items() if k[:2] != key}

    def _guess(self, call: Call, row: int) -> Tree:
        past, places = self._past(call, row), self.state.places
        return predict(lagrange([places[step] for step, _ in past], places[self.clock.step]), past)

    def _keep(self, call: Call, row: int, value: Tree) -> None:
        """Compare with the last computed value, and keep it if a later step may look at it."""
        first, step = self.settings.warm_up - max(self.order, 2), self.clock.step
        if not first <= step < self.clock.steps - 2:  # the last step is computed
            return
        past, key = self._past(call, row), _key(call, row)
        if self.settings.similarity is not None and past:
            now, then = (next(tensors(each)).float() for each in (value, past[-1][1]))
            self.state.change[key] = (now - then).abs().sum(), now.abs().sum()
        self.state.past.keep(key, Entry(step, None, 1, value), self.order)

    def _past(self, call: Call, row: int) -> list[Sample]:
        return self.state.past.usable(_key(call, row), None)

    # --- which pictures ----------------------------------------------------------------------------------------

    def _chosen(self, call: Call, rows: range) -> set[int]:
        """The pictures whose rows are predicted: decided at a denoiser's first call in a step, for all its branches."""
        name, step = call.denoiser.name, self.clock.step
        if name not in self.state.chosen or self.state.chosen[name][0] != step:
            chosen = self._with_past(call, rows, {p for p in range(_pictures(call)) if self._wants(call, p)})
            self.state.chosen[name] = step, chosen
            for picture in range(_pictures(call)):
                count = self.state.in_a_row.get((name, picture), 0)
                self.state.in_a_row[name, picture] = count + 1 if picture in chosen else 0
        return self._with_past(call, rows, self.state.chosen[name][1])

    def _with_past(self, call: Call, rows: range, chosen: set[int]) -> set[int]:
        """Those of the pictures for whose rows enough values are kept."""
        poor = {
            row % _pictures(call) for row in rows if self.state.past.count(_key(call, row), None) < self.order
        } & chosen
        if poor:
            self._decline(f"fewer than {self.order} computed values to predict from")
        return chosen - poor

    def _wants(self, call: Call, picture: int) -> bool:
        step, settings = self.clock.step, self.settings
        if step < settings.warm_up or step >= self.clock.steps - 1:
            return False
        if self.state.in_a_row.get((call.denoiser.name, picture), 0) >= settings.interval - 1:
            return False
        problem = None if settings.unevenness is None else self._uneven(picture, settings.unevenness)
        if problem is None and settings.similarity is not None:
            problem = self._unlike(call, picture, settings.similarity)
        if problem:
            self._decline(problem)
        return problem is None

    def _uneven(self, picture: int, most: float) -> str | None:
        """Why ``picture`` is not predicted; ``None`` when its sample moves evenly enough."""
        value = self.moves.unevenness(picture)
        if value is None:
            return "fewer than three steps were seen"
        return None if value <= most else f"the sample moves less evenly than {most}"

    def _unlike(self, call: Call, picture: int, similarity: float) -> str | None:
        """Why ``picture`` is not predicted; ``None`` when its last two computed outputs were similar enough.

        Waits for a GPU: after each computed step once for every picture.
        """
        if not call.lanes:
            return "it is not known which rows of the batch belong to one picture"
        changes = [
            change
            for (name, _, row), change in self.state.change.items()
            if name == call.denoiser.name and row % _pictures(call) == picture
        ]
        if not changes:
            return "there are no two computed outputs to compare"
        difference, size = (float(torch.stack(parts).sum()) for parts in zip(*changes, strict=True))
        if difference <= (1 - similarity) * size:
            return None
        return f"the last two computed outputs are less similar than {similarity}"

    def _decline(self, reason: str) -> None:
        self.recorder.decline(StepRehash.name, reason)


def _pictures(call: Call) -> int:
    """How many pictures the rows of the batch belong to: guidance halves come one after the other."""
    return call.batch // call.lanes if call.lanes else call.batch


def _key(call: Call, row: int) -> Key:
    return call.denoiser.name, call.branch, row

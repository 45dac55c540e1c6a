"""Stretches of blocks that are predicted when an indicator sees little change: decided as they are entered.

A ``0`` of the table leaves the decision to the indicator. Every row of the batch has a past of its own, and is what it
would be in a batch of its own; the guidance halves of one picture decide together. Where only some rows are predicted,
the blocks are given the others, unless something listens inside of them that knows nothing of this.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from accel.caches.dynamic.indicators import Indicator, Unseen
from accel.caches.dynamic.judge import Judge, Limits
from accel.caches.dynamic.streams import Inputs, Pairs, minus, named, pair, plus, put, taken
from accel.caches.executor import Cell, Executor, Rule
from accel.caches.past import Entry
from accel.caches.predict import predict
from accel.caches.rows import join, split
from accel.caches.table import Row
from accel.calls import Call, Proceed
from accel.clock import Clock
from accel.hooks import labels
from accel.report import Recorder
from accel.runs import Run, main_input
from accel.sites import Site
from accel.technique import Detach
from accel.tensors import Tree, height

_NO_ROWS = "what the stretch is given does not show which picture is where"
_RESHAPED = "what the stretch is given changed its shape or type"
_BACKWARDS = "the end of the stretch was reached before its beginning"


@dataclass
class _Entered:
    """A stretch in the current call."""

    rows: list[int]
    """Numbers, in the full batch, of the rows that it is given; a single one also stands for a folded batch."""
    guessed: list[bool]
    """Which of ``rows`` are predicted."""
    inputs: Inputs
    """What the first block is given."""
    running: torch.Tensor | None = None
    """Which of ``rows`` go through the blocks, where not all do."""

    @property
    def cell(self) -> Cell:
        """For the report: a batch of which only some rows went through the blocks was computed in a lighter way."""
        return all(self.guessed), self.running is not None

    @property
    def computed(self) -> list[int]:
        """Which of ``rows`` are not predicted."""
        return [i for i, predicted in enumerate(self.guessed) if not predicted]


@dataclass
class _Known:
    """What one run tells of a stretch in one branch."""

    form: tuple[Any, ...]
    """Of what it is given, without the rows."""
    pairs: Pairs | None = None


class ResidualExecutor(Executor):
    """Runs one technique's stretches, each of which has its indicator, or none where the table knows it all."""

    def __init__(
        self,
        technique: str,
        indicators: Mapping[Site, Indicator | None],
        rule: Rule,
        limits: Limits,
        clock: Clock,
        recorder: Recorder,
    ):
        super().__init__(technique, list(indicators), rule, clock, recorder)
        self.indicators, self.limits = indicators, limits
        self.sample: Tree = None  # the denoiser's main input in the current call
        self.entered: dict[str, _Entered | None] = {}  # by site, from its first block on; `None` where nothing is kept
        self.alone: dict[str, bool] = {}  # by site: may its blocks be given a part of the rows?
        self.known: dict[tuple[str, str], _Known] = {}
        self.judge = Judge(limits, self.state.past)

    def attach(self) -> Detach:
        """Hook the stretches and what the indicators look at; returns what undoes it."""
        with ExitStack() as undo:
            for indicator in filter(None, self.indicators.values()):
                undo.callback(indicator.attach(self.clock))
            undo.callback(super().attach())
            return undo.pop_all().close

    # --- a run -------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        super()._begin(run)
        self.alone = {site.name: _alone(site, self.technique) for site in self.sites}

    def _end(self) -> None:
        super()._end()
        self.known, self.judge = {}, Judge(self.limits, self.state.past)

    def _forget(self, branch: str) -> None:
        super()._forget(branch)
        self.judge.forget(None, branch)
        self.known = {key: known for key, known in self.known.items() if key[1] != branch}

    # --- a denoiser call ---------------------------------------------------------------------------------------

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        self.sample = main_input(call.denoiser.module, args, kwargs)
        try:
            return super()._around(call, proceed, args, kwargs)
        finally:
            self.sample, self.entered = None, {}
            for indicator in filter(None, self.indicators.values()):
                indicator.forget()

    def _can_predict(self, site: Site) -> bool:
        return False  # not yet: it is decided as the stretch is entered

    # --- a stretch is entered ----------------------------------------------------------------------------------

    def _enter(self, site: Site, module: nn.Module, args: Any, kwargs: Any) -> None:
        """Decide which rows of a stretch are predicted, from what its first block is given."""
        row, step = self.state.rows[site.name], self.clock.step
        self.entered[site.name] = None
        self.predicting.discard(site.name)
        if not row.cells.find("0") - max(row.depth, 1) <= step <= row.last:
            return  # nothing of this step will be looked at
        inputs = named(module, args, kwargs)
        if (rows := self._rows(inputs)) is None:
            if row.predicts(step):
                self.recorder.decline(self.technique, _NO_ROWS)
            return
        known = self._recall(site, inputs)
        guessed = self._decide(site, row, rows, inputs)
        entered = self.entered[site.name] = _Entered(rows, guessed, inputs)
        if any(guessed) and (all(guessed) or self.alone[site.name]):
            self.predicting.add(site.name)
            if entered.computed:
                entered.running = torch.tensor(entered.computed, device=next(iter(inputs.values())).device)
        if entered.computed:  # blocks may write into what they are given
            wanted = inputs if known.pairs is None else known.pairs
            entered.inputs = {name: value.clone() for name, value in inputs.items() if name in wanted}

    def _rows(self, inputs: Inputs) -> list[int] | None:
        """The rows that a stretch is given, see `_Entered`; ``None`` where they cannot be told."""
        first = self._lane[0] if self._lane else 0
        if len(next(iter(inputs.values()), ())) == self._rows_now:
            return list(range(first, first + self._rows_now))
        return [0] if inputs and self._pictures == 1 and self._lane is None else None

    def _recall(self, site: Site, inputs: Inputs) -> _Known:
        """What is known of the stretch; nothing where its inputs have changed their form."""
        form = tuple((name, value.shape[1:], value.dtype) for name, value in inputs.items())
        known = self.known.get(self._key(site))
        if known and known.form != form:
            self.recorder.decline(self.technique, _RESHAPED)
            self._release(site)
        return self.known.setdefault(self._key(site), _Known(form))

    def _decide(self, site: Site, row: Row, rows: list[int], inputs: Inputs) -> list[bool]:
        indicator, seen, refusal = self.indicators[site], None, self.state.closed.get(site.name)
        try:
            if indicator and not self.judge.follows(*self._key(site), self.clock.step, self._pictures):
                seen = split(indicator.look(inputs, self.sample), len(rows))
        except Unseen as reason:
            refusal = refusal or str(reason)
        keys = [(*self._key(site), number) for number in rows]
        guessed, reasons = self.judge.decide(row, self.clock.step, keys, self._pictures, seen, refusal)
        for each in reasons:
            self.recorder.decline(self.technique, each)
        return guessed

    # --- inside, and at the end --------------------------------------------------------------------------------

    def inside_region(self, site: Site, name: str, forward: Proceed, args: Any, kwargs: Any) -> Tree:
        """The output of an interior module: placeholders for the rows that are predicted."""
        first, module = site.interior[0]
        if name == first and self.call is not None and site.name in self.state.rows:
            self._enter(site, module, args, kwargs)
        entered = self.entered.get(site.name)
        if entered is None or entered.running is None:
            return super().inside_region(site, name, forward, args, kwargs)
        part = _run(entered, dict(site.interior)[name], forward, args, kwargs)
        return put(self._placeholder(site, name), part, len(entered.rows), entered.running)

    def at_site(self, site: Site, forward: Proceed, args: Any, kwargs: Any) -> Tree:
        """The output of a stretch: computed rows, and rows that are its input plus a predicted residual."""
        row, step = self.state.rows.get(site.name), self.clock.step
        if self.call is None or row is None:
            return forward(*args, **kwargs)
        if not site.interior:
            self._enter(site, site.module, args, kwargs)
        if site.name not in self.entered and row.predicts(step):
            self.recorder.decline(self.technique, _BACKWARDS)
        entered = self.entered.pop(site.name, None)
        value = self._output(site, row, entered, forward, args, kwargs) if entered else forward(*args, **kwargs)
        if step == row.last:
            self._release(site)
        self.cells.setdefault(site.name, []).append(entered.cell if entered else (False, False))
        return value

    def _output(self, site: Site, row: Row, entered: _Entered, forward: Proceed, args: Any, kwargs: Any) -> Tree:
        inputs = split(entered.inputs, len(entered.rows))
        parts = {i: self._guess(site, row, entered.rows[i], inputs[i]) for i, yes in enumerate(entered.guessed) if yes}
        if entered.computed:
            value = _run(entered, site.module, forward, args, kwargs)
            some = entered.running is not None and height(value) == len(entered.computed)
            numbers = entered.computed if some else range(len(inputs))
            computed = dict(zip(numbers, split(value, len(numbers)), strict=True))
            for i in entered.computed:
                parts[i] = computed[i]
                self._keep(site, row, entered.rows[i], inputs[i], computed[i])
            if not any(entered.guessed):
                return value
        return join([parts[i] for i in range(len(inputs))]) if len(inputs) > 1 else parts[0]

    def _guess(self, site: Site, row: Row, number: int, inputs: Inputs) -> Tree:
        past = self.state.past.usable((*self._key(site), number), None)
        weights = row.weigh(self.clock.step, [step for step, _ in past], self.state.places[row.axis])
        return plus(predict(weights, past), inputs, self.known[self._key(site)].pairs or ())

    def _keep(self, site: Site, row: Row, number: int, inputs: Inputs, output: Tree) -> None:
        known, step = self.known[self._key(site)], self.clock.step
        if known.pairs is None:
            known.pairs = pair(inputs, output)
        if step < row.last:
            residual = minus(output, inputs, known.pairs)
            self.state.past.keep((*self._key(site), number), Entry(step, None, 1, residual), row.depth)

    def _release(self, site: Site) -> None:
        """Free what is kept of a stretch in this branch."""
        key = self._key(site)
        self.state.past.forget(*(k for k in self.state.past.keys() if k[:2] == key))  # type: ignore[index]
        self.judge.forget(*key)
        self.known.pop(key, None)

    @property
    def _pictures(self) -> int:
        """How many the rows of the full batch belong to: guidance halves come one after the other."""
        assert self.call is not None
        return self.call.batch // (self.call.lanes or 1)


def _run(entered: _Entered, module: nn.Module, forward: Proceed, args: Any, kwargs: Any) -> Tree:
    """What a block returns for the rows that go through it; for all where they cannot be picked."""
    if entered.running is not None:
        args, kwargs = taken(module, args, kwargs, len(entered.rows), entered.running) or (args, kwargs)
    return forward(*args, **kwargs)


def _alone(site: Site, technique: str) -> bool:
    """Does nothing else of the toolkit listen inside of the stretch? It would be told of rows that are not there."""
    inside = [module for _, block in (*site.interior, (site.name, site.module)) for module in block.modules()]
    return {label.partition(".")[0] for module in inside for label in labels(module)} <= {technique}

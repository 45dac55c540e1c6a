"""One executor for every cache: follows a table, computes or predicts each cell, and keeps account.

A predicted region does not run its interior: those modules hand on placeholders of the right shape, full of NaN, that
only other interior modules and the region's own (unused) input may see. If the structure is not what it seemed (the
region's end is never reached, or NaN reaches the output) the whole call is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from diffusers.hooks import ModelHook
from torch import nn

from accel.caches.past import Entry, Past
from accel.caches.predict import predict
from accel.caches.table import Row, Table
from accel.calls import Call, Lane, Proceed
from accel.clock import Clock
from accel.hooks import install
from accel.report import Recorder
from accel.runs import Run
from accel.sites import Site
from accel.technique import Detach
from accel.tensors import Tree, map_tensors, tensors

Rule = Callable[[int], Table]
"""Makes the table of a run from its number of steps."""

Cell = tuple[bool, bool]
"""Was it predicted, and if not, was it computed in a lighter way?"""

_LEAK = "something outside of the skipped region listens to its inside: choose another stretch"
_OPEN = "the end of the skipped region was not reached"


@dataclass
class _State:
    """What belongs to one run; the next one begins with a new object."""

    past: Past
    rows: dict[str, Row] = field(default_factory=dict)
    places: dict[str, list[float]] = field(default_factory=dict)
    """Where each step is, by axis."""
    shapes: dict[tuple[str, str, str], tuple[int, Tree]] = field(default_factory=dict)
    """Of interior outputs by site, module and branch: (rows, structure)."""
    newest: dict[Hashable, Call] = field(default_factory=dict)
    """By denoiser and branch."""
    proven: set[Hashable] = field(default_factory=set)
    """Denoisers and branches whose first prediction let no NaN through."""
    closed: dict[str, str] = field(default_factory=dict)
    """Sites that are not what they were read as, and why: they are computed from now on."""


class Executor:
    """Runs one technique's table over ``sites``."""

    def __init__(self, technique: str, sites: Sequence[Site], rule: Rule, clock: Clock, recorder: Recorder):
        self.technique, self.sites, self.rule = technique, sites, rule
        self.clock, self.recorder = clock, recorder
        self.by_denoiser: dict[str, list[Site]] = {}
        for site in sites:
            self.by_denoiser.setdefault(site.denoiser, []).append(site)
        self.state = _State(Past(recorder))
        self.call: Call | None = None
        self.predicting: set[str] = set()  # sites to predict in the current call
        self.cells: dict[str, list[Cell]] = {}  # by site reached in the current call

    def attach(self) -> Detach:
        """Hook the sites and listen to the clock; returns what undoes it."""
        with ExitStack() as undo:
            undo.callback(self._end)
            for site in self.sites:
                for name, module in site.interior:
                    undo.callback(install(module, _InteriorHook(self, site, name), f"{self.technique}.interior"))
                undo.callback(install(site.module, _SiteHook(self, site), self.technique))
            undo.callback(self.clock.subscribe(self._begin, self._end, self._around))
            self.recorder.matched(self.technique, len(self.sites))
            return undo.pop_all().close

    # --- a run -------------------------------------------------------------------------------------------------

    def _begin(self, run: Run) -> None:
        table = self.rule(run.steps)
        if table.steps != run.steps:
            self.recorder.decline(self.technique, f"its table is for {table.steps} steps, this run has {run.steps}")
            return
        self.state.rows = {site.name: row for site in self.sites if (row := table.row(site)) is not None}
        self.state.places = {row.axis: run.along(row.axis) for row in self.state.rows.values()}

    def _end(self) -> None:
        self.state.past.clear()
        self.state = _State(Past(self.recorder))

    # --- a denoiser call ---------------------------------------------------------------------------------------

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        self._forget_if_changed(call)
        self.call, self.cells = call, {}
        mine = [site for site in self.by_denoiser.get(call.denoiser.name, ()) if site.name in self.state.rows]
        self.predicting = {site.name for site in mine if self._can_predict(site)}
        try:
            output = proceed(*args, **kwargs)
            skipped = {site.name for site in mine if site.interior and site.name in self.predicting}
            if skipped and (problem := self._misread(skipped, output)):
                self.recorder.decline(self.technique, problem)
                self.predicting, self.cells = set(), {}
                output = proceed(*args, **kwargs)
            return output
        finally:
            for site, cells in self.cells.items():
                for predicted, lighter in cells:
                    self.recorder.cell(self.technique, predicted, lighter, site)
            self.call, self.predicting, self.cells = None, set(), {}

    def _misread(self, skipped: set[str], output: Tree) -> str | None:
        """Why the call must be computed again: a skipped region is not the closed stretch it was read as."""
        assert self.call is not None
        key, problem = (self.call.denoiser.name, self.call.branch), None
        if skipped - self.cells.keys():
            problem = _OPEN
        elif key not in self.state.proven and any(t.isnan().any() for t in tensors(output)):  # waits for a GPU: once
            problem = _LEAK
        if problem:
            self.state.closed |= dict.fromkeys(skipped, problem)
        else:
            self.state.proven.add(key)
        return problem

    def _forget_if_changed(self, call: Call) -> None:
        """Values for other inputs or adapters are worthless; which rows are computed is looked at by lane."""
        key = (call.denoiser.name, call.branch)
        earlier, self.state.newest[key] = self.state.newest.get(key), call
        if earlier and (reason := call.changed_since(earlier)):
            self.recorder.decline(self.technique, reason)
            self._forget(call.branch)

    def _forget(self, branch: str) -> None:
        self.state.past.forget(*(k for k in self.state.past.keys() if k[1] == branch))  # type: ignore[index]
        self.state.shapes = {k: shape for k, shape in self.state.shapes.items() if k[2] != branch}

    def _can_predict(self, site: Site) -> bool:
        row = self.state.rows[site.name]
        if not row.predicts(self.clock.step):
            return False
        if reason := self.state.closed.get(site.name):
            self.recorder.decline(self.technique, reason)
            return False
        wanted = row.order(self.clock.step)
        if self.state.past.count(self._key(site), self._lane) >= wanted:
            return True
        self.recorder.decline(self.technique, f"fewer than {wanted} computed values to predict from")
        return False

    # --- a site ------------------------------------------------------------------------------------------------

    def at_site(self, site: Site, forward: Proceed, args: Any, kwargs: Any) -> Tree:
        """The output of ``site`` in the current call, computed or predicted."""
        row, step = self.state.rows.get(site.name), self.clock.step
        if self.call is None or row is None:
            return forward(*args, **kwargs)
        predicted = site.name in self.predicting
        if predicted:
            past = self.state.past.usable(self._key(site), self._lane)
            value = predict(row.weigh(step, [at for at, _ in past], self.state.places[row.axis]), past)
        else:
            value = forward(*args, **kwargs)
            if row.keeps(step):
                self.state.past.keep(self._key(site), Entry(step, self._lane, self.call.batch, value), row.depth)
        if step == row.last:
            self.state.past.forget(self._key(site))
        self.cells.setdefault(site.name, []).append((predicted, False))
        return value

    def inside_region(self, site: Site, name: str, forward: Proceed, args: Any, kwargs: Any) -> Tree:
        """The output of an interior module: a placeholder while the region is predicted."""
        row = self.state.rows.get(site.name)
        if self.call is None or row is None or self.clock.step > row.last:
            return forward(*args, **kwargs)
        if site.name in self.predicting:
            return self._placeholder(site, name)
        value = forward(*args, **kwargs)
        key = (site.name, name, self.call.branch)
        if key not in self.state.shapes:
            self.state.shapes[key] = (self._rows_now, map_tensors(_Shape, value))
        return value

    def _placeholder(self, site: Site, name: str) -> Tree:
        assert self.call is not None
        return _blank(*self.state.shapes[site.name, name, self.call.branch], self._rows_now)

    # --- which rows --------------------------------------------------------------------------------------------

    @property
    def _lane(self) -> Lane:
        return self.clock.lane

    @property
    def _rows_now(self) -> int:
        assert self.call is not None
        return self._lane[1] - self._lane[0] if self._lane else self.call.batch

    def _key(self, site: Site) -> tuple[str, str]:
        assert self.call is not None
        return site.name, self.call.branch


class _Shape:
    """What a placeholder needs to know of the tensor it stands for."""

    def __init__(self, tensor: torch.Tensor):
        self.shape, self.dtype, self.device = tuple(tensor.shape), tensor.dtype, tensor.device

    def blank(self, rows: int, rows_then: int) -> torch.Tensor:
        shape = (self.shape[0] * rows // rows_then, *self.shape[1:])
        if self.dtype.is_floating_point:  # a leak shows at once instead of passing for a picture
            return torch.full(shape, torch.nan, dtype=self.dtype, device=self.device)
        return torch.zeros(shape, dtype=self.dtype, device=self.device)


def _blank(rows_then: int, shapes: Tree, rows: int) -> Tree:
    if isinstance(shapes, _Shape):
        return shapes.blank(rows, rows_then)
    if isinstance(shapes, (tuple, list)):
        return type(shapes)(_blank(rows_then, part, rows) for part in shapes)
    return shapes


class _SiteHook(ModelHook):
    def __init__(self, executor: Executor, site: Site):
        super().__init__()
        self.executor, self.site = executor, site

    @torch.compiler.disable(recursive=False)
    def new_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tree:
        return self.executor.at_site(self.site, self.fn_ref.original_forward, args, kwargs)


class _InteriorHook(ModelHook):
    def __init__(self, executor: Executor, site: Site, name: str):
        super().__init__()
        self.executor, self.site, self.name = executor, site, name

    @torch.compiler.disable(recursive=False)
    def new_forward(self, module: nn.Module, *args: Any, **kwargs: Any) -> Tree:
        return self.executor.inside_region(self.site, self.name, self.fn_ref.original_forward, args, kwargs)

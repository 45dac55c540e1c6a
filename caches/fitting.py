"""Fitting the weights of predictions to the final picture.

A predicted cell is a weighted sum of earlier values, so the sample x at the end of a run depends smoothly on the
weights w of all cells. To first order around the polynomial weights w0

    x(w0 + B c) = x(w0) + J c          J_k = (x(w0 + h b_k) - x(w0)) / h,  one run for each direction b_k

and the c that brings x closest to the reference x* (the plain run of many more steps) is that of ridge regression

    c = argmin |x(w0) + J c - x*|² + λ |c|² = (J'J + λ I)^-1 J' (x* - x(w0)),

every prompt counting by its distance before. The directions of a cell are its slopes, y1 - yk, and its level, y1; the
level is held closer to one, because that is where weights fitted to few prompts go wrong.

What the solver makes of an error, how errors of different steps and sites add up, and the error of the solver itself
are all in J and x*; a weight fitted to the value that it predicts knows of none of them.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from accel.caches.fitted import FittedCache
from accel.caches.predict import Axis
from accel.caches.table import Row, every
from accel.clock import Clock
from accel.errors import AccelError, AccelWarning
from accel.fingerprint import Fingerprint
from accel.handle import accelerate, check_plain
from accel.plan import Plan
from accel.runs import Run
from accel.target import Target
from accel.technique import Detach
from accel.watching import unchanged, watch

_STEP = 0.05
"""How far along a direction weights are moved to see what it does; they are of the order of one."""

_LEVEL = 0.25
"""Length of the direction that changes the sum of a cell's weights, beside 1 for its slopes."""

_RIDGES = (3e-3, 1e-2, 3e-2, 1e-1)
"""Candidates for λ, as shares of the mean diagonal of J'J; the best on prompts not fitted to is taken."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Fit:
    """What fitting found.

    Attributes:
        plan: With the fitted weights; with the polynomial ones where fitting made nothing better.
        before: Mean distance in dB of the polynomial weights' samples to the reference, on held-out prompts; 0 dB is
            a root mean square of one, and lower is closer.
        after: That of the plan's.
        runs: How often the pipeline drew.
    """

    plan: Plan
    before: float
    after: float
    runs: int

    def __str__(self) -> str:
        gained = self.before - self.after
        return f"{self.plan}: {gained:.1f} dB closer to the long run on held-out prompts ({self.runs} runs)"


def fit(
    pipe: Any,
    prompts: Sequence[str],
    *,
    steps: int = 25,
    deep: str | None = "",
    guidance: str | None = "",
    order: int = 2,
    reference: int | None = None,
    held_out: float = 0.25,
    call: Mapping[str, Any] | None = None,
    seed: int = 0,
    batch: int = 8,
    progress: Progress = lambda what, done, total: None,
) -> Fit:
    """Fit a `FittedCache` to ``pipe`` with its solver, on a handful of prompts.

    Args:
        pipe: Without a plan; it is left as it was.
        prompts: The more, the surer; some 30 for 40 weights. The noise of prompt ``i`` is that of ``seed + i``.
        steps: Of the plan's runs.
        deep: Cells of the deep part, one character per step; ``""`` for every second one after three, ``None`` for
            none.
        guidance: Cells of the guidance difference, likewise.
        order: Computed values per prediction, and so weights.
        reference: Steps of the plain run that is the goal, by default four times the steps.
        held_out: Share of the prompts that only choose λ and judge.
        call: Further arguments of every call.
        seed: Of the first prompt.
        batch: Prompts drawn at once.
        progress: Told what is going on.

    Raises:
        AccelError: for too few prompts, cells without enough computed ones before them, or a pipeline with a plan.
    """
    check_plain(pipe)
    count = round(len(prompts) * held_out)
    if not 0 < count < len(prompts):
        raise AccelError(f"{len(prompts)} prompts are too few to fit to some and judge by others: give at least 4")
    usual = every(2, steps, 3)
    start = FittedCache(
        deep=None if deep is None else _linear("deep", deep or usual, order),
        guidance=None if guidance is None else _linear("guidance", guidance or usual, order),
    )
    if not any("0" in row.cells for _, row in _rows(start)):
        raise AccelError(
            "there is nothing to fit: no cell is predicted; ask for a larger interval or a shorter warm-up"
        )
    if start.steps != steps:
        raise AccelError(f"cells are for {start.steps} steps, the runs have {steps}: give one character for each step")
    bench = _Bench(pipe, prompts, start, reference or 4 * steps, dict(call or {}), seed, batch, progress)
    return bench.fit(range(len(prompts) - count), range(len(prompts) - count, len(prompts)))


def _linear(name: str, cells: str, order: int) -> Row:
    for step, cell in enumerate(cells):
        if cell == "0" and cells.count("1", 0, step) < order:
            raise AccelError(f"{name} predicts step {step + 1} from {order} values, but fewer are computed before it")
    return Row(cells, _POLYNOMIALS[order], _AXIS)


_TINY = 1e-12
_POLYNOMIALS = {1: "reuse", 2: "linear", 3: "quadratic"}
_AXIS: Axis = "logsnr"


class _Bench:
    """Draws with different weights, and solves for the best ones."""

    def __init__(
        self,
        pipe: Any,
        prompts: Sequence[str],
        start: FittedCache,
        reference: int,
        call: dict[str, Any],
        seed: int,
        batch: int,
        progress: Progress,
    ) -> None:
        self.pipe, self.prompts, self.start, self.reference = pipe, prompts, start, reference
        self.call, self.seed, self.batch = call, seed, batch
        self.progress = progress
        self.truths: dict[int, Tensor] = {}
        self.runs = 0

    def fit(self, fitted_to: Sequence[int], held_out: Sequence[int]) -> Fit:
        """Fit on some rows of the prompts and judge by the others."""
        run = self._run()
        start = replace(_weighted(self.start, run.along(_AXIS)), times=tuple(run.times))
        weights, directions = _flat(start), _directions(start)
        normal, right = self._normal_equations(start, directions, fitted_to)
        if not normal.any():
            raise AccelError("no weight makes a difference: a run's report says why nothing is predicted")
        candidates = [weights] + [weights + directions.T @ _solved(normal, right, ridge) for ridge in _RIDGES]
        errors = []
        for number, each in enumerate(candidates):
            self.progress("judging", number, len(candidates))
            errors.append(self._error(_with(start, each), held_out))
        best = min(range(len(candidates)), key=errors.__getitem__)
        technique = _with(start, candidates[best])
        mark = Fingerprint.of(Target.of(self.pipe), self.start.steps, {"gained_db": errors[0] - errors[best]})
        return Fit(Plan((technique,), fingerprint=mark), errors[0], errors[best], self.runs)

    def _run(self) -> Run:
        """The schedule of a run: asked of one, since only the pipeline knows it."""
        seen: list[Run] = []

        def listen(clock: Clock) -> Detach:
            return clock.subscribe(seen.append, lambda: None, unchanged)

        watch(Target.of(self.pipe), listen, self.prompts[:1], self.start.steps, self.seed, self.call)
        self.runs += 1
        (run,) = seen
        if run.steps != self.start.steps:
            raise AccelError(
                f"the loop took {run.steps} solver steps instead of {self.start.steps}: give as many cells"
            )
        return run

    def _normal_equations(self, start: FittedCache, directions: Tensor, rows: Sequence[int]) -> tuple[Tensor, Tensor]:
        """J'J and J'(x* - x(w0)), summed over the prompts."""
        count, weights, chunks = len(directions), _flat(start), list(self._chunks(rows))
        normal, right = torch.zeros(count, count, dtype=torch.float64), torch.zeros(count, dtype=torch.float64)
        for number, chunk in enumerate(chunks):
            base = self._sample(start, chunk)
            off = self._truth(chunk) - base
            scale = off.square().flatten(1).mean(1).sqrt().clamp_min(_TINY).view(-1, *[1] * (off.ndim - 1))
            columns = []
            for k, direction in enumerate(directions):
                self.progress("fitting", number * count + k, len(chunks) * count)
                moved = self._sample(_with(start, weights + _STEP * direction), chunk)
                columns.append(((moved - base) / (_STEP * scale)).flatten())
            jacobian = torch.stack(columns)
            normal += jacobian @ jacobian.T
            right += jacobian @ (off / scale).flatten()
        return normal, right

    def _error(self, technique: FittedCache, rows: Sequence[int]) -> float:
        """Mean distance to the reference in dB."""
        squares = [
            (self._sample(technique, chunk) - self._truth(chunk)).square().flatten(1).mean(1)
            for chunk in self._chunks(rows)
        ]
        return float(10 * torch.cat(squares).clamp_min(_TINY**2).log10().mean())

    def _chunks(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        yield from (rows[start : start + self.batch] for start in range(0, len(rows), self.batch))

    def _sample(self, technique: FittedCache, rows: Sequence[int]) -> Tensor:
        with warnings.catch_warnings(), accelerate(self.pipe, technique):
            warnings.simplefilter("ignore", AccelWarning)  # that a part saves nothing is told once, by what is fitted
            return self._draw(rows, self.start.steps)

    def _truth(self, rows: Sequence[int]) -> Tensor:
        missing = [row for row in rows if row not in self.truths]
        if missing:
            self.progress("drawing the reference", 0, 1)
            self.truths.update(zip(missing, self._draw(missing, self.reference), strict=True))
        return torch.stack([self.truths[row] for row in rows])

    def _draw(self, rows: Sequence[int], steps: int) -> Tensor:
        """The samples at the end of the loop, before any decoder, float64 on the CPU."""
        self.runs += 1
        noise = [torch.Generator().manual_seed(self.seed + row) for row in rows]
        usual = {"generator": noise, "output_type": "latent", "return_dict": False}
        sample = self.pipe([self.prompts[row] for row in rows], num_inference_steps=steps, **usual, **self.call)[0]
        if not isinstance(sample, Tensor) or not sample.isfinite().all():
            raise AccelError(f"{type(self.pipe).__name__} returns no finite latents to compare: try float32")
        return sample.detach().to("cpu", torch.float64)


# --- weights as one vector -------------------------------------------------------------------------------------------


def _rows(technique: FittedCache) -> list[tuple[str, Row]]:
    return [(name, row) for name in ("deep", "guidance") if (row := getattr(technique, name)) is not None]


def _weighted(technique: FittedCache, places: Sequence[float]) -> FittedCache:
    """The same predictions, their polynomials written out as weights."""
    written: dict[str, Any] = {}
    for name, row in _rows(technique):
        computed = [[at for at in range(step) if not row.predicts(at)] for step in range(len(row.cells))]
        weights = [row.weigh(step, computed[step], places) for step in range(len(row.cells)) if row.predicts(step)]
        written[name] = Row(row.cells, "fitted", weights=tuple(weights))
    return replace(technique, **written)


def _flat(technique: FittedCache) -> Tensor:
    each = [value for _, row in _rows(technique) for weights in row.weights for value in weights]
    return torch.tensor(each, dtype=torch.float64)


def _directions(technique: FittedCache) -> Tensor:
    """Of every cell the level and the slopes, one direction per row; they span all weights."""
    cells = [len(weights) for _, row in _rows(technique) for weights in row.weights]
    blocks = []
    for count in cells:
        block = -torch.eye(count, dtype=torch.float64)
        block[:, 0] = 1.0
        block[0] *= _LEVEL
        blocks.append(block)
    return torch.block_diag(*blocks)


def _solved(normal: Tensor, right: Tensor, ridge: float) -> Tensor:
    damping = ridge * normal.diagonal().mean() * torch.eye(len(normal), dtype=normal.dtype)
    return torch.linalg.solve(normal + damping, right)


def _with(technique: FittedCache, flat: Tensor) -> FittedCache:
    """``technique`` with these weights."""
    values = iter(flat.tolist())
    changed: dict[str, Any] = {
        name: replace(row, weights=tuple(tuple(round(next(values), 5) for _ in weights) for weights in row.weights))
        for name, row in _rows(technique)
    }
    return replace(technique, **changed)

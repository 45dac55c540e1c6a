"""Cells chosen for a quality of the final picture, from what predicting each of them does to it.

Error curves tell how far off a cell is; how much that matters to the picture differs from component to component and
from step to step. So the pipeline draws a few prompts plainly and once more for every gap (a row, a start, a length),
`accel.caches.schedule.choosing` picks the gaps, and the choice is drawn for real. What the first-order sum of the
changes got wrong is made up for by aiming higher or lower, until the real pictures are as close as was asked for.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from accel.caches.predict import ORDER, check_how
from accel.caches.schedule.choosing import Gap, cells, choose, decibels, error, gaps, gram
from accel.errors import AccelError, AccelWarning
from accel.handle import accelerate, check_plain
from accel.plan import Plan
from accel.technique import Technique
from accel.tensors import tensors
from accel.watching import Prompt

_NUMBERS = 1 << 16
"""Of each sample so many numbers, at random places, stand for all while gaps are weighed; real runs count them all."""

_NEAR = 0.5
"""A choice whose real pictures are at most so many dB better than was asked for is good enough."""

Build = Callable[[Mapping[str, str]], Technique]
"""Makes the technique from its cells, by row."""

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Choice:
    """What was chosen, and how it did.

    Attributes:
        cells: Row → one character per step, ``1`` computes and ``0`` predicts.
        psnr: Mean distance to the plain samples in dB, of real runs.
        expected: The same, by the sum of the changes of each gap.
        saved: Share of the rows' work that is left out.
        runs: How often the pipeline drew.
    """

    cells: dict[str, str]
    psnr: float
    expected: float
    saved: float
    runs: int


def choose_cells(
    pipe: Any,
    prompts: Sequence[Prompt],
    build: Build,
    rows: Mapping[str, float],
    *,
    target_db: float,
    steps: int = 25,
    how: str = "linear",
    lookahead: int = 2,
    tries: int = 8,
    call: Mapping[str, Any] | None = None,
    seed: int = 0,
    progress: Progress = lambda what, done, total: None,
) -> Choice:
    """Predict as much as pictures ``target_db`` close to the plain ones allow, on average over the prompts.

    It draws every prompt once plainly, once for each gap, which is about rows x steps x ``lookahead`` times, and once
    for each try.

    Args:
        pipe: Without a plan; it is left as it was.
        prompts: One call each; the noise of prompt ``i`` is that of ``seed + i``.
        build: Makes the technique from cells; it predicts with ``how``.
        rows: Name of each row, and the work that one of its cells saves, in any unit.
        target_db: PSNR to the plain run of as many steps. The peak is 1 for pictures and videos, whose values are
            between 0 and 1, and otherwise the range of the plain sample.
        steps: Handed to the pipeline as ``num_inference_steps``.
        how: The predictor; it says how many computed values a prediction needs.
        lookahead: The longest gap.
        tries: How many choices are drawn for real, at most.
        call: Further arguments of every call.
        seed: Of the first prompt.
        progress: Told what is going on.

    Raises:
        AccelError: when nothing can be predicted at that quality, the pipeline is not plain, or it cannot be followed.
    """
    if isinstance(prompts, str) or not prompts:
        raise AccelError("there is nothing to choose by: give a list of at least one prompt")
    check_how(how, without=("zero", "fitted"))
    if not 0 < target_db < 200:
        raise AccelError(f"target_db is a distance in dB, such as 40, not {target_db!r}")
    check_plain(pipe)
    easel = Easel(pipe, prompts, build, dict(call or {}), steps, seed)
    return _Search(easel, rows, how, lookahead, progress).reach(target_db, tries)


class Easel:
    """Draws the prompts of one search under any cells."""

    def __init__(self, pipe: Any, prompts: Sequence[Prompt], build: Build, call: dict[str, Any], steps: int, seed: int):
        self.pipe, self.prompts, self.build = pipe, prompts, build
        self.call, self.asked, self.seed = call, steps, seed
        self.runs = 0
        self.steps = 0
        """Solver steps of a run, known after the plain ones."""

    def plain(self) -> list[Tensor]:
        """The samples without a plan, one for each prompt, in float32 on the CPU."""
        with accelerate(self.pipe, Plan()) as handle:
            samples = self._draw()
            report = handle.report()
        if report.aborted or not report.steps_run == report.steps_planned > 0:
            raise AccelError("the pipeline's loop could not be followed: nothing was measured")
        self.steps = report.steps_planned
        return samples

    def under(self, chosen: Mapping[str, str]) -> list[Tensor]:
        """The samples with these cells."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AccelWarning)  # one gap may lie where a row is not called
            with accelerate(self.pipe, self.build(chosen)):
                return self._draw()

    def _draw(self) -> list[Tensor]:
        return [self._one(prompt, self.seed + index) for index, prompt in enumerate(self.prompts)]

    def _one(self, prompt: Prompt, seed: int) -> Tensor:
        self.runs += 1
        takes = inspect.signature(self.pipe.__call__).parameters
        usual = {"generator": torch.Generator().manual_seed(seed), "output_type": "pt", "return_dict": False}
        own = {"prompt": prompt} if isinstance(prompt, str) else prompt
        given = {key: value for key, value in usual.items() if key in takes} | {**self.call, **own}
        try:
            output = self.pipe(**given | {"num_inference_steps": self.asked})
        except AccelError:
            raise
        except (ValueError, TypeError) as error:
            raise AccelError(f"{type(self.pipe).__name__} cannot draw this: {error}") from error
        sample = next(tensors(output), None)
        if sample is None or not sample.isfinite().all():
            raise AccelError(f"{type(self.pipe).__name__} returns no finite tensor to compare: try float32")
        return sample.detach().to("cpu", torch.float32)


class _Search:
    """Weighs the gaps, and chooses until real pictures are close enough."""

    def __init__(self, easel: Easel, rows: Mapping[str, float], how: str, lookahead: int, progress: Progress):
        self.easel, self.rows, self.progress = easel, rows, progress
        self.plain = easel.plain()
        self.peaks = [_peak(sample) for sample in self.plain]
        before = max(ORDER[how], 1)
        self.gaps = [gap for row, work in rows.items() for gap in gaps(row, easel.steps, work, before, lookahead)]
        if not self.gaps:
            raise AccelError(f"{easel.steps} steps are too few to predict one of them with {how}: use more")
        self.products = self._weigh()

    def _weigh(self) -> Tensor:
        """The Gram matrix of the gaps' changes, of every prompt."""
        places = [_places(sample.numel()) for sample in self.plain]
        changes: list[list[Tensor]] = [[] for _ in self.plain]
        for number, gap in enumerate(self.gaps):
            self.progress("weighing gaps", number, len(self.gaps))
            for own, change, at in zip(changes, self._changes([gap]), places, strict=True):
                own.append(change.flatten()[at])
        found = torch.stack([gram(torch.stack(own)[None])[0] for own in changes])
        real = found.diagonal(dim1=1, dim2=2).any(0)  # what changes no bit was not predicted, and saves nothing
        self.gaps = [gap for gap, changed in zip(self.gaps, real.tolist(), strict=True) if changed]
        return found[:, real][:, :, real]

    def _changes(self, chosen: Sequence[Gap]) -> list[Tensor]:
        """What predicting these gaps does to each prompt's sample, in units of its peak."""
        samples = self.easel.under(cells(chosen, list(self.rows), self.easel.steps))
        return [(new - old) / peak for new, old, peak in zip(samples, self.plain, self.peaks, strict=True)]

    def reach(self, target: float, tries: int) -> Choice:
        """The choice that saves the most, of those that really reach ``target``."""
        aim, best, seen = target, None, set[tuple[int, ...]]()
        for number in range(tries):
            self.progress("trying", number, tries)
            chosen = choose(self.gaps, self.products, partial(_reaches, aim))
            if not chosen or tuple(chosen) in seen:
                break
            seen.add(tuple(chosen))
            found = self._tried(chosen)
            if found.psnr >= target and (best is None or found.saved > best.saved):
                best = found
            if target <= found.psnr <= target + _NEAR:
                break
            aim = target + found.expected - found.psnr
        if best is None:
            raise AccelError(f"nothing can be predicted {target:g} dB close to the plain pictures: ask for less")
        return best

    def _tried(self, chosen: Sequence[int]) -> Choice:
        picked = [self.gaps[i] for i in chosen]
        real = torch.stack([change.double().square().mean() for change in self._changes(picked)])
        saved = sum(gap.saving for gap in picked) / (self.easel.steps * sum(self.rows.values()))
        by_row = cells(picked, list(self.rows), self.easel.steps)
        expected = decibels(error(self.products, chosen))
        return Choice(by_row, decibels(real), expected, saved, self.easel.runs)


def _reaches(target: float, errors: Tensor) -> bool:
    return decibels(errors) >= target


def _peak(sample: Tensor) -> float:
    low, high = float(sample.min()), float(sample.max())
    return 1.0 if 0 <= low and high <= 1 else high - low


def _places(count: int) -> Tensor:
    """Which numbers of a sample are looked at while gaps are weighed."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(0))[:_NUMBERS]

"""Measure how quality grows with steps: every prompt, several starting noises, every step count.

The whole tensor is kept, not a label: what counts as good enough is decided later, and the spread over the noises says
how much of the need is the prompt's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.measure.arms import Arm, check, draw
from accel.measure.identity import identity
from accel.measure.journal import Item, Journal
from accel.measure.judging import Judge
from accel.measure.quality import CAP, psnr
from accel.measure.solvers import OWN, SOLVERS
from accel.schedulers.difficulty.curves import FORMAT, Curves
from accel.schedulers.difficulty.features import features
from accel.target import Target

JOURNAL = "collected.jsonl"
COUNTS = (4, 6, 8, 10, 12, 16, 20)

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Study:
    """What is measured.

    Attributes:
        prompts: What is drawn.
        groups: What each prompt is made of, for the split; by default each prompt is its own group.
        counts: Step counts.
        seeds: Starting noises of each prompt. Noise ``s`` of prompt ``p`` is that of ``seed + p · seeds + s``, so that
            no two prompts, and so no two parts of a split, share any.
        reference: Steps of the long run that quality is held against.
        solver: A name from `accel.measure.arms`; the need for steps is the solver's as much as the prompt's.
        seed: Of the first picture.
        batch: Pictures drawn at once.
        call: Further arguments of the pipeline's call.
    """

    prompts: Sequence[str]
    groups: Sequence[str] = ()
    counts: Sequence[int] = COUNTS
    seeds: int = 8
    reference: int = 64
    solver: str = OWN
    seed: int = 0
    batch: int = 16
    call: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.prompts) < 2 or len(set(self.prompts)) < len(self.prompts):
            raise AccelError("difficulty is a comparison: give at least two prompts, each of them once")
        if self.groups and len(self.groups) != len(self.prompts):
            raise AccelError(f"{len(self.groups)} groups do not belong to {len(self.prompts)} prompts")
        if len(self.counts) < 2 or list(self.counts) != sorted(set(self.counts)) or self.counts[0] < 1:
            raise AccelError(f"step counts must rise, and be at least two: not {', '.join(map(str, self.counts))}")
        if self.reference < 2 * self.counts[-1]:
            raise AccelError(
                f"a long run of {self.reference} steps is no measure for {self.counts[-1]}: take at least twice as many"
            )
        if self.solver != OWN and self.solver not in SOLVERS:
            raise AccelError(f"no solver {self.solver!r}: there are {', '.join((OWN, *SOLVERS))}")
        if self.seeds < 2:
            raise AccelError("one starting noise does not tell a prompt's need from chance: take at least two")

    def head(self, pipe: Any, judge: Judge | None) -> Item:
        """The first line of the journal: whatever would make results incomparable."""
        plain = {key: value for key, value in asdict(self).items() if key != "batch"}
        return {"difficulty": FORMAT, **identity(pipe), "judge": type(judge).__name__, **plain}


def collect(
    pipe: Any, study: Study, folder: Path, judge: Judge | None = None, progress: Progress | None = None
) -> Curves:
    """Draw what ``folder`` lacks, and write the curves there.

    Args:
        pipe: A plain pipeline; it is left as it was.
        study: What to measure.
        folder: Broken off, the same call goes on where it was.
        judge: Says whether pictures show what the study's prompts state, if anybody can.
        progress: Told how much is done.

    Raises:
        AccelError: for a pipeline with a plan, a folder with another measurement, or pictures that are not finite.
    """
    with Arm(study.reference, study.solver).ready(pipe):
        check(pipe, study.prompts[0], study.call)
        head = study.head(pipe, judge)
        journal = Journal(folder / JOURNAL, head)
        done = {sample for item in journal.of("pictures") for sample in item["samples"]}
        total = len(study.prompts) * study.seeds
        missing = [sample for sample in range(total) if sample not in done]
        for samples in _chunks(missing, study.batch):
            if progress:
                progress("collecting", total - len(missing) + missing.index(samples[0]), total)
            journal.add({"kind": "pictures", "samples": samples, **_measured(pipe, study, samples, judge)})
        mark = Fingerprint.of(Target.of(pipe), study.reference, {})
        curves = _curves(study, journal.of("pictures"), features(pipe, study.prompts), head, mark)
    curves.save(folder)
    return curves


def _chunks(samples: Sequence[int], size: int) -> Iterator[list[int]]:
    yield from (list(samples[start : start + size]) for start in range(0, len(samples), size))


def _measured(pipe: Any, study: Study, samples: Sequence[int], judge: Judge | None) -> Item:
    """Distance and verdict of these samples at every count; all of one count are drawn together."""
    rows = [sample // study.seeds for sample in samples]

    def drawn(steps: int) -> torch.Tensor:
        prompts, seeds = [study.prompts[row] for row in rows], [study.seed + sample for sample in samples]
        return draw(pipe, prompts, seeds, steps, study.call)

    def right(pictures: torch.Tensor) -> list[bool] | None:
        return None if judge is None else [all(facts.values()) for facts in judge.facts(pictures, rows)]

    truth = drawn(study.reference)
    found: Item = {"psnr": [], "right": [], "long_right": right(truth)}
    for steps in study.counts:
        pictures = drawn(steps)
        found["psnr"].append([round(min(value, CAP), 3) for value in psnr(pictures, truth).tolist()])
        found["right"].append(right(pictures))
    return found


def _curves(study: Study, items: Sequence[Item], seen: torch.Tensor, head: Item, mark: Fingerprint) -> Curves:
    """The journal's lines as arrays, in the order of the prompts."""
    order = np.argsort([sample for item in items for sample in item["samples"]])
    shape = (len(study.prompts), study.seeds)
    judged = items[0]["long_right"] is not None

    def sorted_(name: str) -> np.ndarray[Any, Any]:
        values = np.concatenate([np.asarray(item[name]).T for item in items])[order]
        return values.reshape(*shape, *values.shape[1:])

    empty = np.zeros((0,), dtype=bool)
    return Curves(
        counts=tuple(study.counts),
        prompts=tuple(study.prompts),
        groups=tuple(study.groups or study.prompts),
        psnr=sorted_("psnr").astype(np.float32),
        right=sorted_("right").astype(bool) if judged else empty,
        long_right=sorted_("long_right").astype(bool) if judged else empty,
        features=seen.numpy(),
        about={**head, "fingerprint": mark.to_dict()},
    )

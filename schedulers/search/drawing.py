"""Draws candidates and has them judged; counts what that costs, and looks at previews where asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from accel.errors import AccelError
from accel.measure.arms import draw
from accel.schedulers.search.noise import together
from accel.schedulers.search.verifiers import Verifier, scored
from accel.schedulers.search.walk import Lane, Route, Walk
from accel.target import Target


@dataclass(frozen=True)
class Start:
    """Where a candidate begins: the noise of ``seed``, or ``noise (1, …)`` where one is given."""

    seed: int
    noise: Tensor | None = None


@dataclass(frozen=True)
class Prune:
    """Look at previews early, and go on with the best only.

    Attributes:
        after: Share of the steps after which to look.
        keep: Share of the candidates that go on, at least one.
    """

    after: float = 0.3
    keep: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.after < 1 or not 0 < self.keep < 1:
            raise AccelError(f"pruning looks after a share of the steps and keeps a share, each within 0 and 1: {self}")


@dataclass
class Candidate:
    """A starting noise that was tried.

    Attributes:
        start: Where it begins.
        score: The verifier's, of the picture or, where ``dropped``, of its preview.
        picture: ``(3, height, width)`` in 0 … 1.
        noise: ``(1, …)``, what the pipeline takes as ``latents`` to begin there; ``None`` where it came by other ways.
        dropped: Was it given up after its preview?
    """

    start: Start
    score: float
    picture: Tensor = field(repr=False)
    noise: Tensor | None = field(default=None, repr=False)
    dropped: bool = False


@dataclass
class Glimpse:
    """Half-finished candidates: their previews' scores, and what is needed to go on."""

    starts: list[Start]
    scores: list[float]
    pictures: Tensor
    samples: Tensor
    lanes: list[Lane]
    times: list[float]


class Painter:
    """Draws one prompt from many noises.

    Attributes:
        evaluations: Denoiser evaluations of one picture so far, each half of guidance counted.
        per_step: Evaluations that one step of one picture takes.
    """

    def __init__(
        self, pipe: Any, prompt: str, steps: int, verifier: Verifier, call: Mapping[str, Any], batch: int
    ) -> None:
        self.pipe, self.prompt, self.steps, self.verifier = pipe, prompt, steps, verifier
        self.call, self.batch = dict(call), batch
        self.target = Target.of(pipe)
        self.evaluations, self.per_step = 0, 1.0

    def finished(self, starts: Sequence[Start], prune: Prune | None = None) -> list[Candidate]:
        """Candidates drawn to the end, or with pruning those of the best previews."""
        if prune is None or len(starts) < 2:
            return [each for part in self._chunks(starts) for each in self._judged(part, Route())]
        stop = min(max(round(prune.after * self.steps), 1), self.steps - 1)
        seen = self.glimpsed(starts, stop)
        kept = best(seen.scores, max(round(prune.keep * len(starts)), 1))
        done = dict(zip(kept, self.resumed(seen, kept, stop), strict=True))
        return [
            done.get(row) or Candidate(start, seen.scores[row], seen.pictures[row], dropped=True)
            for row, start in enumerate(seen.starts)
        ]

    def glimpsed(self, starts: Sequence[Start], stop: int, entries: Glimpse | None = None, begin: int = 0) -> Glimpse:
        """Previews after ``stop`` steps. With ``entries`` their samples enter at step ``begin``."""
        parts = []
        for rows in self._chunks(range(len(starts))):
            given = [starts[row] for row in rows]
            route = Route(stop) if entries is None else _route(entries, rows, begin, stop, enter=True)
            pictures, walk = self._walk(given, route)
            if len(walk.times) <= stop:
                raise AccelError(
                    f"the loop takes {len(walk.times)} solver steps, so nothing is left after a preview at step "
                    f"{stop}: give more steps, or leave strength out"
                )
            found = scored(self.verifier, pictures, self.prompt)
            assert walk.sample is not None
            parts.append(Glimpse(given, found, pictures, walk.sample, walk.lanes, walk.times))
        return _merged(parts)

    def resumed(self, seen: Glimpse, rows: Sequence[int], begin: int, enter: bool = False) -> list[Candidate]:
        """Some of what was glimpsed, drawn to the end: as it would have gone on, or ``enter``ing with its samples."""
        return [
            each
            for part in self._chunks(rows)
            for each in self._judged([seen.starts[row] for row in part], _route(seen, part, begin, None, enter))
        ]

    def picture(self, start: Start, steps: int) -> Candidate:
        """One candidate with another number of steps, which is not part of this painter's work."""
        other = Painter(self.pipe, self.prompt, steps, self.verifier, self.call, batch=1)
        return other.finished([start])[0]

    def _judged(self, starts: Sequence[Start], route: Route) -> list[Candidate]:
        pictures, walk = self._walk(starts, route)
        scores = scored(self.verifier, pictures, self.prompt)
        noises = _noises(walk, self.pipe) if route.enter is None else [None] * len(starts)
        return [Candidate(*each) for each in zip(starts, scores, pictures, noises, strict=True)]

    def _walk(self, starts: Sequence[Start], route: Route) -> tuple[Tensor, Walk]:
        call, noises = dict(self.call), [start.noise for start in starts if start.noise is not None]
        if noises:
            call["latents"] = together(noises)
        with Walk(self.target, len(starts), route) as walk:
            seeds = [start.seed for start in starts]
            pictures = draw(self.pipe, [self.prompt] * len(starts), seeds, self.steps, call)
        self.evaluations += walk.evaluations
        each = walk.evaluations / (len(starts) * walk.computed)
        self.per_step = each * len(walk.times) / self.steps  # some solvers take two steps for one that is asked for
        return pictures, walk

    def _chunks(self, values: Sequence[Any]) -> list[Sequence[Any]]:
        return [values[at : at + self.batch] for at in range(0, len(values), self.batch)]


def best(scores: Sequence[float], count: int) -> list[int]:
    """The rows of the ``count`` highest scores, in the order of the rows; of equal ones the first."""
    return sorted(sorted(range(len(scores)), key=lambda row: -scores[row])[:count])


def _route(seen: Glimpse, rows: Sequence[int], begin: int, stop: int | None, enter: bool) -> Route:
    return Route(stop, [seen.lanes[row] for row in rows], begin, seen.samples[list(rows)] if enter else None)


def _noises(walk: Walk, pipe: Any) -> list[Tensor | None]:
    """What the pipeline drew for each picture: solvers scale it to their first noise level."""
    assert walk.start is not None
    return list((walk.start / float(getattr(pipe.scheduler, "init_noise_sigma", 1.0))).split(1))


def _merged(parts: Sequence[Glimpse]) -> Glimpse:
    return Glimpse(
        [start for part in parts for start in part.starts],
        [score for part in parts for score in part.scores],
        torch.cat([part.pictures for part in parts]),
        torch.cat([part.samples for part in parts]),
        [lane for part in parts for lane in part.lanes],
        parts[0].times,
    )

"""`search`: the best picture of a prompt among several starting noises."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from accel.errors import AccelError
from accel.handle import check_plain
from accel.schedulers.levels import unreadable
from accel.schedulers.search.drawing import Candidate, Painter, Prune, Start
from accel.schedulers.search.methods import METHODS, paths_problem, winner
from accel.schedulers.search.verifiers import Verifier

_OURS = ("prompt", "num_inference_steps", "generator", "latents", "output_type", "return_dict", "num_images_per_prompt")
_MOST_STEPS = 1000


@dataclass(frozen=True)
class MoreSteps:
    """The honest alternative: one picture, from the first noise, with the same work spent on steps."""

    steps: int
    score: float
    picture: Tensor = field(repr=False)


@dataclass(frozen=True)
class Found:
    """What a search found.

    Attributes:
        picture: The best, ``(3, height, width)`` in 0 … 1.
        score: The verifier's of it.
        seed: ``pipe(generator=torch.Generator().manual_seed(seed))`` draws it again; ``None`` where no seed alone does.
        noise: ``pipe(latents=noise)`` draws it again, ``(1, …)``; ``None`` for a path, which took noise on its way.
        scores: Of all candidates, in the order in which they were tried; of those given up early the preview's.
        dropped: Which of them were given up early.
        evaluations: Denoiser evaluations of one picture that it took; guidance counts twice.
        progress: After each round the evaluations so far and the best score.
        more_steps: The alternative, where asked for.
    """

    picture: Tensor = field(repr=False)
    score: float
    seed: int | None
    noise: Tensor | None = field(repr=False)
    scores: tuple[float, ...]
    dropped: tuple[bool, ...]
    evaluations: int
    progress: tuple[tuple[int, float], ...]
    more_steps: MoreSteps | None = None

    def __str__(self) -> str:
        lines = [
            f"best of {len(self.scores)}: {self.score:.4g}, against {self.scores[0]:.4g} of the first "
            f"({self.evaluations} denoiser evaluations, {sum(self.dropped)} candidates given up early)"
        ]
        if self.more_steps is not None:
            lines.append(f"the same work as {self.more_steps.steps} steps of one picture: {self.more_steps.score:.4g}")
        return "\n".join(lines)


def search(
    pipe: Any,
    prompt: str,
    verifier: Verifier,
    *,
    candidates: int = 8,
    method: str = "random",
    steps: int = 25,
    seed: int = 0,
    prune: Prune | None = None,
    batch: int = 8,
    compare: bool = False,
    call: Mapping[str, Any] | None = None,
) -> Found:
    """Draw ``prompt`` from several noises and keep the picture that ``verifier`` likes best.

    The verifier decides what better means, and what it cannot see is not improved: judge the result by something else.

    Args:
        pipe: Draws pictures from prompts; it is left as it was. A plan may be attached, but not with previews.
        prompt: What to draw.
        verifier: ``verifier(pictures, prompt)`` to one score for each picture, see `accel.schedulers.search.verifiers`.
        candidates: How many noises, or for paths how many at a time.
        method: ``"random"``, ``"zero_order"`` or ``"paths"``, see `accel.schedulers.search.methods`.
        steps: Of every picture.
        seed: Of the first noise; the same seed finds the same picture.
        prune: Look at previews and go on with the best only; ``None`` draws every candidate to its end.
        batch: Pictures drawn at once.
        compare: Also draw one picture with the same work in steps; that is not counted as work of the search.
        call: Further arguments of the pipeline's call.

    Raises:
        AccelError: for anything that this pipeline, solver or verifier does not fit.
    """
    _check_task(pipe, prompt, verifier, method, call or {})
    _check_numbers(candidates=(candidates, 1), steps=(steps, 2), batch=(batch, 1))
    painter = Painter(pipe, prompt, steps, verifier, call or {}, batch)
    if method == "paths" or prune is not None:
        check_plain(pipe)
        if problem := paths_problem(painter) if method == "paths" else unreadable(pipe.scheduler):
            raise AccelError(f"previews are not possible here: {problem}")
    found: list[Candidate] = []
    progress: list[tuple[int, float]] = []
    for tried in METHODS[method](painter, candidates, seed, prune):
        found += tried
        progress.append((painter.evaluations, winner(found).score))
    alternative = _more_steps(painter, seed) if compare else None
    return _found(winner(found), found, progress, alternative)


def _found(
    top: Candidate, found: Sequence[Candidate], progress: Sequence[tuple[int, float]], alternative: MoreSteps | None
) -> Found:
    by_seed = top.noise is not None and top.start.noise is None
    return Found(
        picture=top.picture,
        score=top.score,
        seed=top.start.seed if by_seed else None,
        noise=top.noise,
        scores=tuple(each.score for each in found),
        dropped=tuple(each.dropped for each in found),
        evaluations=progress[-1][0],
        progress=tuple(progress),
        more_steps=alternative,
    )


def _more_steps(painter: Painter, seed: int) -> MoreSteps:
    steps = min(max(round(painter.evaluations / painter.per_step), 1), _MOST_STEPS)
    alternative = painter.picture(Start(seed), steps)
    return MoreSteps(steps, alternative.score, alternative.picture)


def _check_task(pipe: Any, prompt: str, verifier: Verifier, method: str, call: Mapping[str, Any]) -> None:
    if not isinstance(prompt, str) or not prompt.strip():
        raise AccelError("a search is for one prompt: give a text that is not empty")
    if not callable(verifier):
        raise AccelError(f"a verifier takes pictures and the prompt: {type(verifier).__name__} cannot be called")
    if method not in METHODS:
        raise AccelError(f"no search is called {method!r}: there are {', '.join(METHODS)}")
    if taken := [name for name in _OURS if name in call]:
        raise AccelError(f"the search itself says what {taken[0]} is: leave it out of call")
    if method == "zero_order" and "latents" not in inspect.signature(pipe.__call__).parameters:
        raise AccelError(f"{type(pipe).__name__} takes no latents, so noises near a good one cannot be: use random")


def _check_numbers(**numbers: tuple[int, int]) -> None:
    """Each with the least that makes sense."""
    for name, (value, least) in numbers.items():
        if not isinstance(value, int) or value < least:
            raise AccelError(f"{name} must be a whole number from {least} up, not {value!r}")

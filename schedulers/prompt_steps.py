"""As many steps as the prompt needs, decided before the first one.

A trained predictor (`accel.schedulers.difficulty`) reads the text embedding that the pipeline computes anyway. Pictures
of one batch may get different numbers of steps: each still is what it would be alone.
"""

from __future__ import annotations

import warnings
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from accel.clock import Clock
from accel.errors import AccelError, AccelWarning
from accel.report import Recorder
from accel.schedulers.difficulty.features import pooled
from accel.schedulers.difficulty.model import DifficultyModel
from accel.schedulers.schedule import StepPlan, out_of_reach
from accel.schedulers.upfront import UpFront
from accel.tap import listen
from accel.target import Target
from accel.technique import Claim, Detach, Technique, positive


@dataclass(frozen=True)
class PromptSteps(Technique):
    """Give each prompt the fewest steps with which ``target`` of its pictures are expected to be good enough.

    Where a pipeline pads its prompts to the longest of the batch, a prompt's steps may depend on its neighbours.
    """

    name: ClassVar[str] = "prompt_steps"
    summary: ClassVar[str] = "the number of steps chosen for each prompt by a predictor of its difficulty"
    source: ClassVar[str] = "arXiv:2408.02054"

    model: str = ""
    """Folder of the trained predictor, see ``accel difficulty``."""
    target: float = 0.95
    """Share of pictures that should be good enough; what that means was settled when the predictor was trained."""
    max_steps: int | None = None
    """Never more than this; a call that asks for fewer is never given more."""

    def __post_init__(self) -> None:
        if not (isinstance(self.target, float) and 0 < self.target < 1):
            raise AccelError(f"prompt_steps: target is a share between 0 and 1, not {self.target!r}")
        if self.max_steps is not None:
            positive(self, max_steps=self.max_steps)
        if not isinstance(self.model, str):
            raise AccelError(f"prompt_steps: model is the folder of a predictor, not {self.model!r}")

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"schedule"})

    def problems(self, target: Target) -> list[str]:
        if not Path(self.model, "difficulty.json").is_file():
            where = repr(self.model) if self.model else "model, which was not given"
            return [f"prompt_steps: there is no predictor in {where}: train one with `accel difficulty`"]
        if reason := out_of_reach(target.pipe):
            return [f"prompt_steps: {reason}"]
        if not hasattr(target.pipe, "encode_prompt"):
            return [f"prompt_steps: {type(target.pipe).__name__} has no encode_prompt to read the prompt from"]
        refuse, warn = DifficultyModel.load(Path(self.model)).fingerprint_problems(target)
        for text in warn:
            warnings.warn(f"prompt_steps: {text}", AccelWarning, stacklevel=2)
        return [f"prompt_steps: {text}" for text in refuse]

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        return _Choice(self, clock, recorder).attach()


class _Choice:
    """Reads prompts as the pipeline encodes them, and chooses when it asks for steps."""

    def __init__(self, settings: PromptSteps, clock: Clock, recorder: Recorder) -> None:
        self.settings, self.clock = settings, clock
        self.model = DifficultyModel.load(Path(settings.model))
        self.up_front = UpFront(settings.name, self._choose, clock, recorder)
        self.features: torch.Tensor | None = None

    def attach(self) -> Detach:
        """Listen to the pipeline; returns what undoes it."""
        with ExitStack() as undo:
            pipe = self.clock.target.pipe
            undo.callback(listen(pipe, "encode_prompt", self._read))
            if hasattr(pipe, "check_inputs"):
                undo.callback(listen(pipe, "check_inputs", self._forget))
            undo.callback(self.up_front.attach())
            return undo.pop_all().close

    def _forget(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """A call begins: what an earlier one encoded, and then broke off, is none of its business."""
        if self.clock.ours():
            self.features = None

    def _read(self, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        embeds = result[0] if isinstance(result, (tuple, list)) else result
        first = self.features is None and self.clock.ours()  # some encode the negative prompt after it
        if first and isinstance(embeds, torch.Tensor) and embeds.ndim == 3:
            self.features = pooled(embeds)

    def _choose(self, asked: int) -> list[StepPlan]:
        features, self.features = self.features, None
        most = min(asked, self.settings.max_steps or asked)
        if features is None:
            self.up_front.decline("the pipeline encoded no prompt, so all pictures take the most steps")
            return [StepPlan(most)]
        guidance = getattr(self.clock.target.pipe, "guidance_scale", None)
        for text in self.model.call_problems({"guidance_scale": guidance}):
            self.up_front.decline(text)
        return [StepPlan(min(most, steps)) for steps in self.model.steps(features, self.settings.target)]

"""One denoiser for high noise, another for low noise: routing by noise level, not by step number.

Which way round is right depends on the models. T-Stitch (arXiv:2402.14167) lets a small model draw the outlines and a
large one the details; Hybrid SD (arXiv:2408.06646) the reverse, so that the small one can run elsewhere; eDiff-I
(arXiv:2211.01324) uses experts of one size. All of them are a list of models and the timesteps at which they change.
"""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import diffusers
from diffusers import DiffusionPipeline
from torch import nn

from accel.calls import Call, Proceed
from accel.clock import Clock
from accel.errors import AccelError
from accel.report import Recorder
from accel.runs import Run
from accel.target import Denoiser, Target
from accel.technique import Claim, Detach, Technique
from accel.tensors import Tree

OWN = ""
"""Stands for the pipeline's own denoiser."""

_SHARED = (
    "in_channels",
    "out_channels",
    "cross_attention_dim",
    "joint_attention_dim",
    "caption_channels",
    "pooled_projection_dim",
    "addition_embed_type",
    "encoder_hid_dim",
)
"""What models must have in common to take turns on one latent and one prompt."""


@dataclass(frozen=True)
class Stages(Technique):
    """Let ``models`` take turns: the first down to the first of the ``switches``, and so on."""

    name: ClassVar[str] = "stages"
    summary: ClassVar[str] = "several denoisers taking turns by noise level, a small one where it suffices"
    source: ClassVar[str] = "arXiv:2402.14167, arXiv:2408.06646, arXiv:2211.01324"

    models: tuple[Any, ...] = ()
    """From high noise to low: folders or hub ids of pipelines, denoisers themselves, ``""`` for the pipeline's own."""
    switches: tuple[float, ...] = ()
    """Training timesteps below which the next model takes over, falling."""
    guidance: tuple[float, ...] = ()
    """A guidance scale for each model, above 1; empty for what the call says."""

    def __post_init__(self) -> None:
        if len(self.switches) != max(0, len(self.models) - 1):
            raise AccelError(
                f"stages: {len(self.models)} models change at {max(0, len(self.models) - 1)} switches, not at "
                f"{len(self.switches)}"
            )
        if any(later >= earlier for earlier, later in zip(self.switches, self.switches[1:], strict=False)):
            raise AccelError(f"stages: switches fall from high noise to low, unlike {self.switches}")
        if any(not isinstance(model, (str, nn.Module)) or str(model).startswith("<") for model in self.models):
            raise AccelError(
                'stages: a model is a folder, a hub id, "" or a denoiser; save one that was only in memory'
            )
        if self.guidance and (len(self.guidance) != len(self.models) or min(self.guidance) <= 1):
            raise AccelError("stages: guidance is one scale above 1 for each model: switching it off changes the batch")

    @property
    def claims(self) -> frozenset[Claim]:
        return frozenset({"models"})

    def settings(self) -> dict[str, Any]:
        """Denoisers that were given as objects can be named, but not read back."""
        shown = [f"<{type(m).__name__}>" if isinstance(m, nn.Module) else m for m in self.models]
        return {**super().settings(), **({"models": shown} if shown else {})}

    def problems(self, target: Target) -> list[str]:
        if not self.models:
            return ["stages: name the models that take turns"]
        if len(target.denoisers) > 1:
            return [
                "stages: the pipeline already has several denoisers: " + ", ".join(d.name for d in target.denoisers)
            ]
        problems = [f"stages: {text}" for model in self.models if model != OWN for text in _unlike(target, model)]
        call = inspect.unwrap(type(target.pipe).__call__)
        if self.guidance and "guidance_scale" not in call.__code__.co_names:
            problems.append(f"stages: {type(target.pipe).__name__} does not look at its guidance scale in every step")
        return problems

    def attach(self, target: Target, clock: Clock, recorder: Recorder) -> Detach:
        networks = [None if model == OWN else _loaded(target, model) for model in self.models]
        return _Route(self, networks, clock, recorder).attach()


class _Route:
    """Sends each denoiser call to the model of its noise level."""

    def __init__(self, settings: Stages, networks: list[nn.Module | None], clock: Clock, recorder: Recorder) -> None:
        self.settings, self.networks, self.clock, self.recorder = settings, networks, clock, recorder
        self._asked: float | None = None  # the call's own guidance scale, while another one is in its place

    def attach(self) -> Detach:
        """Stand around the denoiser; returns what undoes it."""
        with ExitStack() as undo:
            undo.callback(self._end)
            undo.callback(self.clock.subscribe(self._begin, self._end, self._around))
            self.recorder.matched(self.settings.name, len(self.networks))
            return undo.pop_all().close

    def _begin(self, run: Run) -> None:
        if self.settings.guidance:
            self._asked = self.clock.target.pipe._guidance_scale

    def _end(self) -> None:
        if self._asked is not None:
            self.clock.target.pipe._guidance_scale, self._asked = self._asked, None

    def _around(self, call: Call, proceed: Proceed, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tree:
        stage = sum(self.clock.time < switch for switch in self.settings.switches)
        network = self.networks[stage]
        if self._asked is not None and self._asked > 1:
            self.clock.target.pipe._guidance_scale = self.settings.guidance[stage]
        self.recorder.cell(self.settings.name, predicted=False, lighter=network is not None)
        if network is None:
            return proceed(*args, **kwargs)
        self.recorder.computed(call.batch)
        return network.to(call.sample[0][2])(*args, **kwargs)  # offloading moves only the pipeline's own


def _unlike(target: Target, model: str | nn.Module) -> list[str]:
    """Why ``model`` cannot stand in for the pipeline's denoiser."""
    own = target.denoisers[0]
    try:
        other, prediction = _configs(own, model)
    except (OSError, ValueError, AccelError) as error:
        return [f"{model} cannot be read: {error}"]
    config: Any = own.module.config
    here = dict(config)
    problems = [
        f"{key} is {other[key]} in {_title(model)}, {here[key]} in {own.name}: they share no latents, or no prompts"
        for key in _SHARED
        if key in other and key in here and other[key] != here[key]
    ]
    wanted = target.scheduler.config.get("prediction_type")
    if prediction and wanted and prediction != wanted:
        problems.append(f"{_title(model)} predicts {prediction}, {own.name} {wanted}")
    return problems


def _configs(own: Denoiser, model: str | nn.Module) -> tuple[dict[str, Any], str | None]:
    """The configuration of a model, and what it predicts where a scheduler beside it says so."""
    if isinstance(model, nn.Module):
        return dict(getattr(model, "config", {})), None
    kind = _class(own, model)
    config = dict(kind.load_config(model, subfolder=own.name))
    entry = DiffusionPipeline.load_config(model).get("scheduler")
    solver = getattr(diffusers, str(entry[1]), None) if entry else None
    return config, solver.load_config(model, subfolder="scheduler").get("prediction_type") if solver else None


def _class(own: Denoiser, model: str) -> Any:
    if Path(model).expanduser().exists() and not Path(model, "model_index.json").exists():
        raise AccelError("it is not a pipeline in diffusers format")
    entry = DiffusionPipeline.load_config(model).get(own.name)
    if not entry or not hasattr(diffusers, str(entry[1])):
        raise AccelError(f"it has no {own.name}")
    return getattr(diffusers, entry[1])


def _loaded(target: Target, model: str | nn.Module) -> nn.Module:
    own = target.denoisers[0]
    weights = next(own.module.parameters())
    if isinstance(model, nn.Module):
        return model
    network = _class(own, model).from_pretrained(model, subfolder=own.name, torch_dtype=weights.dtype)
    return network.to(weights.device).eval().requires_grad_(False)


def _title(model: str | nn.Module) -> str:
    return type(model).__name__ if isinstance(model, nn.Module) else model

"""The predictor: how many steps a prompt needs so that a stated share of its pictures is good enough.

A linear model expects the logarithm of the steps that prompt x needs, g(x). By how much the expectation is off was seen
on prompts it was not fitted to: a picture that is good from N* steps on, but not yet with the count N⁻ before, has the
score r = log N⁻ - g(x), and N steps are enough exactly where log N > g(x) + r. So

    P(good | x, N) = share of scores below log N - g(x),       steps(x, target) = least N with log N > g(x) + q

is monotone in N by construction. With q the quantile of the scores at ``target · (1 + 1/K)`` for K calibration prompts
the target is met, on average over new prompts and noises, whatever the model is worth (split conformal prediction; for
prompts with several pictures each, Lee, Barber and Willett, arXiv:2306.06342).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor

from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.measure.identity import identity
from accel.schedulers.difficulty.curves import Goal, log_counts, read
from accel.schedulers.difficulty.ridge import Array, Index, Linear
from accel.target import Target

FORMAT = 1
TENSORS, ABOUT = "difficulty.safetensors", "difficulty.json"
_ROUNDING = 1e-9


@dataclass(frozen=True)
class DifficultyModel:
    """A trained predictor.

    Attributes:
        linear: g(x), the expected logarithm of the steps needed.
        scores: ``(K, S)``, r of each picture of the calibration prompts; ``-inf`` where the fewest steps are enough,
            ``inf`` where the most are not.
        counts: The step counts to choose from.
        goal: When a picture counts as good enough.
        fingerprint: What was measured, with the weights' checksum and the arguments of the call.
        about: Where it comes from, for a reader.
    """

    linear: Linear
    scores: Array
    counts: tuple[int, ...]
    goal: Goal
    fingerprint: Fingerprint
    weights_mark: str = ""
    call: Mapping[str, Any] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    def difficulty(self, features: Tensor | Array) -> Array:
        """Logarithm of the steps that each prompt is expected to need, ``(prompts, features)`` to ``(prompts,)``."""
        known = features.detach().cpu() if isinstance(features, Tensor) else features
        x = np.asarray(known, dtype=np.float64)
        width = len(self.linear.weights)
        if x.ndim != 2 or x.shape[1] != width:
            raise AccelError(
                f"the predictor reads {width} features of a prompt, not {tuple(x.shape)}: it was trained for another "
                "text encoder"
            )
        if not np.isfinite(x).all():
            raise AccelError("the prompts' features hold NaN or infinity: look at what encode_prompt returns")
        return self.linear(x)

    def probability(self, features: Tensor | Array) -> Array:
        """``P(good | prompt, N)`` for every count, ``(prompts, counts)``, rising along the counts."""
        room = log_counts(self.counts) - self.difficulty(features)[:, None]
        return np.asarray((self.scores.ravel() < room[..., None] - _ROUNDING).mean(-1))

    def offset(self, target: float) -> float:
        """q for a share of ``target`` good pictures; ``inf`` where no choice of steps can promise it."""
        if not 0 < target < 1:
            raise AccelError(f"a target is a share of good pictures between 0 and 1, not {target}")
        ordered = np.sort(self.scores.ravel())
        rank = math.ceil(target * (1 + 1 / len(self.scores)) * len(ordered) - _ROUNDING)
        return float(ordered[rank - 1]) if rank <= len(ordered) else math.inf

    @property
    def highest_target(self) -> float:
        """The largest share that can be promised; K calibration prompts cannot promise more than K / (K + 1)."""
        return float((self.scores < math.inf).mean() * len(self.scores) / (len(self.scores) + 1))

    def steps(self, features: Tensor | Array, target: float = 0.95) -> list[int]:
        """A count for each prompt; the largest where none is enough."""
        chosen = choose(self.difficulty(features) + self.offset(target), self.counts)
        return [self.counts[index] for index in chosen]

    def fingerprint_problems(self, target: Target) -> tuple[list[str], list[str]]:
        """(reasons to refuse, reasons to warn) for using the predictor on ``target``.

        Another model or solver needs other step counts, so those are refused.
        """
        here = Fingerprint.of(target, self.fingerprint.steps, {})
        mark, again = self.fingerprint, "collect and train here"
        if here.denoiser != mark.denoiser:
            return [f"the predictor was trained for {mark.denoiser}, this is {here.denoiser}: {again}"], []
        if here.config != mark.config:
            return [f"the predictor was trained for another {mark.denoiser} (its configuration differs): {again}"], []
        if here.scheduler != mark.scheduler:
            return [f"the predictor was trained with {mark.scheduler}, this pipeline has {here.scheduler}: {again}"], []
        warn = [
            f"the predictor was trained with {name} {version}, this is {here.libraries.get(name) or 'not installed'}"
            for name, version in mark.libraries.items()
            if here.libraries.get(name) != version
        ]
        if self.weights_mark and identity(target.pipe)["weights"] != self.weights_mark:
            warn.append("the predictor was trained for other weights, or another precision, of this model")
        return [], warn

    def call_problems(self, call: Mapping[str, Any]) -> list[str]:
        """Which arguments of a pipeline's call differ from those it was trained with (guidance, size, …)."""
        return [
            f"the predictor was trained with {name}={value}, this call has {call[name]}"
            for name, value in self.call.items()
            if name in call and call[name] is not None and call[name] != value
        ]

    def save(self, folder: Path | str) -> None:
        """Write `TENSORS` and `ABOUT` into ``folder``, which is made if need be."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        arrays = {"mean": self.linear.mean, "scale": self.linear.scale, "weights": self.linear.weights}
        arrays["scores"] = self.scores
        save_file({name: torch.tensor(value, dtype=torch.float64) for name, value in arrays.items()}, place / TENSORS)
        plain = {
            "format": FORMAT,
            "goal": self.goal.text,
            "counts": list(self.counts),
            "bias": self.linear.bias,
            "ridge": "inf" if math.isinf(self.linear.ridge) else self.linear.ridge,
            "fingerprint": self.fingerprint.to_dict(),
            "weights": self.weights_mark,
            "call": dict(self.call),
            "about": dict(self.about),
        }
        (place / ABOUT).write_text(json.dumps(plain, indent=2) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path | str) -> DifficultyModel:
        """Read what `save` wrote; raises `AccelError` for anything else."""
        told, held = read(Path(folder) / ABOUT, Path(folder) / TENSORS, FORMAT)
        try:
            arrays = {name: held[name].double().numpy() for name in ("mean", "scale", "weights", "scores")}
            _check(arrays, told["counts"])
            return cls(
                Linear(arrays["mean"], arrays["scale"], arrays["weights"], float(told["bias"]), float(told["ridge"])),
                arrays["scores"],
                tuple(told["counts"]),
                Goal(told["goal"]),
                Fingerprint.from_dict(told["fingerprint"]),
                str(told["weights"]),
                dict(told["call"]),
                dict(told["about"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise AccelError(f"{folder} holds no predictor of accel difficulty train ({error})") from None


def choose(reach: Array, counts: Sequence[int]) -> Index:
    """Index of the least count whose logarithm is above ``reach``, the last where none is."""
    return np.minimum(np.searchsorted(log_counts(counts), reach + _ROUNDING, side="right"), len(counts) - 1)


def _check(arrays: Mapping[str, Array], counts: Any) -> None:
    widths = {arrays[name].shape for name in ("mean", "scale", "weights")}
    if len(widths) != 1 or arrays["weights"].ndim != 1 or arrays["scores"].ndim != 2 or not arrays["scores"].size:
        raise ValueError("its tensors do not fit together")
    if not np.isfinite(arrays["weights"]).all() or np.isnan(arrays["scores"]).any() or not (arrays["scale"] > 0).all():
        raise ValueError("its tensors hold impossible values")
    whole = isinstance(counts, list) and len(counts) > 1 and all(type(count) is int and count > 0 for count in counts)
    if not whole or counts != sorted(set(counts)):
        raise ValueError("its step counts do not rise")

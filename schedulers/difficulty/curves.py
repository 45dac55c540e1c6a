"""The measured tensor Q[prompt, seed, steps], and from when on a picture is good enough."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from accel.errors import AccelError

FORMAT = 1
TENSORS, ABOUT = "curves.safetensors", "curves.json"

_GOAL = re.compile(r"(\d+(?:\.\d+)?) ?dB|facts")


@dataclass(frozen=True)
class Goal:
    """When a picture counts as good: ``"30 dB"``, that close to its own long run, or ``"facts"``.

    ``facts`` asks that the picture shows all that its prompt states, unless its long run does not either: no number of
    steps can give what the model cannot draw.
    """

    text: str = "30 dB"

    def __post_init__(self) -> None:
        if not _GOAL.fullmatch(self.text):
            raise AccelError(f"no goal {self.text!r}: say '30 dB', or 'facts' where there is a judge")

    @property
    def decibels(self) -> float | None:
        """The distance asked for, ``None`` for facts."""
        found = _GOAL.fullmatch(self.text)
        return float(found[1]) if found and found[1] else None


@dataclass(frozen=True)
class Curves:
    """What was measured.

    Attributes:
        counts: The step counts N, rising.
        prompts: The prompts P.
        groups: What each prompt is made of; prompts of one group are never split between training and test.
        psnr: ``(P, S, N)`` in dB to the long run of the same seed.
        right: ``(P, S, N)``, does the picture show all its prompt states? Empty where there was no judge.
        long_right: ``(P, S)``, the same for the long run.
        features: ``(P, F)``, see `accel.schedulers.difficulty.features`.
        about: Settings, fingerprint and machine, JSON-ready.
    """

    counts: tuple[int, ...]
    prompts: tuple[str, ...]
    groups: tuple[str, ...]
    psnr: NDArray[np.floating]
    right: NDArray[np.bool_]
    long_right: NDArray[np.bool_]
    features: NDArray[np.floating]
    about: dict[str, Any]

    def __post_init__(self) -> None:
        expected = (len(self.prompts), self.psnr.shape[1] if self.psnr.ndim == 3 else 0, len(self.counts))
        whole = self.psnr.shape == expected and self.features.ndim == 2 and len(self.features) == expected[0]
        if not whole or len(self.groups) != expected[0] or list(self.counts) != sorted(set(self.counts)):
            raise AccelError(f"curves do not fit together: {expected[0]} prompts, quality {self.psnr.shape}")
        if self.right.size and (self.right.shape != expected or self.long_right.shape != expected[:2]):
            raise AccelError("curves do not fit together: there is not one verdict for each picture")

    def success(self, goal: Goal) -> NDArray[np.bool_]:
        """``(P, S, N)``: is the picture good enough?

        Raises:
            AccelError: for facts where nothing judged them.
        """
        if (distance := goal.decibels) is not None:
            return np.asarray(self.psnr >= distance)
        if not self.right.size:
            raise AccelError("these curves were collected without a judge: ask for a goal in dB")
        return np.asarray(self.right | ~self.long_right[..., None])

    def save(self, folder: Path) -> None:
        """Write `TENSORS` and `ABOUT` into ``folder``."""
        names = ("psnr", "right", "long_right", "features")
        arrays = {name: torch.from_numpy(np.ascontiguousarray(getattr(self, name))) for name in names}
        save_file(arrays, folder / TENSORS)
        plain = {key: value for key, value in asdict(self).items() if key not in names}
        (folder / ABOUT).write_text(json.dumps({"format": FORMAT, **plain}) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: Path) -> Curves:
        """Read what `save` wrote; raises `AccelError` for anything else."""
        about, tensors = read(folder / ABOUT, folder / TENSORS)
        try:
            return cls(
                counts=tuple(int(count) for count in about["counts"]),
                prompts=tuple(about["prompts"]),
                groups=tuple(about["groups"]),
                about=dict(about["about"]),
                **{name: tensor.numpy() for name, tensor in tensors.items()},
            )
        except (KeyError, TypeError, ValueError) as error:
            raise AccelError(f"{folder} holds no curves of accel difficulty collect ({error})") from None


def read(about: Path, tensors: Path, form: int = FORMAT) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """A JSON object and the tensors beside it, from files that nobody vouches for."""
    try:
        told = json.loads(about.read_text(encoding="utf-8"))
        held = load_file(tensors)
    except (OSError, ValueError, SafetensorError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is damaged or something else"
        raise AccelError(f"{about.parent} cannot be read, {about.name} with {tensors.name}: {reason}") from None
    if not isinstance(told, dict) or told.get("format") != form:
        raise AccelError(f"{about} is not of this version (format {form})")
    return told, held


def needed(success: NDArray[np.bool_]) -> NDArray[np.integer]:
    """``(…, N)`` to ``(…)``: the index of the count from which on *every* one succeeds, N where the last one fails."""
    from_here_on = np.logical_and.accumulate(success[..., ::-1], axis=-1)
    return np.asarray(success.shape[-1] - from_here_on.sum(-1))


def log_counts(counts: Sequence[int]) -> NDArray[np.floating]:
    """Steps on the scale on which quality is about straight."""
    return np.log(np.asarray(counts, dtype=np.float64))


def log_needed(index: NDArray[np.integer], counts: Sequence[int]) -> NDArray[np.floating]:
    """Logarithm of the steps needed; where none suffices, one more of the last ratio."""
    steps = log_counts(counts)
    return np.append(steps, 2 * steps[-1] - steps[-2])[index]

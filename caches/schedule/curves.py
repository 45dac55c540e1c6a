"""Error curves: how wrong a predictor would have been at each step of a plain run.

JSON form: ``{"format": 1, "steps": 25, "lookahead": 3, "axis": "time", "fingerprint": {…}, "sites":
{"transformer.….ff": {"kind": "ff", "errors": {"reuse": {"1": [null, 0.2, …], …}, "linear": {"1 2": […], …}}}}}``.
Under the *lags* of the values that a prediction is made from there is one number per step, ``null`` where nothing was
measured.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from accel.caches.predict import ORDER, Axis
from accel.errors import AccelError
from accel.fingerprint import Fingerprint

FORMAT = 1
"""Version of the JSON form."""

Lags = tuple[int, ...]
"""How many steps ago the values that a predictor looks at were computed, the newest first."""

Errors = Sequence[float | None]
"""Relative L1 error at each step, ``None`` where it was not measured."""

Curve = Mapping[Lags, Errors]

_DIGITS = 6
_KEYS = {"format", "steps", "lookahead", "axis", "fingerprint", "sites"}


def lags(how: str, lookahead: int) -> list[Lags]:
    """All choices of values for the predictor ``how`` that skips of up to ``lookahead`` steps can leave it with."""
    found: list[Lags] = [(newest,) for newest in range(1, lookahead + 1)]
    for _ in range(ORDER[how] - 1):
        found = [(*each, each[-1] + gap) for each in found for gap in range(1, lookahead + 2)]
    return found


@dataclass(frozen=True)
class ErrorCurves:
    """What `accel.caches.schedule.calibrate` measured, by site and predictor."""

    steps: int
    lookahead: int
    """The longest run of predicted steps that was measured."""
    axis: Axis
    """What the predictors ran along."""
    kinds: Mapping[str, str]
    """Kind of each site."""
    sites: Mapping[str, Mapping[str, Curve]]
    """Site → predictor → curve, averaged over prompts and guidance branches."""
    fingerprint: Fingerprint

    @property
    def predictors(self) -> list[str]:
        """The predictors that were measured."""
        return list(next(iter(self.sites.values())))

    def members(self, name: str) -> list[str]:
        """The sites that ``name`` stands for: one, or all of a kind. Raises `AccelError` for an unknown name."""
        found = [site for site, kind in self.kinds.items() if name in (site, kind)]
        if not found:
            raise AccelError(f"no error curve of {name!r}: there are {', '.join(sorted(set(self.kinds.values())))}")
        return found

    def of(self, name: str, how: str) -> Curve:
        """The curve of a site, or the mean over the sites of a kind, under one predictor."""
        if how not in self.predictors:
            raise AccelError(f"no error curve of {how!r}: measured were {', '.join(self.predictors)}")
        curves = [self.sites[site][how] for site in self.members(name)]
        return {key: _mean([curve[key] for curve in curves]) for key in curves[0]}

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, see the module's text."""
        sites = {
            site: {"kind": self.kinds[site], "errors": {how: _spelled(curve) for how, curve in by_how.items()}}
            for site, by_how in self.sites.items()
        }
        head = {"format": FORMAT, "steps": self.steps, "lookahead": self.lookahead, "axis": self.axis}
        return {**head, "fingerprint": self.fingerprint.to_dict(), "sites": sites}

    @classmethod
    def from_dict(cls, data: Any) -> ErrorCurves:
        """Read the JSON form; raises `AccelError` for another format and for what is missing or malformed."""
        if not isinstance(data, dict) or set(data) != _KEYS:
            raise AccelError(f"error curves have exactly the keys {', '.join(sorted(_KEYS))}")
        if data["format"] != FORMAT:
            raise AccelError(f"format {data['format']} is not {FORMAT}: it was written by another version")
        try:
            kinds = {site: entry["kind"] for site, entry in data["sites"].items()}
            sites = {
                site: {how: _read(curve, data["steps"]) for how, curve in entry["errors"].items()}
                for site, entry in data["sites"].items()
            }
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise AccelError(f"a site of error curves cannot be read: {error!r}") from None
        mark = Fingerprint.from_dict(data["fingerprint"])
        return cls(data["steps"], data["lookahead"], cast(Axis, data["axis"]), kinds, sites, mark)

    def save(self, path: str | Path) -> None:
        """Write the curves as JSON."""
        Path(path).write_text(json.dumps(self.to_dict()) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: str | Path) -> ErrorCurves:
        """Read a file that `save` wrote; raises `AccelError` when it is missing or something else."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise AccelError(f"{path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise AccelError(f"{path} does not hold error curves: {error}") from None


def _mean(curves: Sequence[Errors]) -> Errors:
    """Step by step, over the curves that were measured there."""
    steps = [[error for error in at if error is not None] for at in zip(*curves, strict=True)]
    return [sum(found) / len(found) if found else None for found in steps]


def _spelled(curve: Curve) -> dict[str, list[float | None]]:
    return {
        " ".join(map(str, key)): [None if error is None else float(f"{error:.{_DIGITS}g}") for error in errors]
        for key, errors in curve.items()
    }


def _read(curve: Mapping[str, Errors], steps: int) -> Curve:
    if wrong := [key for key, errors in curve.items() if len(errors) != steps]:
        raise ValueError(f"lags {wrong[0]} have {len(curve[wrong[0]])} errors for {steps} steps")
    return {tuple(map(int, key.split())): list(errors) for key, errors in curve.items()}

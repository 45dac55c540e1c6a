"""What a plan was tuned for, and whether that is what it is applied to."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, fields
from importlib import metadata
from typing import Any

from accel.errors import AccelError
from accel.target import Target

_LIBRARIES = ("torch", "diffusers")


@dataclass(frozen=True)
class Fingerprint:
    """The subject of a tuned plan. Another denoiser is refused, another configuration, scheduler or library warned of.

    Steps and quality say how it was measured; they are not compared.
    """

    denoiser: str
    """Class of the denoiser."""
    config: str
    """Hash of the denoiser's configuration."""
    scheduler: str
    """Class of the scheduler."""
    steps: int
    """Steps of the runs it was measured on."""
    libraries: dict[str, str]
    quality: dict[str, float]
    """What was measured, e.g. ``{"psnr": 44.1, "frontier_gain": 1.6}``."""

    @classmethod
    def of(cls, target: Target, steps: int, quality: dict[str, float]) -> Fingerprint:
        """The fingerprint of a pipeline at ``steps`` steps."""
        module = target.denoisers[0].module
        return cls(
            type(module).__name__,
            config_hash(module),
            type(target.scheduler).__name__,
            steps,
            {name: _version(name) or "" for name in _LIBRARIES},
            quality,
        )

    def mismatches(self, target: Target) -> tuple[list[str], list[str]]:
        """(reasons to refuse, reasons to warn) for applying the plan to ``target``."""
        module, scheduler = target.denoisers[0].module, type(target.scheduler).__name__
        if type(module).__name__ != self.denoiser:
            return [f"the plan was tuned for {self.denoiser}, this is {type(module).__name__}: tune it here"], []
        warn = []
        if config_hash(module) != self.config:
            warn.append(f"the plan was tuned for another {self.denoiser} (its configuration differs)")
        if scheduler != self.scheduler:
            warn.append(f"the plan was tuned with {self.scheduler}, this pipeline has {scheduler}")
        for name, version in self.libraries.items():
            if (here := _version(name)) != version:
                warn.append(f"the plan was tuned with {name} {version}, this is {here or 'not installed'}")
        return [], warn

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> Fingerprint:
        """Read the JSON form; raises `AccelError` when keys are missing or unknown."""
        known = {field.name for field in fields(cls)}
        if not isinstance(data, dict) or set(data) != known:
            raise AccelError(f"a fingerprint has exactly the keys {', '.join(sorted(known))}")
        kinds = dict.fromkeys(("libraries", "quality"), dict) | {"steps": int}
        for key, value in data.items():
            if not isinstance(value, kind := kinds.get(key, str)):
                raise AccelError(f"a fingerprint's {key} must be {kind.__name__}, not {value!r}")
        return cls(**data)


def config_hash(module: Any) -> str:
    """Hash of a model's configuration, without the keys that only say where it came from."""
    config = {k: v for k, v in dict(getattr(module, "config", {})).items() if not k.startswith("_")}
    return hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode()).hexdigest()[:16]


def _version(library: str) -> str | None:
    try:
        return metadata.version(library)
    except metadata.PackageNotFoundError:
        return None

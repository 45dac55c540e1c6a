"""What a journal remembers of a pipeline and a machine, to refuse results that cannot be compared."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from accel import __version__
from accel.measure.journal import Item
from accel.measure.timing import machine


def identity(pipe: Any) -> Item:
    """The version, the machine, and of the pipeline its class, scheduler, precision and weights."""
    return {
        "accel": __version__,
        "machine": machine(pipe.device),
        "pipeline": type(pipe).__name__,
        "scheduler": {"class": type(pipe.scheduler).__name__, **_plain(pipe.scheduler.config)},
        "dtype": str(pipe.dtype).removeprefix("torch."),
        "weights": checksum(pipe.components.values()),
    }


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if not key.startswith("_") and not isinstance(value, list)}


def checksum(parts: Iterable[Any]) -> str:
    """Tells one set of weights from another by a few values of every parameter; what is no module is passed over.

    Parameters that are offloaded, and so not there, count by their shape.
    """
    mark = 0
    for part in parts:
        if isinstance(part, torch.nn.Module):
            for parameter in part.parameters():
                values = str(parameter.shape).encode() if parameter.is_meta else _first(parameter)
                mark = zlib.crc32(values, mark)
    return f"{mark:08x}"


def _first(parameter: torch.Tensor) -> bytes:
    return parameter.detach().flatten()[:16].float().cpu().numpy().tobytes()

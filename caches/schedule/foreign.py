"""Schedules in the files of other projects, as rows of a schedule of ours. Steps are in order of execution.

- SmoothCache, FORA and Learning-to-Cache: JSON with ``1`` for computed, by component, ``{"attn1": [1, 0, 1], …}``, or
  by component and block, ``{"attn-0": [1, 0, 1], "mlp-0": [1, 1, 1], …}``.
- Learned masks, as JSON or safetensors: ``mask`` or ``logits`` of shape [step, block, component], the components being
  attention and feed-forward unless ``components`` names others (a list; in safetensors' metadata, separated by commas).
- HarmoniCa's routers (arXiv:2410.01723), as safetensors: ``0.prob``, ``1.prob``, … of 2 · blocks logits each, attention
  and feed-forward by turns. The last of them belongs to the step that is executed first.

A logit means *compute* where sigmoid(logit) > threshold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from accel.errors import AccelError

_PICKLES = {".pt", ".pth", ".bin", ".ckpt", ".pkl"}
_ROUTER = re.compile(r"(?:routers\.)?(\d+)\.prob")
_COMPONENTS = ("attn", "mlp")
_KNOWN = "SmoothCache or L2C schedule, and no mask or logits of shape [step, block, component]"


def read(path: str | Path, threshold: float = 0.1) -> dict[str, str]:
    """Rows (name → cells) of a file in one of the forms above.

    Raises:
        AccelError: when it cannot be read, is a pickle, or holds something else.
    """
    file = Path(path).expanduser()
    if file.suffix in _PICKLES:
        raise AccelError(
            f"{file} is a pickle, which may run any code when it is opened: convert it once, in Python, with "
            "torch.serialization.add_safe_globals([argparse.Namespace]); safetensors.torch.save_file(torch.load("
            f"'{file.name}', weights_only=True)['routers'], '{file.stem}.safetensors')"
        )
    try:
        return _tensors(file, threshold) if file.suffix == ".safetensors" else _json(file, threshold)
    except OSError as error:
        raise AccelError(f"schedule file {file} cannot be read: {error.strerror or error}") from None
    except (ValueError, TypeError, SafetensorError) as error:
        raise AccelError(f"schedule file {file} cannot be used: {error}") from None


def _json(file: Path, threshold: float) -> dict[str, str]:
    data = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(data, dict) or not data:
        raise ValueError(f"it holds no {_KNOWN}")
    if "techniques" in data:
        raise ValueError("it is a plan: hand it to accel.accelerate as it is")
    if "fingerprint" in data:
        raise ValueError("it holds error curves: SmoothCache.fitted(ErrorCurves.load(file), target_share=0.5)")
    if "mask" in data or "logits" in data:
        components = data.pop("components", _COMPONENTS)
        return _learned({key: torch.tensor(value) for key, value in data.items()}, components, threshold)
    return {name: _cells(name, row) for name, row in data.items()}


def _cells(name: str, row: Any) -> str:
    if not isinstance(row, Sequence) or not row or any(str(int(cell)) not in "01" for cell in row):
        raise ValueError(f"row {name} is not a list of 1 (compute) and 0 (reuse)")
    return "".join(str(int(cell)) for cell in row)


def _tensors(file: Path, threshold: float) -> dict[str, str]:
    with safe_open(str(file), framework="pt") as opened:
        found = {name: opened.get_tensor(name) for name in opened.keys()}
        named = (opened.metadata() or {}).get("components")
    routers = {int(match[1]): found[name] for name in found if (match := _ROUTER.fullmatch(name))}
    if routers and len(routers) == len(found):
        return _learned({"logits": _routed(routers)}, _COMPONENTS, threshold)
    return _learned(found, named.split(",") if named else _COMPONENTS, threshold)


def _routed(routers: Mapping[int, torch.Tensor]) -> torch.Tensor:
    """(steps, blocks, 2): the routers in order of execution, which is from the last to the first."""
    if sorted(routers) != list(range(len(routers))):
        raise ValueError(f"of its {max(routers) + 1} routers some are missing")
    return torch.stack([routers[index] for index in reversed(range(len(routers)))]).unflatten(1, (-1, 2))


def _learned(found: Mapping[str, torch.Tensor], components: Sequence[str], threshold: float) -> dict[str, str]:
    if set(found) not in ({"mask"}, {"logits"}):
        raise ValueError(f"it holds {', '.join(sorted(found)) or 'nothing'}, which is no mask and no logits")
    (table,) = found.values()
    if table.ndim != 3 or table.shape[2] != len(components):
        raise ValueError(f"its shape is {list(table.shape)}, not [step, block, {len(components)}]")
    computed = table.float().sigmoid() > threshold if "logits" in found else table != 0
    return {
        f"{component}-{block}": "".join("01"[int(cell)] for cell in computed[:, block, index])
        for block in range(table.shape[1])
        for index, component in enumerate(components)
    }

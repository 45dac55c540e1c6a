"""Floating-point operations, counted by PyTorch while the code really runs; eager mode only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count


@dataclass(frozen=True)
class Flops:
    """Operations of one run; a multiplication and an addition count as two.

    Attributes:
        total: All of them.
        modules: Operations inside of each module, by qualified name, its children included.
    """

    total: int
    modules: Mapping[str, int]


def count(run: Callable[[], object]) -> Flops:
    """Count the floating-point operations of ``run()``: matrix products, convolutions, attention.

    Elementwise work is not counted, and neither is what runs inside of compiled modules.
    """
    with FlopCounterMode(display=False, custom_mapping=_CPU_ATTENTION) as counter:
        run()
    modules = {name: sum(by_operator.values()) for name, by_operator in counter.get_flop_counts().items()}
    return Flops(counter.get_total_flops(), modules)


def _attention(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return sdpa_flop_count(query, key, value)


# PyTorch has no formula for its fused CPU attention and counts it as nothing, which would make
# every saving of attention look free and every saving of anything else look larger than it is.
_CPU_ATTENTION = {torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention}

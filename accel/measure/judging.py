"""What a judge of pictures must offer; the bundled pipelines have one, others may bring theirs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch


class Judge(Protocol):
    """Says whether pictures show what their prompts state. ``rows`` are positions in the list of prompts."""

    def facts(self, pictures: torch.Tensor, rows: Sequence[int]) -> list[dict[str, bool]]:
        """For every picture the stated facts by kind, and whether they hold."""

    def features(self, pictures: torch.Tensor) -> torch.Tensor:
        """Features ``(batch, width)`` for distances of sets."""

    def real(self) -> torch.Tensor:
        """Features of real pictures of the same prompts' kind."""


def accuracy(facts: Mapping[str, bool]) -> float:
    """Attribute accuracy of a picture: the share of the stated facts that hold, all of them where none is stated."""
    return sum(facts.values()) / len(facts) if facts else 1.0

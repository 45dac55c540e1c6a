"""No test of the contract may leave a plan on a shared pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel import Handle, Plan
from accel.contract.bench import Bench


@pytest.fixture(autouse=True)
def nothing_left_attached(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Take off what a failing test left attached, so that it fails alone."""
    attached: list[Handle] = []
    original = Bench.attached

    def remembering(self: Bench, plan: Plan | None = None) -> Handle:
        attached.append(original(self, plan))
        return attached[-1]

    monkeypatch.setattr(Bench, "attached", remembering)
    yield
    for handle in attached:
        handle.remove()

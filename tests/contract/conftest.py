"""No test of the contract may leave a plan on a shared pipeline."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel.handle import handles_of
from tests.contract import support


@pytest.fixture(autouse=True)
def nothing_left_attached() -> Iterator[None]:
    """Clean up after a failing test, so that it fails alone."""
    attached: list = []
    original = support.Bench.attached

    def remembering(self, plan=None):
        handle = original(self, plan)
        attached.append(handle)
        return handle

    support.Bench.attached = remembering
    yield
    support.Bench.attached = original
    for handle in attached:
        if handle in handles_of(handle.pipe):
            handle.remove()

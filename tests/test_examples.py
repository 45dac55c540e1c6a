"""Every example runs as it stands."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from accel import registry

EXAMPLES = sorted((Path(__file__).parent.parent / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example_runs(path, capsys, monkeypatch):
    monkeypatch.setattr(registry, "_registered", {})  # what an example registers is not for the other tests
    runpy.run_path(str(path), run_name="__main__")
    printed = capsys.readouterr().out
    assert "predicted" in printed
    assert "False" not in printed

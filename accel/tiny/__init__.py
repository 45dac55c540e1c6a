"""The bundled pipelines: small text-to-image models that ship with the package.

Nothing heavy is imported here; `path` only says where the files are.
"""

from __future__ import annotations

from pathlib import Path

_WEIGHTS = Path(__file__).with_name("weights")
_NAMES = ("tiny", "tiny-dit")


def names() -> tuple[str, ...]:
    """Names of the bundled pipelines."""
    return _NAMES


def path(name: str = "tiny") -> Path:
    """Folder of a bundled pipeline, for ``DiffusionPipeline.from_pretrained``.

    Raises:
        ValueError: if no bundled pipeline has this name.
        FileNotFoundError: if its files were not installed.
    """
    if name not in _NAMES:
        raise ValueError(f"no bundled pipeline is called {name!r}: use one of {', '.join(_NAMES)}")
    folder = _WEIGHTS / name
    if not (folder / "model_index.json").is_file():
        raise FileNotFoundError(
            f"the weights of the bundled pipeline {name!r} are not in {folder}: reinstall the package with its "
            "data, or train them with 'python -m accel.tiny.train'"
        )
    return folder

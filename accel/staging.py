"""Writing a folder's files all or none."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accel.errors import AccelError


@contextmanager
def output_folder(folder: Path) -> Iterator[Path]:
    """Make ``folder`` and hand out a place to write in; its files move to ``folder`` when the block succeeds.

    Raises `AccelError` at once, before anything is computed, when the folder cannot be written. When the block fails
    nothing is left behind: neither files nor folders that were not there before.
    """
    created = _make(folder)
    try:
        stage = Path(tempfile.mkdtemp(prefix=".accel-", dir=folder))
    except OSError as error:
        _remove(created)
        raise _unwritable(folder, error) from None
    try:
        yield stage
        for file in sorted(stage.iterdir()):
            _move(file, folder / file.name)
    except BaseException:
        shutil.rmtree(stage, ignore_errors=True)
        _remove(created)
        raise
    shutil.rmtree(stage, ignore_errors=True)


def _make(folder: Path) -> list[Path]:
    """Make ``folder``; returns what had to be made, innermost first."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _remove(missing)
        raise _unwritable(folder, error) from None
    return missing


def _remove(folders: list[Path]) -> None:
    for path in folders:
        try:
            path.rmdir()
        except FileNotFoundError:  # never made
            continue
        except OSError:  # somebody else has put something there
            return


def _move(file: Path, place: Path) -> None:
    try:
        os.replace(file, place)
    except OSError as error:
        raise _unwritable(place, error) from None


def _unwritable(path: Path, error: OSError) -> AccelError:
    reason = "it is a file" if isinstance(error, FileExistsError) else error.strerror
    return AccelError(f"{path} cannot be written: {reason}; name another folder with --out")


def kept_folder(name: str) -> Path:
    """The folder of that name for files that stay, made if need be; raises `AccelError` where it cannot be."""
    folder = Path(name).expanduser()
    _make(folder)
    return folder

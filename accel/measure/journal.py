"""A file that grows by one JSON line per result, so that a killed measurement goes on where it was."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from accel.errors import AccelError

Item = dict[str, Any]

_FOREIGN = "it holds something other than results"
_SHORT = 60


class Journal:
    """Results on disk, one JSON object per line, the first of which says what is measured.

    Args:
        path: The file; it is made, or gone on with where it exists. With ``None`` results are kept in memory only.
        head: What is measured.

    Raises:
        AccelError: when the file cannot be written, is none of ours, or belongs to another measurement.
    """

    def __init__(self, path: Path | None, head: Item) -> None:
        self.path = path
        self.items: list[Item] = []
        if path is not None:
            self._go_on(path, head)

    def _go_on(self, path: Path, head: Item) -> None:
        lines, size = _read(path)
        try:
            wanted = _as_json(head)
        except TypeError as error:
            raise AccelError(f"{path} can only keep settings that are plain values ({error})") from None
        if lines and lines[0] != wanted:
            raise AccelError(
                f"{path} belongs to a measurement with other settings ({_difference(lines[0], wanted)}): "
                "repeat it with those, or choose another folder"
            )
        self.items = lines[1:]
        if lines:
            os.truncate(path, size)  # without a line that was being written when the process was killed
        else:
            _write(path, head)

    def add(self, item: Item) -> None:
        """Keep a result."""
        if self.path is not None:
            _write(self.path, item)
        self.items.append(_as_json(item))

    def of(self, kind: str) -> list[Item]:
        """The results of one kind, oldest first."""
        return [item for item in self.items if item["kind"] == kind]


def _read(path: Path) -> tuple[list[Item], int]:
    """The whole lines, and how many bytes they take."""
    if not path.exists():
        return [], 0
    try:
        whole = path.read_bytes().rpartition(b"\n")[0]
        lines = [json.loads(line) for line in whole.splitlines()]
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else _FOREIGN
        raise AccelError(f"{path} cannot be gone on with, {reason}: move it away") from None
    if not all(isinstance(line, dict) for line in lines) or (not lines and path.stat().st_size):
        raise AccelError(f"{path} cannot be gone on with, {_FOREIGN}: move it away")
    return lines, len(whole) + 1


def _write(path: Path, item: Item) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(item) + "\n")
    except OSError as error:
        raise AccelError(f"{path} cannot be written ({error.strerror}): choose another folder") from None


def _as_json(item: Item) -> Item:
    """As it comes back from the file: tuples as lists."""
    loaded: Item = json.loads(json.dumps(item))
    return loaded


def _difference(old: Item, new: Item, inside: str = "") -> str:
    """The keys in which two heads differ, with their values where these are short."""
    told = []
    for key in {**old, **new}:
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            told += [part] if (part := _difference(before, after, f"{inside}{key}.")) else []
        elif before != after:
            short = max(len(json.dumps(value)) for value in (before, after)) <= _SHORT
            told.append(f"{inside}{key}: {before}, now {after}" if short else f"other {inside}{key}")
    return ", ".join(told)

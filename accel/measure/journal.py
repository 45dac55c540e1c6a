"""A file that grows by one JSON line per result, so that a killed measurement goes on where it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from accel.errors import AccelError

Item = dict[str, Any]


class Journal:
    """Results on disk, one JSON object per line, the first of which says what is measured.

    Args:
        path: The file; it is made, or gone on with where it exists.
        head: What is measured.

    Raises:
        AccelError: when the file cannot be written, is none of ours, or belongs to another measurement.
    """

    def __init__(self, path: Path, head: Item) -> None:
        self.path = path
        lines = self._read()
        if lines and lines[0] != _as_json(head):
            raise AccelError(
                f"{path} belongs to a measurement with other settings ({_difference(lines[0], _as_json(head))}): "
                "repeat it with those, or choose another folder"
            )
        self.items: list[Item] = lines[1:]
        if not lines:
            self._write(head)

    def add(self, item: Item) -> None:
        """Keep a result."""
        self._write(item)
        self.items.append(_as_json(item))

    def of(self, kind: str) -> list[Item]:
        """The results of one kind, oldest first."""
        return [item for item in self.items if item["kind"] == kind]

    def _read(self) -> list[Item]:
        if not self.path.exists():
            return []
        text = self.path.read_text(encoding="utf-8")
        whole, _, torn = text.rpartition("\n")
        if torn:  # killed while writing: that result is measured again
            self.path.write_text(f"{whole}\n" if whole else "", encoding="utf-8")
        try:
            return [json.loads(line) for line in whole.splitlines()]
        except ValueError:
            raise AccelError(f"{self.path} holds something other than results: move it away") from None

    def _write(self, item: Item) -> None:
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(item) + "\n")
        except OSError as error:
            raise AccelError(f"{self.path} cannot be written ({error.strerror}): choose another folder") from None


def _as_json(item: Item) -> Item:
    """As it comes back from the file: tuples as lists."""
    loaded: Item = json.loads(json.dumps(item))
    return loaded


def _difference(old: Item, new: Item) -> str:
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key}: {_short(old.get(key))}, now {_short(new.get(key))}" for key in keys)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."

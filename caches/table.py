"""The table that every cache is at run time: [step × site] → compute or predict, and how to predict.

JSON form: ``{"steps": 8, "rows": {"unet[level>=1]": {"cells": "11101010", "how": "linear"}}}``: one character per
step, ``1`` computes and ``0`` predicts. A row is named after one site or a kind of site (``cross_attn``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accel.caches.predict import ORDER
from accel.errors import AccelError
from accel.sites import Site


@dataclass(frozen=True)
class Row:
    """One site's part of a table."""

    cells: str
    """``1`` = compute, ``0`` = predict, one per step."""
    how: str = "linear"
    """The predictor, see `accel.caches.predict`."""

    def __post_init__(self) -> None:
        if set(self.cells) - {"0", "1"}:
            raise AccelError(f"a row's cells are 1 (compute) and 0 (predict), not {self.cells!r}")
        if self.how not in ORDER:
            raise AccelError(f"no predictor is called {self.how!r}: there are {', '.join(ORDER)}")

    def predicts(self, step: int) -> bool:
        """Is the cell of ``step`` predicted? Steps beyond the row compute."""
        return step < len(self.cells) and self.cells[step] == "0"

    def keeps(self, step: int) -> bool:
        """Will a value computed at ``step`` still be looked at: is it among the last few before a predicted cell?"""
        newer = 0
        for cell in self.cells[step + 1 :]:
            if cell == "0":
                return newer < ORDER[self.how]
            newer += 1
        return False

    def last(self) -> int:
        """The last predicted step, -1 if there is none: afterwards nothing needs to be kept."""
        return self.cells.rfind("0")


@dataclass(frozen=True)
class Table:
    """Rows for a run of ``steps`` solver steps."""

    steps: int
    rows: Mapping[str, Row]

    def row(self, site: Site) -> Row | None:
        """The row of ``site``: its own, else that of its kind."""
        return self.rows.get(site.name) or self.rows.get(site.kind)

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form, see the module's text."""
        rows = {name: {"cells": row.cells, "how": row.how} for name, row in self.rows.items()}
        return {"steps": self.steps, "rows": rows}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Table:
        """Read the JSON form; raises `AccelError` naming what is missing, unknown or of the wrong length."""
        if not isinstance(data, Mapping) or set(data) != {"steps", "rows"}:
            raise AccelError("a cache table has exactly the keys steps and rows")
        try:
            rows = {name: Row(**row) for name, row in data["rows"].items()}
        except (TypeError, AttributeError) as error:
            raise AccelError(f"a row of a cache table has the keys cells and how: {error}") from None
        for name, row in rows.items():
            if len(row.cells) != data["steps"]:
                raise AccelError(f"row {name} has {len(row.cells)} cells for {data['steps']} steps")
        return cls(int(data["steps"]), rows)


def every(interval: int, steps: int, warm_up: int) -> str:
    """Cells that compute the first ``warm_up`` steps and then every ``interval``-th."""
    return "".join("1" if i < warm_up or (i - warm_up + 1) % interval == 0 else "0" for i in range(steps))

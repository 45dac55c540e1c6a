"""The table that every cache is at run time: [step × site] → compute or predict, and how to predict.

JSON form: ``{"steps": 8, "rows": {"unet[level>=1]": {"cells": "11101010", "how": "linear"}}}``: one character per
step, ``1`` computes and ``0`` predicts; ``axis`` and ``weights`` where they matter. A row is named after one site or a
kind of site (``cross_attn``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from accel.caches.predict import ORDER, Axis, Weights, check_how, lagrange
from accel.errors import AccelError
from accel.sites import Site


@dataclass(frozen=True)
class Row:
    """One site's part of a table."""

    cells: str
    """``1`` = compute, ``0`` = predict, one per step."""
    how: str = "linear"
    """The predictor, see `accel.caches.predict`."""
    axis: Axis = "time"
    """What ``linear`` and ``quadratic`` run along, see `accel.caches.predict`."""
    weights: tuple[Weights, ...] = ()
    """Of ``fitted``: one list per predicted cell, for the computed values from the newest on."""

    def __post_init__(self) -> None:
        if set(self.cells) - {"0", "1"}:
            raise AccelError(f"a row's cells are 1 (compute) and 0 (predict), not {self.cells!r}")
        check_how(self.how, self.axis)
        object.__setattr__(self, "weights", tuple(map(tuple, self.weights)))
        if not all(each and all(map(math.isfinite, each)) for each in self.weights):
            raise AccelError("weights are lists of at least one finite number")
        wanted = self.cells.count("0") if self.how == "fitted" else 0
        if len(self.weights) != wanted:
            raise AccelError(
                f"a {self.how} row with these cells has {wanted} lists of weights, not {len(self.weights)}"
            )

    def predicts(self, step: int) -> bool:
        """Is the cell of ``step`` predicted? Steps beyond the row compute."""
        return step < len(self.cells) and self.cells[step] == "0"

    def keeps(self, step: int) -> bool:
        """Will a value computed at ``step`` still be looked at: is it among the last few before a predicted cell?"""
        return step < len(self.cells) and self._kept[step]

    @cached_property
    def last(self) -> int:
        """The last predicted step, -1 if there is none: afterwards nothing needs to be kept."""
        return self.cells.rfind("0")

    def order(self, step: int) -> int:
        """How many computed values the prediction of ``step`` looks at."""
        return len(self._fitted(step)) if self.how == "fitted" else ORDER[self.how]

    @cached_property
    def depth(self) -> int:
        """How many computed values any of its predictions looks at."""
        return max((self.order(step) for step in range(len(self.cells)) if self.predicts(step)), default=0)

    def weigh(self, step: int, computed: Sequence[int], places: Sequence[float]) -> Weights:
        """The weights in the prediction of ``step`` of the values ``computed`` at these steps (oldest first).

        ``places`` says where on the row's axis each step of the run is.
        """
        if self.how == "fitted":
            return self._fitted(step)
        used = computed[len(computed) - self.order(step) :]
        return lagrange([places[each] for each in used], places[step])

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form: the cells, how, and what is not at its default."""
        data: dict[str, Any] = {"cells": self.cells, "how": self.how}
        if self.axis != "time":
            data["axis"] = self.axis
        if self.weights:
            data["weights"] = [list(weights) for weights in self.weights]
        return data

    def _fitted(self, step: int) -> Weights:
        return self.weights[self.cells.count("0", 0, step)]

    @cached_property
    def _kept(self) -> list[bool]:
        """Walks backwards: how many more computed values do the predictions to come look at?"""
        kept, wanted = [], 0
        for step in reversed(range(len(self.cells))):
            kept.append(wanted > 0)  # of a predicted cell too, for when it has to be computed
            wanted = max(wanted, self.order(step)) if self.predicts(step) else max(0, wanted - 1)
        return kept[::-1]


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
        return {"steps": self.steps, "rows": {name: row.to_dict() for name, row in self.rows.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Table:
        """Read the JSON form; raises `AccelError` naming what is missing, unknown or of the wrong length."""
        if not isinstance(data, Mapping) or set(data) != {"steps", "rows"}:
            raise AccelError("a cache table has exactly the keys steps and rows")
        try:
            rows = {name: Row(**row) for name, row in data["rows"].items()}
        except (TypeError, AttributeError) as error:
            raise AccelError(f"a row of a cache table has the keys cells, how, axis and weights: {error}") from None
        for name, row in rows.items():
            if len(row.cells) != data["steps"]:
                raise AccelError(f"row {name} has {len(row.cells)} cells for {data['steps']} steps")
        return cls(int(data["steps"]), rows)


def every(interval: int, steps: int, warm_up: int) -> str:
    """Cells that compute the first ``warm_up`` steps and then every ``interval``-th."""
    return "".join("1" if i < warm_up or (i - warm_up + 1) % interval == 0 else "0" for i in range(steps))

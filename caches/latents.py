"""How much the sample of each picture moved in the last steps, seen at the scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import torch

from accel.clock import Clock
from accel.runs import step_sample
from accel.tensors import tensors

_SEEN = 3


class Moves:
    """Mean absolute change of every picture's sample in the last three steps, d_i, d_{i-1} and d_{i-2}."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._newest: deque[torch.Tensor] = deque(maxlen=_SEEN)

    def attach(self) -> Callable[[], None]:
        """Stand around the solver's steps; returns what undoes it."""
        return self.clock.guard_scheduler(step=self._step)

    def clear(self) -> None:
        """A run is over."""
        self._newest.clear()

    def unevenness(self, picture: int) -> float | None:
        """AdaptiveDiffusion's third-order estimate (arXiv:2410.09873) of a picture's path, relative to its last move:

            |(d_i + d_{i-2}) / 2 - d_{i-1}| / d_{i-1}

        ``None`` while fewer than three steps were seen. Waits for a GPU.
        """
        if len(self._newest) < _SEEN or picture >= len(self._newest[-1]):
            return None
        oldest, middle, newest = (float(move[picture]) for move in self._newest)
        return abs((newest + oldest) / 2 - middle) / max(middle, 1e-12)

    def _step(self, proceed: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = proceed(*args, **kwargs)
        if self.clock.run is not None and self.clock.ours():
            before = step_sample(self.clock.target.scheduler, args, kwargs)
            after = next(tensors(result), None)
            if before is not None and after is not None and before.shape == after.shape:
                self._newest.append((after - before).detach().abs().flatten(1).mean(1))
        return result

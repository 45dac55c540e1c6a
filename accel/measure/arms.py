"""The ways to draw that a comparison measures: the plain pipeline at several step counts and solvers, and plans."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from accel.errors import AccelError, AccelWarning
from accel.handle import Handle, accelerate, check_plain
from accel.measure.solvers import OWN, set_up
from accel.measure.timing import timed, turn
from accel.plan import Plan

REFERENCE = 4
"""The reference is the plain run with this many times the steps."""

_CURVE = (4, 6, 8, 10, 12, 15, 20, 25, 30, 40, 50, 75, 100)


@dataclass(frozen=True)
class Arm:
    """A way to draw: a step count, a solver, and a plan or none."""

    steps: int
    solver: str = OWN
    plan: Plan | None = field(default=None, hash=False)

    @property
    def name(self) -> str:
        """For tables and files, for example ``"plain, 10 steps, dpm++"``."""
        what = "plain" if self.plan is None else self.plan.name or str(self.plan)
        return f"{what}, {self.steps} steps" + ("" if self.solver == OWN else f", {self.solver}")

    @contextmanager
    def ready(self, pipe: Any) -> Iterator[Handle | None]:
        """Inside of the block ``pipe`` has the arm's solver and plan; the plan's handle is handed out."""
        own = pipe.scheduler
        if self.solver != OWN:
            pipe.scheduler = set_up(self.solver, own)
        try:
            with nullcontext() if self.plan is None else accelerate(pipe, self.plan) as handle:
                yield handle
        finally:
            pipe.scheduler = own


def reference(steps: int, solver: str = OWN) -> Arm:
    """What a solver's pictures are held against: what it converges to. Solvers differ a little in that."""
    return Arm(REFERENCE * steps, solver)


def arms(plans: Sequence[Plan], steps: int, solvers: Sequence[str] = (OWN,)) -> list[Arm]:
    """For every solver the plain pipeline's own curve, up to twice the steps, and every plan."""
    counts = sorted({steps, *(n for n in _CURVE if n <= 2 * steps)})
    plain = [Arm(n, solver) for solver in solvers for n in counts]
    return [*plain, *(Arm(steps, solver, plan) for solver in solvers for plan in plans)]


def draw(pipe: Any, prompts: Sequence[str], seeds: Sequence[int], steps: int, call: Mapping[str, Any]) -> torch.Tensor:
    """Pictures ``(batch, 3, height, width)`` in 0 … 1 on the CPU; picture ``i`` starts from the noise of ``seeds[i]``.

    Raises:
        AccelError: when the pipeline refuses the call, runs out of memory, or makes something other than pictures.
    """
    return _drawn(pipe, prompts, [torch.Generator().manual_seed(seed) for seed in seeds], steps, call)


def one_round(pipe: Any, racers: Sequence[Arm], number: int, once: Callable[[Arm], object]) -> dict[str, float]:
    """Seconds of ``once(arm)`` by arm, in the order of round ``number``; attaching plans is not timed."""
    by_name = {arm.name: arm for arm in racers}
    seconds = {}
    for name in turn(list(by_name), number):
        with by_name[name].ready(pipe):
            seconds[name] = timed(lambda: once(by_name[name]))
    return seconds


def check(pipe: Any, prompt: str, call: Mapping[str, Any]) -> None:
    """Refuse a pipeline that would not be plain; warn of a solver whose step counts cannot be compared."""
    check_plain(pipe)
    states = []
    for steps in (2, 3):
        noise = torch.Generator().manual_seed(0)
        _drawn(pipe, [prompt], [noise], steps, call)
        states.append(noise.get_state())
    if not torch.equal(*states):
        warnings.warn(
            "the solver adds fresh noise in every step, so other step counts draw other pictures: distances to the "
            "long run, and gains at equal distance, mean little",
            AccelWarning,
            stacklevel=2,
        )


def _drawn(
    pipe: Any, prompts: Sequence[str], noise: list[torch.Generator], steps: int, call: Mapping[str, Any]
) -> torch.Tensor:
    try:
        output = pipe(list(prompts), num_inference_steps=steps, generator=noise, output_type="pt", **call)
    except torch.OutOfMemoryError:
        raise AccelError(f"not enough memory for {len(prompts)} pictures at once: try a smaller batch") from None
    except AccelError:
        raise
    except (ValueError, TypeError) as error:
        raise AccelError(f"{type(pipe).__name__} cannot draw this: {error}") from error
    pictures = getattr(output, "images", None)
    if not isinstance(pictures, torch.Tensor) or pictures.ndim != 4 or pictures.shape[1] != 3:
        raise AccelError(f"{type(pipe).__name__} makes something other than pictures, which is all that is compared")
    return pictures.detach().to("cpu", torch.float32)

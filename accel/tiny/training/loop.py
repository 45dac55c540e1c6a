"""The training loop all stages share: schedule, data parallelism, checkpoints and a JSON log."""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from accel.tiny.training.flat import FlatWeights


class Task(Protocol):
    """What a stage trains: its modules and the loss of one batch."""

    def modules(self) -> Iterable[nn.Module]:
        """The modules whose weights are trained."""

    def loss(self, batch: int, seed: int) -> Tensor:
        """Mean loss of ``batch`` fresh samples, fully determined by ``seed``."""


@dataclass(frozen=True)
class Settings:
    """How to train.

    Attributes:
        out: Folder of the checkpoint and the log.
        learning_rate: Peak learning rate.
        batch: Samples per process and step.
        steps: Length in steps; ``minutes`` is used where this is ``None``.
        minutes: Length in minutes of training time, interruptions not counted.
        decay: Share of the run, at its end, over which the learning rate falls to zero.
        ema: Moving average of the weights, per step.
        weight_decay: AdamW's decay.
        muon: Whether matrices are trained by Muon instead.
        seed: Seed of data and noise.
        dtype: Type of the working weights.
        device: ``"cpu"`` or ``"cuda"``.
        save_every: Seconds between checkpoints.
    """

    out: Path
    learning_rate: float
    batch: int
    steps: int | None = None
    minutes: float | None = None
    decay: float = 0.4
    ema: float = 0.998
    weight_decay: float = 0.01
    muon: bool = False
    seed: int = 0
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    save_every: float = 180.0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.minutes is None):
            raise ValueError("the length of a run is unclear: give either steps or minutes")


def run(make_task: Callable[[], Task], settings: Settings, processes: int = 1) -> bool:
    """Train, resuming from the checkpoint in ``settings.out`` where there is one.

    Args:
        make_task: Builds the task; called once in every process, so it must be picklable.
        settings: How to train.
        processes: Data-parallel processes, one thread each. Worth more than as many threads in
            one process, because nobody waits inside an operator on a busy machine. Ignored under
            ``torchrun`` or another launcher that sets ``RANK`` and ``WORLD_SIZE``.

    Returns:
        Whether this process is the one that goes on alone, for instance to write the result.
    """
    settings.out.mkdir(parents=True, exist_ok=True)
    if "RANK" in os.environ and "WORLD_SIZE" in os.environ:
        _worker(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), "env://", make_task, settings)
    elif processes == 1:
        _worker(0, 1, "", make_task, settings)
    else:
        with tempfile.TemporaryDirectory() as folder:
            store = f"file://{folder}/rendezvous"
            # Ending the parent must end its workers: SIGTERM becomes an ordinary exit.
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
            mp.spawn(_worker, (processes, store, make_task, settings), nprocs=processes, daemon=True)
    return os.environ.get("RANK", "0") == "0"


def _worker(rank: int, world: int, store: str, make_task: Callable[[], Task], settings: Settings) -> None:
    if world > 1:
        torch.set_num_threads(1)
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    torch.manual_seed(settings.seed)
    task = make_task()
    weights = FlatWeights(
        task.modules(),
        dtype=settings.dtype,
        device=settings.device,
        weight_decay=settings.weight_decay,
        muon=settings.muon,
    )
    Loop(task, weights, settings, rank, world).run()
    if world > 1:
        dist.destroy_process_group()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The tensors and counters of a checkpoint.

    Raises:
        ValueError: if there is none.
    """
    if not path.exists():
        raise ValueError(f"no checkpoint at {path}: train that stage first")
    return torch.load(path, map_location="cpu", weights_only=True)


def load_average(modules: Iterable[nn.Module], checkpoint: Path) -> None:
    """Give ``modules`` the moving average of the weights in a checkpoint.

    Raises:
        ValueError: if there is none, or it belongs to other modules.
    """
    weights = FlatWeights(modules)
    weights.load_state(read_checkpoint(checkpoint))
    weights.load_ema()


class Loop:
    """One process of a training run."""

    def __init__(self, task: Task, weights: FlatWeights, settings: Settings, rank: int, world: int) -> None:
        self.task, self.weights, self.settings = task, weights, settings
        self.rank, self.world = rank, world
        self.step, self.samples, self.elapsed = 0, 0, 0.0
        self.checkpoint = settings.out / "checkpoint.pt"
        if self.checkpoint.exists():
            self._resume()

    def run(self, stop: int | None = None) -> None:
        """Train to the end of the schedule, or to step ``stop``, and write the last checkpoint."""
        saved = began = time.monotonic()
        before = self.elapsed
        losses: list[float] = []
        while self.step != stop and (progress := self._agree(self._progress())) < 1.0:
            losses.append(self._one_step(progress))
            self.elapsed = before + time.monotonic() - began
            if self.step % 50 == 0:
                self._log(progress, losses)
                losses.clear()
            if time.monotonic() - saved > self.settings.save_every:
                self._save()
                saved = time.monotonic()
        self._save()

    def _one_step(self, progress: float) -> float:
        seed = (self.settings.seed * 1_000_003 + self.step) * 64 + self.rank
        loss = self.task.loss(self.settings.batch, seed)
        loss.backward()
        if self.world > 1:
            dist.all_reduce(self.weights.grad)
            self.weights.grad.div_(self.world)
        ema = min(self.settings.ema, (1 + self.step) / (10 + self.step))
        self.weights.step(self.settings.learning_rate * self._rate(progress), ema)
        self.step += 1
        self.samples += self.settings.batch * self.world
        return float(loss.detach())

    def _progress(self) -> float:
        if self.settings.steps is not None:
            return self.step / self.settings.steps
        return self.elapsed / (60 * (self.settings.minutes or 1.0))

    def _rate(self, progress: float) -> float:
        """Share of the peak learning rate: 100 steps of warm-up, flat, then a linear fall."""
        warm = min(1.0, (self.step + 1) / 100)
        return warm * min(1.0, max(0.01, (1.0 - progress) / self.settings.decay))

    def _agree(self, value: float) -> float:
        """The first process's value; clocks differ, but all must stop at the same step."""
        if self.world == 1:
            return value
        shared = torch.tensor([value], dtype=torch.float64)
        dist.broadcast(shared, 0)
        return float(shared)

    def _log(self, progress: float, losses: list[float]) -> None:
        if self.rank:
            return
        entry = {
            "step": self.step,
            "samples": self.samples,
            "seconds": round(self.elapsed, 1),
            "progress": round(progress, 4),
            "loss": round(sum(losses) / len(losses), 5),
        }
        with (self.settings.out / "log.jsonl").open("a", encoding="utf-8") as log:
            log.write(json.dumps(entry) + "\n")
        print(entry, flush=True)

    def _save(self) -> None:
        if self.rank:
            return
        state: dict[str, Tensor | int | float] = dict(self.weights.state())
        state.update(steps_done=self.step, samples=self.samples, elapsed=self.elapsed)
        partial = self.checkpoint.with_suffix(".partial")
        torch.save(state, partial)
        partial.replace(self.checkpoint)

    def _resume(self) -> None:
        state = read_checkpoint(self.checkpoint)
        self.step, self.samples = int(state.pop("steps_done")), int(state.pop("samples", 0))
        self.elapsed = float(state.pop("elapsed"))
        self.weights.load_state(state)

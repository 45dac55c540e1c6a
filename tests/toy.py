"""A denoiser of a few transparent blocks, and a plain loop over it: what a cache does can be computed by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers import DiffusionPipeline, FlowMatchEulerDiscreteScheduler
from torch import nn

from tests.families.seeding import normal, seed_weights

WIDTH = 6


class Attention(nn.Module):
    """Looks like one."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q = nn.Linear(WIDTH, WIDTH)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return self.to_q(hidden_states).tanh()


class Block(nn.Module):
    """Adds something to the one stream."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, hidden_states: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
        return hidden_states + self.attn(hidden_states + temb[:, None])


class InPlace(Block):
    """The same bits, written over the input."""

    def forward(self, hidden_states: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
        return hidden_states.add_(self.attn(hidden_states + temb[:, None]))


class Folding(Block):
    """Sees two frames of a picture as rows."""

    def forward(self, hidden_states: torch.Tensor, temb: torch.Tensor) -> torch.Tensor:
        return super().forward(hidden_states, temb.repeat_interleave(2, 0))


class Toy(nn.Module):
    """A picture is (tokens, channels)."""

    def __init__(self, kind: type[Block], depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(kind() for _ in range(depth))
        self.folds = kind is Folding

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        x, temb = self.embed(hidden_states, timestep)
        for block in self.blocks:
            x = block(x, temb)
        return self.head(x)

    def embed(self, hidden_states: torch.Tensor, timestep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = hidden_states.unflatten(1, (2, -1)).flatten(0, 1) if self.folds else hidden_states
        return x * 1.0, (timestep[:, None] / 1000 * torch.arange(1, WIDTH + 1)).sin()

    def head(self, x: torch.Tensor) -> torch.Tensor:
        return (x.unflatten(0, (-1, 2)).flatten(1, 2) if self.folds else x) / 4


class ToyPipeline(DiffusionPipeline):
    """Holds the parts of `draw`; called itself, it starts from the picture whose seed is the length of the prompt."""

    def __init__(self, transformer: nn.Module, scheduler: FlowMatchEulerDiscreteScheduler) -> None:
        super().__init__()
        self.register_modules(transformer=transformer, scheduler=scheduler)

    def __call__(self, prompt: str, num_inference_steps: int, **_: Any) -> torch.Tensor:
        return draw(self, sample(len(prompt)), num_inference_steps)


def toy(kind: type[Block] = Block, depth: int = 4) -> ToyPipeline:
    """The same weights each time."""
    return ToyPipeline(seed_weights(Toy(kind, depth), 3), FlowMatchEulerDiscreteScheduler())


def sample(*seeds: int, tokens: int = 8) -> torch.Tensor:
    """One picture for each seed."""
    return torch.stack([normal("toy", seed, tokens, WIDTH) for seed in seeds])


Drift = Callable[[int, torch.Tensor], torch.Tensor]
"""``drift(step, sample)``: the sample that the next step begins with."""


@torch.no_grad()
def draw(pipe: Any, start: torch.Tensor, steps: int = 8, halves: int = 1, drift: Drift | None = None) -> torch.Tensor:
    """A plain loop; with two ``halves`` the batch is doubled, and the second half of it is another picture."""
    now = start.clone()
    pipe.scheduler.set_timesteps(steps)
    for step, t in enumerate(pipe.scheduler.timesteps):
        batch = torch.cat([now, -now][:halves])
        noise = pipe.transformer(batch, t.expand(len(batch)))
        now = pipe.scheduler.step(noise.chunk(halves)[0], t, now, return_dict=False)[0]
        now = drift(step, now) if drift else now
    return now


@torch.no_grad()
def by_hand(pipe: Any, start: torch.Tensor, cells: str, how: str, front: int = 1) -> torch.Tensor:
    """What `draw` gives when the blocks after the ``front`` follow ``cells``, for one picture."""
    model, now, residuals = pipe.transformer, start.clone(), []
    pipe.scheduler.set_timesteps(len(cells))
    for t, cell in zip(pipe.scheduler.timesteps, cells, strict=True):
        x, temb = model.embed(now, t.expand(len(now)))
        for block in model.blocks[:front]:
            x = block(x, temb)
        if cell == "#":
            given = x.clone()
            for block in model.blocks[front:]:
                x = block(x, temb)
            residuals.append((float(t), x - given))
        else:
            x = x + guess(residuals, how, float(t))
        now = pipe.scheduler.step(model.head(x), t, now, return_dict=False)[0]
    return now


def guess(past: Sequence[tuple[float, torch.Tensor]], how: str, t: float) -> torch.Tensor:
    """The newest value, or the straight line through the last two."""
    (t1, newest) = past[-1]
    if how == "reuse":
        return newest
    (t0, before) = past[-2]
    return newest * ((t - t0) / (t1 - t0)) + before * ((t - t1) / (t0 - t1))

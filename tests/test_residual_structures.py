"""Residual caches on transformers whose blocks return and name their streams in their own way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from diffusers import (
    FlowMatchEulerDiscreteScheduler,
    Flux2Transformer2DModel,
    Kandinsky5Transformer3DModel,
)
from torch import nn

import accel
from accel.caches.dynamic import executor
from accel.caches.dynamic.technique import ResidualCache
from tests.families.seeding import TOKENS, normal, seed_weights
from tests.toy import WIDTH, Attention, ToyPipeline

Made = tuple[ToyPipeline, tuple[int, ...], dict[str, Any]]
"""A pipeline, the shape of its sample, and what else its denoiser is given."""


def _made(model: nn.Module, shape: tuple[int, ...], inputs: dict[str, Any]) -> Made:
    return ToyPipeline(seed_weights(model, 51).eval(), FlowMatchEulerDiscreteScheduler()), shape, inputs


def flux2() -> Made:
    """Double blocks return a tuple, single blocks one tensor."""
    model = Flux2Transformer2DModel(
        in_channels=4,
        num_layers=3,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=32,
        timestep_guidance_channels=16,
        axes_dims_rope=(4, 4, 4, 4),
    )
    inputs = {
        "encoder_hidden_states": normal("text", 0, 1, TOKENS, 32),
        "img_ids": torch.arange(16)[None, :, None].expand(1, 16, 4).float(),
        "txt_ids": torch.zeros(1, TOKENS, 4),
        "guidance": torch.ones(1),
    }
    return _made(model, (1, 16, 4), inputs)


def kandinsky5() -> Made:
    """Blocks for the text before those for the picture, and no parameter called ``hidden_states``."""
    model = Kandinsky5Transformer3DModel(
        in_text_dim=32,
        in_text_dim2=16,
        time_dim=16,
        model_dim=32,
        ff_dim=32,
        num_text_blocks=2,
        num_visual_blocks=4,
        axes_dims=(4, 6, 6),
    )
    inputs = {
        "encoder_hidden_states": normal("text", 0, 1, TOKENS, 32),
        "pooled_projections": normal("pooled", 0, 1, 16),
        "visual_rope_pos": [torch.arange(1), torch.arange(4), torch.arange(4)],
        "text_rope_pos": torch.arange(TOKENS),
    }
    return _made(model, (1, 1, 8, 8, 4), inputs)


class Double(nn.Module):
    """Two streams, handed on in the other order."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, hidden_states: torch.Tensor, encoder_hidden_states: torch.Tensor) -> tuple[torch.Tensor, ...]:
        joined = self.attn(torch.cat([encoder_hidden_states, hidden_states], 1))
        tokens = encoder_hidden_states.shape[1]
        return encoder_hidden_states + joined[:, :tokens], hidden_states + joined[:, tokens:]


class Single(nn.Module):
    """The streams in one."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention()

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        return hidden_states + self.attn(hidden_states)


class Joining(nn.Module):
    """Double blocks, then single ones."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Double() for _ in range(3))
        self.single_blocks = nn.ModuleList(Single() for _ in range(3))

    def forward(self, hidden_states: torch.Tensor, timestep: torch.Tensor, text: torch.Tensor, **_: Any) -> Any:
        hidden_states = hidden_states + timestep[:, None, None] / 1000
        for block in self.blocks:
            text, hidden_states = block(hidden_states, encoder_hidden_states=text)
        joined = torch.cat([text, hidden_states], 1)
        for block in self.single_blocks:
            joined = block(joined)
        return (joined[:, text.shape[1] :] / 4,)


def joining() -> Made:
    return _made(Joining(), (1, 8, WIDTH), {"text": normal("text", 0, 1, 3, WIDTH)})


@torch.no_grad()
def draw(made: Made) -> torch.Tensor:
    pipe, shape, inputs = made
    now = normal("start", 0, *shape)
    pipe.scheduler.set_timesteps(6)
    for t in pipe.scheduler.timesteps:
        noise = pipe.transformer(now, timestep=t.expand(1), **inputs, return_dict=False)[0]
        now = pipe.scheduler.step(noise, t, now, return_dict=False)[0]
    return now


@pytest.mark.parametrize("indicator", ["first_block", "tea", "sea"])
@pytest.mark.parametrize(
    "build, settings, streams",
    [
        (flux2, {"front": 1}, (None,)),  # from two streams to the joined one
        (kandinsky5, {"front": 1}, (None,)),  # from the text to the picture
        (kandinsky5, {"front": 3}, ("visual_embed",)),
        (joining, {"front": 1, "back": 3}, ("encoder_hidden_states", "hidden_states")),
        (joining, {"front": 1}, (None,)),  # from two streams to the joined one
        (joining, {"front": 4}, ("hidden_states",)),
    ],
)
def test_streams_are_followed_where_they_can_be(
    build: Any, settings: dict[str, Any], streams: tuple[str | None, ...], indicator: str, monkeypatch: Any
) -> None:
    found = []
    pair = executor.pair
    monkeypatch.setattr(executor, "pair", lambda *given: found.append(pair(*given)) or found[-1])
    made = build()
    plain = draw(made)
    assert plain.isfinite().all()
    with accel.accelerate(made[0], ResidualCache(indicator=indicator, threshold=99.0, warm_up=2, **settings)) as handle:
        fast = draw(made)
        assert handle.report().techniques["residual"].strip == "##..##"
        assert found == [streams]
        assert fast.isfinite().all() and not torch.equal(fast, plain)
    assert torch.equal(draw(made), plain)


@pytest.mark.parametrize("build", [flux2, kandinsky5, joining])
@pytest.mark.parametrize("front", [1, 2])
def test_one_predicted_step_stays_close(build: Any, front: int) -> None:
    """Near the plain picture: nearer than a quarter of the way that the run makes."""
    made = build()
    plain = draw(made)
    with accel.accelerate(made[0], ResidualCache(threshold=99.0, warm_up=2, end=3, front=front)) as handle:
        fast = draw(made)
        assert handle.report().techniques["residual"].strip == "##.###"
    far = (plain - normal("start", 0, *made[1])).abs().mean()
    assert (fast - plain).abs().mean() < 0.25 * far

"""A static plan on a compiled denoiser: how many graphs it takes, and that no run compiles anything anew."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import DiffusionPipeline, EulerDiscreteScheduler, UNet2DConditionModel
from torch._guards import CompileContext

import accel
from accel.caches.deepcache import DeepCache
from accel.caches.smoothcache import SmoothCache
from accel.technique import Technique
from tests import toy
from tests.families.seeding import normal, seed_weights

STEPS = 8
CLOSE = {"atol": 1e-4, "rtol": 0.0}


class Graphs:
    """A backend that runs what it is given, and remembers which stretch of code it was compiled from."""

    def __init__(self) -> None:
        self.frames: Counter[int] = Counter()

    def __call__(self, graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        compiling = CompileContext.current_compile_id()
        assert compiling is not None and compiling.frame_id is not None
        self.frames[compiling.frame_id] += 1
        return graph.forward


class UNetPipeline(DiffusionPipeline):
    """Holds the parts of `draw_unet`."""

    def __init__(self, unet: Any, scheduler: Any) -> None:
        super().__init__()
        self.register_modules(unet=unet, scheduler=scheduler)


def unet() -> UNetPipeline:
    model = UNet2DConditionModel(
        sample_size=8,
        in_channels=2,
        out_channels=2,
        block_out_channels=(4, 4),
        layers_per_block=1,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=4,
        attention_head_dim=2,
        norm_num_groups=2,
    )
    return UNetPipeline(seed_weights(model, 5).eval(), EulerDiscreteScheduler())


@torch.no_grad()
def draw_unet(pipe: Any) -> torch.Tensor:
    now, text = normal("start", 0, 1, 2, 8, 8), normal("text", 0, 1, 3, 4)
    pipe.scheduler.set_timesteps(STEPS)
    for t in pipe.scheduler.timesteps:
        noise = pipe.unet(pipe.scheduler.scale_model_input(now, t), t, text, return_dict=False)[0]
        now = pipe.scheduler.step(noise, t, now, return_dict=False)[0]
    return now


def draw_toy(pipe: Any) -> torch.Tensor:
    return toy.draw(pipe, toy.sample(0), STEPS)


@pytest.fixture(autouse=True)
def fresh_dynamo() -> Iterator[None]:
    """Compiled code and recompile counts are global."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def replaced(pipe: Any, part: str, graphs: Graphs) -> None:
    setattr(pipe, part, torch.compile(getattr(pipe, part), backend=graphs))


def in_place(pipe: Any, part: str, graphs: Graphs) -> None:
    getattr(pipe, part).compile(backend=graphs)


DIT = (toy.toy, draw_toy, "transformer")
UNET = (unet, draw_unet, "unet")
SKIPS, ROWS = DeepCache(warm_up=2), SmoothCache({"attn": "11010110"})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("subject", "technique", "compiling", "first"),
    [
        pytest.param(DIT, SKIPS, replaced, True, id="dit-replaced-first"),
        pytest.param(DIT, SKIPS, in_place, False, id="dit-in-place-after"),
        pytest.param(DIT, ROWS, in_place, True, id="dit-rows-in-place-first"),
        pytest.param(DIT, ROWS, replaced, False, id="dit-rows-replaced-after"),
        pytest.param(UNET, SKIPS, in_place, True, id="unet-in-place-first"),
        pytest.param(UNET, SKIPS, replaced, False, id="unet-replaced-after"),
    ],
)
def test_a_static_mask_takes_at_most_two_graphs_of_each_stretch_of_code(
    subject: tuple[Any, Any, str], technique: Technique, compiling: Callable[..., None], first: bool
) -> None:
    """Steps of both kinds share their graphs: decisions are made between them. The first run compiles all of them."""
    make, draw, part = subject
    with accel.accelerate(pipe := make(), technique):
        wanted = draw(pipe)
    pipe, graphs = make(), Graphs()
    attach = partial(compiling, part=part, graphs=graphs)
    if first:
        attach(pipe)
        plain = draw(pipe)
        assert graphs.frames.total() >= 1
        graphs.frames.clear()
    with accel.accelerate(pipe, technique) as handle:
        if not first:
            attach(pipe)
        torch.testing.assert_close(draw(pipe), wanted, **CLOSE)
        assert handle.report().predicted > 0 and graphs.frames
        assert max(graphs.frames.values()) <= 2
        compiled = graphs.frames.total()
        for _ in range(2):
            torch.testing.assert_close(draw(pipe), wanted, **CLOSE)
        assert graphs.frames.total() == compiled
    if first:
        torch.testing.assert_close(draw(pipe), plain, **CLOSE)

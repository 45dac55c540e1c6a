"""The optimizer of the matrices: what its step is, which weights it leaves alone, and that a run can be resumed."""

from __future__ import annotations

import torch
from torch import nn

from accel.tiny.training.flat import FlatWeights
from accel.tiny.training.muon import Muon, orthogonal


def test_an_orthogonal_step_keeps_the_directions_and_evens_out_their_sizes():
    u, _ = torch.linalg.qr(torch.randn(12, 12, generator=torch.Generator().manual_seed(0)))
    v, _ = torch.linalg.qr(torch.randn(20, 12, generator=torch.Generator().manual_seed(1)))
    matrix = u @ torch.diag(torch.logspace(0, -2, 12)) @ v.T
    for step, left, right in ((orthogonal(matrix), u, v), (orthogonal(matrix.T), v, u)):
        sizes = torch.diagonal(left.T @ step @ right)
        assert sizes.min() > 0.3 and sizes.max() < 1.25
        torch.testing.assert_close(left.T @ step @ right, torch.diag(sizes), atol=1e-4, rtol=0)


def test_matrices_take_steps_of_one_size_and_other_weights_are_left_to_the_other_optimizer():
    shapes = [torch.Size((16, 8, 3, 3)), torch.Size((16,)), torch.Size((4, 64)), torch.Size((12, 32))]
    sizes = [shape.numel() for shape in shapes]
    torch.manual_seed(0)
    weights, gradient = torch.zeros(sum(sizes)), torch.randn(sum(sizes))
    before = gradient.clone()
    Muon(shapes).step(weights, gradient, torch.zeros_like(weights), learning_rate=0.1)
    moved = weights.split(sizes)
    for index, most in ((0, 72), (3, 32)):  # root mean square of U V^T, times sqrt(longest side), times 0.2
        expected = 0.1 * 0.2 * (min(len(moved[index].view(shapes[index][0], -1)), most) * most / sizes[index]) ** 0.5
        assert abs(moved[index].square().mean().sqrt() - expected) < 0.25 * expected
        assert not gradient.split(sizes)[index].any()
    for index in (1, 2):  # a vector, and a matrix of too few rows
        assert not moved[index].any()
        assert torch.equal(gradient.split(sizes)[index], before.split(sizes)[index])


def _train(weights: FlatWeights, model: nn.Module, steps: range) -> list[float]:
    losses = []
    for step in steps:
        x = torch.randn(64, 16, generator=torch.Generator().manual_seed(step))
        loss = (model(x) - x.roll(1, dims=1)).square().mean()
        loss.backward()
        weights.step(0.02, ema_decay=0.5)
        losses.append(float(loss.detach()))
    return losses


def _begin() -> tuple[FlatWeights, nn.Module]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 16))
    return FlatWeights([model], muon=True, weight_decay=0.0), model


def test_a_run_with_muon_learns_and_goes_on_from_its_state_as_if_it_had_not_stopped():
    weights, model = _begin()
    losses = _train(weights, model, range(30))
    assert losses[-1] < 0.2 * losses[0]
    first, model_a = _begin()
    _train(first, model_a, range(10))
    second, model_b = _begin()
    second.load_state({name: value.clone() for name, value in first.state().items()})
    assert _train(second, model_b, range(10, 30)) == losses[10:]

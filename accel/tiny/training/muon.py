"""Muon: momentum whose every matrix is replaced by the nearest one that turns all directions alike.

Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024). `torch.optim.Muon`
iterates in bfloat16, which is slow on processors without it, and knows no convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

MOMENTUM = 0.95

_QUINTIC = (3.4445, -4.7750, 2.0315)
_ROUNDS = 5
_ADAM_RMS = 0.2
_LEAST = 8


def orthogonal(matrix: Tensor) -> Tensor:
    """Nearly ``U V^T`` for ``matrix = U S V^T``: X <- aX + (bA + cA^2)X with A = XX^T, five times.

    Args:
        matrix: ``(rows, columns)``, float32. Singular values end between about 0.7 and 1.2.
    """
    a, b, c = _QUINTIC
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(_ROUNDS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


class Muon:
    """The optimizer of the matrices among some weights that lie in one flat buffer.

    Data-parallel processes, which all hold the same gradients, share the matrices out among themselves.

    Args:
        shapes: Shapes of the weights, in the order of the buffer. A convolution counts as the matrix from its input
            patch to its output channels; weights with fewer than `_LEAST` rows or columns are left alone.
    """

    def __init__(self, shapes: Sequence[torch.Size]) -> None:
        self.slices: list[tuple[slice, int]] = []
        start = 0
        for shape in shapes:
            if len(shape) > 1 and min(shape[0], shape.numel() // shape[0]) >= _LEAST:
                self.slices.append((slice(start, start + shape.numel()), shape[0]))
            start += shape.numel()
        # The dearest first, so that dealing them out in turns is fair.
        self.slices.sort(key=lambda each: (each[0].start - each[0].stop) * each[1])

    def step(self, weights: Tensor, gradient: Tensor, momentum: Tensor, learning_rate: float) -> None:
        """Update ``weights`` and ``momentum`` in place and clear the used part of ``gradient`` (all flat).

        The step has the root mean square of a typical AdamW step (Liu et al., "Muon is Scalable for LLM Training",
        2025), so both take the same learning rate.
        """
        rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        ahead = gradient.lerp(momentum.lerp_(gradient, 1 - MOMENTUM), MOMENTUM)
        steps = torch.zeros_like(weights)
        for part, rows in self.slices[rank::world]:
            matrix = ahead[part].view(rows, -1)
            steps[part] = orthogonal(matrix).mul_(_ADAM_RMS * max(matrix.shape) ** 0.5).reshape(-1)
        if world > 1:
            dist.all_reduce(steps)
        for part, _ in self.slices:
            weights[part].sub_(steps[part], alpha=learning_rate)
            gradient[part] = 0

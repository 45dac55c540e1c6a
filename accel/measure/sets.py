"""How far one set of pictures is from another, through features ``(pictures, width)`` of any extractor."""

from __future__ import annotations

import torch

from accel.errors import AccelError
from accel.measure.extras import torchmetrics

FEWEST = 16
"""Sets smaller than this say nothing about a distribution."""


def kid(features: torch.Tensor, reference: torch.Tensor) -> float:
    """Kernel inception distance, unbiased: about 0 for two sets from one distribution, whatever their size.

    ``MMD² = mean k(x, x') + mean k(y, y') − 2 · mean k(x, y)`` over different pictures, with the kernel
    ``k(x, y) = (x·y / width + 1)³`` (Bińkowski et al., arXiv:1801.01401), over all pairs instead of random subsets.

    Raises:
        AccelError: for sets of fewer than `FEWEST` pictures or of different width.
    """
    _check(features, reference)
    x, y = features.double(), reference.double()
    return float(_within(x) + _within(y) - 2 * _kernel(x, y).mean())


def fid(features: torch.Tensor, reference: torch.Tensor) -> float:
    """Fréchet distance of two sets of features (Heusel et al., arXiv:1706.08500).

    It is biased: small sets look far apart even if they are alike. Compare only values at one number of pictures,
    beside the distance of two halves of the reference.

    Raises:
        AccelError: as `kid`, and where torchmetrics is missing.
    """
    _check(features, reference)
    extractor = _AsTheyAre(features.shape[1])
    metric = torchmetrics("torchmetrics.image.fid").FrechetInceptionDistance(feature=extractor, normalize=True)
    metric.set_dtype(torch.float64)
    metric.update(reference.double(), real=True)
    metric.update(features.double(), real=False)
    return float(metric.compute())


class _AsTheyAre(torch.nn.Identity):
    """An extractor for features that are extracted already, in the form that torchmetrics asks for."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.num_features: int = width


def _kernel(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (x @ y.T / x.shape[1] + 1) ** 3


def _within(x: torch.Tensor) -> torch.Tensor:
    """Mean kernel of all pairs of different pictures."""
    values = _kernel(x, x)
    return (values.sum() - values.diagonal().sum()) / (len(x) * (len(x) - 1))


def _check(features: torch.Tensor, reference: torch.Tensor) -> None:
    if features.ndim != 2 or reference.ndim != 2 or features.shape[1] != reference.shape[1]:
        raise AccelError(
            f"features must be (pictures, width) of one width, not {tuple(features.shape)} and {tuple(reference.shape)}"
        )
    fewest = min(len(features), len(reference))
    if fewest < FEWEST:
        raise AccelError(f"{fewest} pictures are too few for a distance of sets: draw at least {FEWEST}")

"""What else can be measured of a picture: any distance of two batches, LPIPS, or likeness to the prompt."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch

from accel.errors import AccelError
from accel.measure.extras import torchmetrics


class Metric(Protocol):
    """A number per picture.

    Attributes:
        name: In files and tables.
        about: Tells results of other weights apart.
    """

    name: str
    about: str

    def check(self, prompts: Sequence[str]) -> None:
        """Told of all prompts before anything is drawn: the place to warn, or to raise `AccelError`."""

    def __call__(self, pictures: torch.Tensor, truth: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Values ``(batch,)`` for pictures and the long run's pictures, both ``(batch, 3, height, width)`` in 0 … 1."""


class Distance:
    """A perceptual distance of yours as a metric.

    Args:
        distance: Takes pictures and the long run's pictures ``(batch, 3, height, width)`` in 0 … 1, and returns
            ``(batch,)``, 0 for equal ones.
        name: In files and tables.
        about: Names its weights, so that results of others are refused where a measurement goes on.
    """

    def __init__(
        self,
        distance: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        name: str = "distance",
        about: str = "",
    ) -> None:
        self.distance, self.name, self.about = distance, name, about

    def check(self, prompts: Sequence[str]) -> None:
        """It does not look at prompts."""

    @torch.no_grad()
    def __call__(self, pictures: torch.Tensor, truth: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """The distances."""
        return self.distance(pictures, truth).reshape(len(pictures))


BACKBONES = {"alex": "AlexNet_Weights", "vgg": "VGG16_Weights", "squeeze": "SqueezeNet1_1_Weights"}
"""Backbones of LPIPS, by torchvision's name of their weights."""


def lpips(backbone: str = "alex", device: str | torch.device = "cpu") -> Distance:
    """LPIPS (Zhang et al., arXiv:1801.03924) as torchmetrics computes it: 0 for equal pictures, more for unlike ones.

    The linear layers come with torchmetrics; the backbone and its weights come from torchvision, which is no dependency
    of this package, and nothing is downloaded here.

    Raises:
        AccelError: saying what is missing and how to get it: torchmetrics, torchvision, or the weights.
    """
    if backbone not in BACKBONES:
        raise AccelError(f"LPIPS has no backbone {backbone!r}: there are {', '.join(BACKBONES)}")
    kind = torchmetrics("torchmetrics.image.lpip").LearnedPerceptualImagePatchSimilarity
    file = _weights(backbone)
    net = kind(net_type=backbone).net.to(device)

    def distance(pictures: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = net(*(batch.clamp(0, 1).to(device) for batch in (pictures, truth)), normalize=True)
        return found.cpu()

    return Distance(distance, f"LPIPS ({backbone})", file)


def _weights(backbone: str) -> str:
    """The name of the weights' file in PyTorch's cache, where it is."""
    try:
        models: Any = importlib.import_module("torchvision.models")
    except ImportError:
        raise AccelError(
            "LPIPS needs torchvision for its backbone: pip install torchvision, or bring a distance of your own "
            "(accel.measure.metrics.Distance)"
        ) from None
    url = getattr(models, BACKBONES[backbone]).DEFAULT.url
    file = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    if not file.exists():
        raise AccelError(f"LPIPS needs the weights of {backbone}, which are not at hand: put {url} into {file.parent}")
    return file.name

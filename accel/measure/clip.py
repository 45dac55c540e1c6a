"""CLIPScore: how well a picture fits its prompt, by a CLIP model that the user has."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from accel import console
from accel.errors import AccelError, AccelWarning
from accel.measure.identity import checksum

_FILES = (("config.json",), ("tokenizer.json", "vocab.json"), ("preprocessor_config.json", "processor_config.json"))
"""What a folder needs, each under one of its names; libraries make up an empty tokenizer rather than complain."""


class ClipScore:
    """CLIPScore (Hessel et al., arXiv:2104.08718): ``100 · max(cos(picture, prompt), 0)``, more is better.

    The paper writes ``w · max(cos, 0)`` with ``w = 2.5``, and prefixes captions with "A photo depicts". This is the
    convention of torchmetrics and of most reports on text-to-image models: ``w = 100``, and the prompt as it is.

    Args:
        source: A folder with a CLIP model and its processor, as `save_pretrained` writes them; or a hub id
            (``owner/name``), which is the only case that may use the network.
        device: Where to run it.

    Raises:
        AccelError: when it cannot be loaded, or lacks weights.
    """

    name = "CLIPScore"

    def __init__(self, source: str | Path, device: str | torch.device = "cpu") -> None:
        self._model, self._processor = _load(source)
        self._model.to(device).eval()
        self._longest = self._model.config.text_config.max_position_embeddings
        self.about = checksum([self._model])

    def check(self, prompts: Sequence[str]) -> None:
        """Warn of prompts of which only the beginning is read."""
        lengths = [len(ids) for ids in self._processor.tokenizer(list(prompts))["input_ids"]]
        if long := sum(length > self._longest for length in lengths):
            warnings.warn(
                f"CLIPScore reads the first {self._longest} tokens: {long} of {len(prompts)} prompts are longer",
                AccelWarning,
                stacklevel=2,
            )

    @torch.no_grad()
    def __call__(self, pictures: torch.Tensor, truth: torch.Tensor, prompts: Sequence[str]) -> torch.Tensor:
        """Scores ``(batch,)`` of pictures ``(batch, 3, height, width)`` in 0 … 1, in 8 bits as they are saved."""
        images = [(picture.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy() for picture in pictures]
        text = {"padding": True, "truncation": True, "max_length": self._longest}
        inputs = self._processor(text=list(prompts), images=images, return_tensors="pt", **text)
        # The model's own call, because what its parts return differs between versions of transformers.
        found = self._model(**inputs.to(self._model.device))
        return 100 * torch.cosine_similarity(found.image_embeds, found.text_embeds).clamp(min=0).cpu()


def _load(source: str | Path) -> tuple[Any, Any]:
    from transformers import CLIPModel, CLIPProcessor

    folder = Path(source).expanduser()
    local = folder.is_dir()
    if local and (missing := [names for names in _FILES if not any((folder / name).exists() for name in names)]):
        raise AccelError(f"{folder} holds no CLIP model with its processor: it lacks {' or '.join(missing[0])}")
    if not local and (isinstance(source, Path) or str(source).count("/") != 1 or str(source)[0] in "./~"):
        raise AccelError(f"no CLIP model {source}: it is neither a folder nor a hub id (owner/name)")
    try:
        with console.quiet_libraries():
            name = str(folder) if local else str(source)
            options = {"local_files_only": local, "use_safetensors": True}
            model, about = CLIPModel.from_pretrained(name, output_loading_info=True, **options)
            processor = CLIPProcessor.from_pretrained(name, local_files_only=local)
    except Exception as error:  # libraries raise nearly anything for broken files
        raise AccelError(f"the CLIP model {source} cannot be loaded: {console.one_line(error)[:200]}") from error
    if gaps := sorted(about["missing_keys"]):
        raise AccelError(f"{source} lacks weights of a CLIP model, {gaps[0]} among them: save or copy it again")
    return model, processor

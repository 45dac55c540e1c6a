"""Stage 1b: the text encoder, taught to state the facts of a caption before any picture is drawn.

Like the text encoder of a large pipeline it is trained first and then frozen: the denoiser starts
with words that are already told apart and bound to each other ("red" to "star", not to "square").
Trained jointly instead, it has to learn this through the noise of the denoiser's gradient.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import CLIPTextModel

from accel.tiny.models import make_text_encoder
from accel.tiny.scenes import RELATIONS, Scene, SceneObject, make_scene
from accel.tiny.tokens import MAX_TOKENS, make_tokenizer
from accel.tiny.training.latents import tokenize
from accel.tiny.training.loop import load_average
from accel.tiny.world import BACKGROUNDS, COLOURS, LANDSCAPES, PLACES, SHAPES, SPRITES

SLOTS = 5
"""The last tokens of a prompt restate its objects, one each: the encoder is causal, and only they
have read the whole caption."""

_VALUES: dict[str, tuple[object, ...]] = {
    "noun": (None, *SHAPES, *SPRITES),
    "colour": (None, *COLOURS),
    "count": (0, 1, 2, 3, 4),
    "scale": (None, "big", "small"),
    "place": (None, *PLACES),
    "role": (None, *((relation, index) for relation in RELATIONS for index in (0, 1))),
}
_GROUNDS = (None, *BACKGROUNDS, *LANDSCAPES)
_ABSENT = {name: values[0] for name, values in _VALUES.items()}

Facts = list[tuple[int, dict[str, object]]]
"""Token index and the facts that token must state."""


def object_facts(scene: Scene) -> Facts:
    """What the tokens of ``scene.caption`` must state about its objects.

    The last word of every mention states its own facts, the last `SLOTS` tokens those of all objects
    in order (where the caption leaves them free).
    """
    own = [_facts(item) for item in scene.objects]
    roles = [(scene.relation, i) if scene.relation and i < 2 else None for i in range(len(own))]
    restated = [facts | {"role": role} for facts, role in zip(own, roles, strict=True)]
    restated += [_ABSENT] * (SLOTS - len(own))
    ends = _mention_ends(scene)
    first = MAX_TOKENS - SLOTS
    found: Facts = list(zip(ends, own, strict=True))
    if _words(scene.caption) + 2 <= first:
        found += [(first + slot, facts) for slot, facts in enumerate(restated)]
    return found


def _facts(item: SceneObject) -> dict[str, object]:
    return {name: getattr(item, name) for name in ("noun", "colour", "count", "scale", "place")}


def _words(text: str) -> int:
    """Tokens of a text of the grammar: its words and commas."""
    return len(text.replace(",", " ,").split())


def _mention_ends(scene: Scene) -> list[int]:
    """Token index of the last word of every mention; the start token is number 0."""
    ends, start = [], 0
    for item in scene.objects:
        start = scene.caption.index(item.phrase, start) + len(item.phrase)
        ends.append(_words(scene.caption[:start]))
    return ends


class TextTask:
    """Learns to state the facts of captions through linear heads, which are then thrown away."""

    def __init__(self, text_encoder: CLIPTextModel) -> None:
        width = text_encoder.config.hidden_size
        self.text_encoder = text_encoder
        self.heads = nn.ModuleDict({name: nn.Linear(width, len(values)) for name, values in _VALUES.items()})
        self.ground = nn.Linear(width, len(_GROUNDS))
        self.tokenizer = make_tokenizer()

    def modules(self) -> Iterable[nn.Module]:
        """Encoder, then heads."""
        return (self.text_encoder, self.heads, self.ground)

    def loss(self, batch: int, seed: int) -> Tensor:
        """Mean cross-entropy of every fact of ``batch`` fresh captions."""
        scenes = [make_scene(seed * 4096 + i) for i in range(batch)]
        scores, targets, ground, grounds = self._read(scenes)
        losses = [F.cross_entropy(scores[name], targets[name]) for name in scores]
        return torch.stack([*losses, F.cross_entropy(ground, grounds)]).mean()

    @torch.inference_mode()
    def accuracy(self, count: int = 1000) -> float:
        """Share of held-out captions of which every fact is stated right."""
        scenes = [make_scene(i, held_out=True) for i in range(count)]
        right = []
        for scene in scenes:
            scores, targets, ground, grounds = self._read([scene])
            right.append(
                all(bool((scores[name].argmax(-1) == targets[name]).all()) for name in scores)
                and bool((ground.argmax(-1) == grounds).all())
            )
        return sum(right) / count

    def _read(self, scenes: list[Scene]) -> tuple[dict[str, Tensor], dict[str, Tensor], Tensor, Tensor]:
        """Scores and right answers, of the objects' facts by name and of the backgrounds."""
        device = self.ground.weight.device
        tokens = tokenize(self.tokenizer, [scene.caption for scene in scenes]).to(device)
        states = self.text_encoder(tokens).last_hidden_state
        scores: dict[str, Tensor] = {}
        targets: dict[str, Tensor] = {}
        facts = [(row, at, said) for row, scene in enumerate(scenes) for at, said in object_facts(scene)]
        for name, values in _VALUES.items():
            asked = [(row, at, values.index(said[name])) for row, at, said in facts if name in said]
            if asked:
                rows, at, answers = torch.tensor(asked, device=device).unbind(1)
                scores[name], targets[name] = self.heads[name](states[rows, at]), answers
        ends = torch.tensor([_words(scene.caption) + 1 for scene in scenes], device=device)
        ground = self.ground(states[torch.arange(len(scenes), device=device), ends])
        stated = [scene.background if scene.background_stated else None for scene in scenes]
        return scores, targets, ground, torch.tensor([_GROUNDS.index(name) for name in stated], device=device)


def make_task() -> TextTask:
    """The task of a run, with fresh weights."""
    return TextTask(make_text_encoder(make_tokenizer()))


def save(task: TextTask, checkpoint: Path, out: Path) -> Path:
    """Write the moving average of a checkpoint's encoder as ``out/text_encoder``."""
    load_average(task.modules(), checkpoint)
    task.text_encoder.save_pretrained(out / "text_encoder")
    return out / "text_encoder"


def load(out: Path) -> CLIPTextModel:
    """Read the text encoder of a run.

    Raises:
        ValueError: if it is missing.
    """
    folder = out / "text_encoder"
    if not folder.exists():
        raise ValueError(f"no text encoder in {out}: run the stage 'text' first")
    model = make_text_encoder(make_tokenizer())
    # Built anew, not loaded by folder: a loaded model would write that folder's path into its config.
    model.load_state_dict(load_file(folder / "model.safetensors"))
    return model

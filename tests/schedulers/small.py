"""A small pipeline with seeded weights that reads prompts."""

from __future__ import annotations

from typing import Any

from diffusers import StableDiffusionPipeline
from transformers import CLIPTextConfig, CLIPTextModel

from accel.tiny.tokens import MAX_TOKENS, make_tokenizer
from tests.families import case
from tests.families.core import quiet
from tests.families.seeding import seed_weights
from tests.families.unets import TEXT_DIM


def small() -> Any:
    """Stable Diffusion over the bundled words, 16 by 16 pixels; the same weights each time."""
    tokenizer = make_tokenizer()
    text = CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=TEXT_DIM,
        intermediate_size=2 * TEXT_DIM,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=MAX_TOKENS,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    made = case("sd").build()
    parts = {**made.components, "tokenizer": tokenizer, "text_encoder": seed_weights(CLIPTextModel(text), 5)}
    return quiet(StableDiffusionPipeline(**parts, requires_safety_checker=False))

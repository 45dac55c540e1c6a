"""The tokenizer of the bundled pipeline: a CLIP tokenizer in which every known word is one token."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPTokenizer

from accel.tiny.world import words

MAX_TOKENS = 40
"""Length of a prompt in tokens, start and end included; the longest caption needs all 40."""

START, END = "<|startoftext|>", "<|endoftext|>"
_WORD_END = "</w>"

Pair = tuple[str, str]


def learn_merges(vocabulary: Iterable[str]) -> list[Pair]:
    """Byte-pair merges of a word list, learnt until every word is a single piece.

    Written out here because the ids must be the same in every process and on every machine; the
    library's trainer breaks ties by the order of a hash map.
    """
    pieces = [[*word[:-1], word[-1] + _WORD_END] for word in vocabulary]
    merges: list[Pair] = []
    while counts := Counter(pair for parts in pieces for pair in zip(parts, parts[1:], strict=False)):
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        pieces = [_merge(parts, best) for parts in pieces]
    return merges


def _merge(parts: list[str], pair: Pair) -> list[str]:
    merged: list[str] = []
    for part in parts:
        if merged and (merged[-1], part) == pair:
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def make_tokenizer() -> CLIPTokenizer:
    """Build the tokenizer from the world's words; any other text falls apart into known bytes."""
    alphabet = sorted(ByteLevel.alphabet())
    merges = learn_merges(words())
    entries = [*alphabet, *(letter + _WORD_END for letter in alphabet)]
    entries += [left + right for left, right in merges]
    entries += [START, END]
    vocabulary = {entry: index for index, entry in enumerate(dict.fromkeys(entries))}
    return CLIPTokenizer(vocab=vocabulary, merges=merges, model_max_length=MAX_TOKENS)

"""Where diffusers' caches are wrong, read off what they would hook and off the pipeline: no model is named here."""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from typing import Any

from diffusers.hooks._common import _TEMPORAL_TRANSFORMER_BLOCK_IDENTIFIERS as _TEMPORAL

from accel.caches.native.lifting import Lifted
from accel.target import Denoiser, Target


def misfit(kind: str, halves: bool, target: Target, denoiser: Denoiser, hooks: Sequence[Lifted]) -> str | None:
    """Why a cache of this kind, which would hook these modules, gives wrong outputs or none at all.

    ``halves``: it leaves out the unconditional half of a batch. ``None`` when nothing speaks against it.
    """
    inner = [each for each in hooks if each.path]
    if not inner:
        return "none of its modules would be hooked" + (_patterns(denoiser) if kind == "taylor" else "")
    if kind == "taylor":
        return _zeros(inner)
    if kind in ("first_block", "mag", "sea") and (reason := _not_one_stack(inner)):
        return reason
    if kind == "first_block":
        return _unlike_ends(inner)
    if kind == "sea" and not any(getattr(each.hook, "raw_vision_callback", None) for each in hooks):
        return "diffusers does not know how to read its latents, so every step would be computed"
    if halves and _guided_apart(target.pipe):
        return "the pipeline calls it once per guidance branch, and there is no half of a batch to leave out"
    return None


def _patterns(denoiser: Denoiser) -> str:
    """Default patterns stand for whole names, which many models' attention does not have."""
    names = {site.name.rpartition(".")[2] for site in denoiser.of_kind("self_attn", "cross_attn", "joint_attn")}
    identifiers = [rf".*\.{name}" for name in sorted(names)]
    return f": name them with options={{'cache_identifiers': {identifiers}}}" if names else ""


def _zeros(inner: Sequence[Lifted]) -> str | None:
    """Skipped modules hand on zeros: harmless only where the output of something behind them is predicted."""
    zeroed = [each.hook.state_manager._init_kwargs["is_inactive"] for each in inner]
    return "the modules it skips hand on zeros, and nothing behind them is predicted" if all(zeroed) else None


def _not_one_stack(inner: Sequence[Lifted]) -> str | None:
    """Residuals are taken from the first to the last block in order of registration."""
    lists = {each.path.partition(".")[0] for each in inner}
    turns = lists.intersection(_TEMPORAL)
    return f"the blocks of {' and '.join(sorted(lists))} take turns" if turns and len(lists) > 1 else None


def _unlike_ends(inner: Sequence[Lifted]) -> str | None:
    """Takes the difference of what the first and the last block return, and of what the first one is given."""
    first, last = (_metadata(inner[end]) for end in (0, -1))
    if first.hidden_states_argument_name != "hidden_states":
        return f"its blocks call their input {first.hidden_states_argument_name}, and it looks for hidden_states"
    if (first.return_encoder_hidden_states_index is None) != (last.return_encoder_hidden_states_index is None):
        return "its first and its last block return different things, of which it takes the difference"
    return None


def _metadata(each: Lifted) -> Any:
    return each.hook._metadata


def _guided_apart(pipe: Any) -> bool:
    """Does the source of the loop enter a context for an unconditional call? What it does not show, a run will."""
    try:
        source = inspect.getsource(type(pipe).__call__)
    except (OSError, TypeError):
        return False
    return re.search(r"cache_context\(\s*[\"']uncond[\"']", source) is not None

"""Tiny, seeded, offline diffusers pipelines of every family, for tests.

``CASES`` holds one ``Case`` per pipeline form. ``case(name).build()`` makes a fresh pipeline,
``run(case, pipe)`` runs it, ``with_scheduler(pipe, "heun")`` swaps its solver.
"""

from __future__ import annotations

from tests.families.audio import AUDIO_CASES
from tests.families.bundled import BUNDLED_CASE
from tests.families.core import GUIDANCE_MODES, Case, run
from tests.families.pictures import PICTURE_CASES
from tests.families.schedulers import scheduler_names, with_scheduler
from tests.families.unet_forms import UNET_FORM_CASES
from tests.families.unets import UNET_CASES
from tests.families.unusual import UNUSUAL_CASES
from tests.families.video import VIDEO_CASES

_ALL = UNET_CASES + UNET_FORM_CASES + PICTURE_CASES + VIDEO_CASES + AUDIO_CASES + UNUSUAL_CASES
CASES: dict[str, Case] = {item.name: item for item in _ALL}


def case(name: str) -> Case:
    """The case of that name; ``tiny`` is the bundled pipeline, which is not in ``CASES``."""
    known = {**CASES, BUNDLED_CASE.name: BUNDLED_CASE}
    if name not in known:
        raise KeyError(f"no case {name!r}; there are {', '.join(known)}")
    return known[name]


__all__ = ["CASES", "GUIDANCE_MODES", "Case", "case", "run", "scheduler_names", "with_scheduler"]

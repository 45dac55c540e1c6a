"""What the rows of a schedule are called, and which sites of a pipeline they mean.

A row is named after one site (``transformer.transformer_blocks.0.ff``), a kind (``self_attn``, ``ff``; ``region`` is
the stretch that DeepCache skips), a component by its module's name (``attn1``, ``ff``) or by the papers' words
(``attn``, ``mlp``), or a component of one block of a transformer (``attn-3``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from accel.sites import Kind, Site, Unreadable, blocks
from accel.target import Denoiser, Target

KINDS: tuple[Kind, ...] = ("self_attn", "joint_attn", "cross_attn", "ff")
"""What transformer blocks are made of, in UNets too."""

WORDS: Mapping[str, tuple[Kind, ...]] = {
    "attn": ("self_attn", "joint_attn"),
    "cross": ("cross_attn",),
    "mlp": ("ff",),
}
"""What the papers' words mean here."""


def split(row: str) -> tuple[str, int | None]:
    """``"attn-3"`` → component and block, ``"attn1"`` → component and ``None``."""
    component, dash, block = row.rpartition("-")
    return (component, int(block)) if dash and block.isdecimal() else (row, None)


def sites_of(target: Target, kinds: Iterable[str]) -> list[Site]:
    """The sites of these kinds in every denoiser, ``region`` included."""
    return [site for denoiser in target.denoisers for site in layers(denoiser, kinds)]


def layers(denoiser: Denoiser, kinds: Iterable[str]) -> list[Site]:
    """The sites of these kinds in one denoiser, in order of execution."""
    wanted = set(kinds)
    return [site for site in _sites(denoiser) if site.kind in wanted]


def assign(rows: Sequence[str], target: Target) -> tuple[dict[Site, str], list[str]]:
    """(site → the row that says what to do there, what is wrong with the rows)."""
    found: dict[Site, str] = {}
    problems = []
    own = {site.name for denoiser in target.denoisers for site in _sites(denoiser)}
    for row in sorted(rows, key=own.__contains__):  # a site's own row comes last and wins
        matching = [site for denoiser in target.denoisers for site in _matching(denoiser, row)]
        twice = [site for site in matching if site in found and site.name != row]
        if not matching:
            problems.append(f"nothing here is called {row!r}: {'; '.join(map(_offer, target.denoisers))}")
        elif twice:
            problems.append(f"rows {found[twice[0]]!r} and {row!r} both mean {twice[0].name}: keep one of them")
        found |= dict.fromkeys(matching, row)
    return found, problems


def _matching(denoiser: Denoiser, row: str) -> list[Site]:
    component, block = split(row)
    everywhere = _named(denoiser, component)
    if block is None:
        return everywhere or [site for site in _sites(denoiser) if site.name == row]
    places = [path for path, _ in blocks(denoiser.module)] if denoiser.family == "dit" else []
    inside = f"{denoiser.name}.{places[block]}." if block < len(places) else ""
    return [site for site in everywhere if inside and site.name.startswith(inside)]


def _named(denoiser: Denoiser, component: str) -> list[Site]:
    """By kind, else by the module's own name, else by the papers' word."""
    modules = [site for site in _sites(denoiser) if site.name.rpartition(".")[2] == component]
    return layers(denoiser, [component]) or modules or layers(denoiser, WORDS.get(component, ()))


def _sites(denoiser: Denoiser) -> list[Site]:
    return [*denoiser.sites, *_region(denoiser)]


def _region(denoiser: Denoiser) -> list[Site]:
    try:
        return [denoiser.deep()]
    except Unreadable:
        return []


def _offer(denoiser: Denoiser) -> str:
    kinds = ", ".join(dict.fromkeys(site.kind for site in _sites(denoiser)))
    count = f" in blocks 0 to {denoiser.depth - 1}" if denoiser.family == "dit" else ", and no numbered blocks"
    return f"{denoiser.name} ({type(denoiser.module).__name__}) has {kinds}{count}"

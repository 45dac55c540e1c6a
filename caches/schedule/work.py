"""How much work the rows of a schedule stand for: operations, counted while one picture is drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from accel.measure.flops import count
from accel.sites import Site
from accel.target import Target


def by_kind(target: Target, sites: Iterable[Site], draw: Callable[[], object]) -> dict[str, float]:
    """Kind of site → its share of the operations of ``draw()``; of their number where none were counted.

    Inside of compiled modules nothing is counted.
    """
    operations = count(draw).modules
    roots = {denoiser.name: type(denoiser.module).__name__ for denoiser in target.denoisers}
    found: dict[str, float] = {}
    numbers: dict[str, float] = {}
    for site in sites:
        modules = [module for _, module in site.interior] + [site.module]
        own = {m: path for d in target.denoisers if d.name == site.denoiser for path, m in d.module.named_modules()}
        ran = sum(operations.get(f"{roots[site.denoiser]}.{own[module]}", 0) for module in modules)
        found[site.kind] = found.get(site.kind, 0.0) + ran
        numbers[site.kind] = numbers.get(site.kind, 0.0) + 1.0
    shares = found if all(found.values()) else numbers
    whole = sum(shares.values())
    return {kind: share / whole for kind, share in shares.items()}

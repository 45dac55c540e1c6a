"""Checks of what a run gives, and that no run leaves anything to the next."""

from __future__ import annotations

import json
from collections.abc import Iterator

from accel.contract.bench import Bench, Broken, NotChecked, breaking, difference
from accel.contract.census import predicted
from accel.plan import Plan
from accel.target import Target


def deterministic(bench: Bench) -> Iterator[str]:
    """two plain runs give the same bits"""
    if problem := difference(bench.draw(), bench.plain):
        yield f"the second plain run {problem}: `draw` must fix every seed"


def finite(bench: Bench) -> Iterator[str]:
    """the output has no NaN and no infinity"""
    if not bench.plain.isfinite().all():
        raise NotChecked("the plain output is not finite either")
    if not bench.fast.isfinite().all():
        yield "the output is not finite: something that was not computed reached it"


def hits(bench: Bench) -> Iterator[str]:
    """every technique predicted something, or computed it in a lighter way"""
    for name, technique in bench.report.techniques.items():
        if not technique.predicted and not technique.lighter:
            yield f"{name} saved nothing in {bench.report.steps_run} steps ({_reasons(technique.declined)})"


def counts(bench: Bench) -> Iterator[str]:
    """the report agrees with what plain torch hooks count"""
    report, plain, fast = bench.report, bench.plain_census, bench.fast_census
    names = [denoiser.name for denoiser in Target.of(bench.pipe).denoisers]
    yield from _unequal("denoiser calls", sum(report.calls.values()), sum(map(fast.calls, names)))
    yield from _unequal("rows asked for", report.rows, sum(map(fast.total, names)))
    changed = [name for name in fast.changed() if name not in names]
    inner = [plain.witness(name, changed) for name in names if plain.calls(name)]
    if None not in inner:
        yield from _unequal("rows computed", report.rows_computed, sum(fast.total(str(name)) for name in inner))
        yield from _unequal("calls computed", report.calls_computed, sum(fast.calls(str(name)) for name in inner))
    for name, technique in report.techniques.items():
        counted = predicted(name, plain, fast)
        if counted is not None:
            yield from _unequal(f"{name} cells predicted", technique.predicted, counted)


def cache_freed(bench: Bench) -> Iterator[str]:
    """nothing is kept after a run"""
    with bench.attached() as handle:
        bench.draw()
        if kept := handle.report().cache_bytes:
            yield f"{kept} bytes are still kept after the run"


def repeat(bench: Bench) -> Iterator[str]:
    """the same run twice gives the same bits"""
    with bench.attached():
        for which in ("first", "second"):
            if problem := difference(bench.draw(), bench.fast):
                yield f"the {which} run after attaching again {problem}"


def other_steps_between(bench: Bench) -> Iterator[str]:
    """a run at another step count in between changes nothing"""
    with bench.attached():
        bench.draw()
        bench.draw(steps=max(2, bench.steps // 2))
        if problem := difference(bench.draw(), bench.fast):
            yield f"the run after one with fewer steps {problem}"


def abort_in_denoiser(bench: Bench) -> Iterator[str]:
    """a run broken off inside the denoiser does not change the next one"""
    with bench.attached() as handle:
        for after in _late(bench):
            broken_in_denoiser(bench, after)
            if kept := handle.report().cache_bytes:
                yield f"{kept} bytes are still kept after the error"
            if problem := difference(bench.draw(), bench.fast):
                yield f"the run after one that broke in denoiser call {after} {problem}"


def abort_between_steps(bench: Bench) -> Iterator[str]:
    """a run broken off between two steps does not change the next one"""
    with bench.attached():
        for after in _late(bench):
            broken_between_steps(bench, after)
            if problem := difference(bench.draw(), bench.fast):
                yield f"the run after one that broke after step {after} {problem}"


def json_round_trip(bench: Bench) -> Iterator[str]:
    """the plan survives JSON"""
    again = Plan.from_dict(json.loads(json.dumps(bench.plan.to_dict())))
    if again != bench.plan:
        yield f"the plan {bench.plan} came back as {again}"
    with bench.attached(again):
        if problem := difference(bench.draw(), bench.fast):
            yield f"the run under the plan that was read back {problem}"


def broken_in_denoiser(bench: Bench, after: int) -> None:
    """Start a run of which denoiser call number ``after`` fails, inside the network."""
    first = Target.of(bench.pipe).denoisers[0].name
    inner = bench.plain_census.witness(first, [name for name in bench.fast_census.changed() if name != first])
    if inner is None:
        raise NotChecked(f"no module of {first} runs once in every call")
    _break_off(bench, inner, after)


def _break_off(bench: Bench, inner: str, after: int) -> None:
    calls = iter(range(after))

    def raising(*_: object) -> None:
        if next(calls, None) is None:
            raise Broken("the denoiser was broken off on purpose")

    hook = bench.modules[inner].register_forward_pre_hook(raising)
    try:
        bench.draw()
    except Broken:
        return
    finally:
        hook.remove()
    raise NotChecked(f"the run has fewer than {after} denoiser calls")


def broken_between_steps(bench: Bench, after: int) -> None:
    """Start a run that fails when step number ``after`` should be taken, as an error in a step callback does."""
    with breaking(bench.pipe.scheduler, "step", after):
        try:
            bench.draw()
        except Broken:
            return
    raise NotChecked(f"the run has fewer than {after} steps")


def _late(bench: Bench) -> tuple[int, ...]:
    """Break early, where values are being gathered, and late, where they are used."""
    return 1, max(2, bench.report.steps_run * 2 // 3)


def _unequal(what: str, reported: int, counted: int) -> Iterator[str]:
    if reported != counted:
        yield f"{what}: the report says {reported}, counted were {counted}"


def _reasons(declined: dict[str, int]) -> str:
    return "; ".join(declined) or "no reason given"

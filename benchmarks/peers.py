"""Public caches beside this toolkit's, on the same pipeline, in one interleaved run.

    pip install --no-deps --target ../peers DeepCache tgate cache-dit dit-smoothcache
    python -m benchmarks.peers --peers-path ../peers

From the root of the repository. Each peer is one more arm of ``accel bench``: its own code, switched on before a draw
and off after it, where switching is not timed. Everything it leaves on the pipeline or its classes is put back. A peer
that cannot be imported, or fails on the installed versions, has its error in the results instead of numbers. Peers for
transformers are left out on a UNet and the other way round: without a trained network of their kind there is no
quality to measure. Results go to ``results/peers-<model>-<steps>``; broken off, it goes on when it is repeated.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, redirect_stdout
from dataclasses import dataclass, field, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import nn

from accel import console
from accel.commands import drawing
from accel.commands.bench import JOURNAL, PAGE, PLOT, RESULTS, call_arguments, prompts_and_judge
from accel.measure import arms, results, solvers, tabulate
from accel.measure.bench import Bench, Setup
from accel.measure.plot import pareto
from accel.plan import Plan
from accel.sites import Family
from accel.target import Target

FOLDER = Path(__file__).parent / "results"
DOCS = Path(__file__).parent.parent / "docs" / "peers.md"
"""Where the table goes, unless ``--out`` names another folder."""

OURS: dict[Family, tuple[str, ...]] = {
    "unet": ("balanced", "deepcache", "deepcache(how=reuse)", "tgate", "tgate(cutoff=cond)", "lossless"),
    "dit": ("balanced", "deepcache", "deepcache(how=reuse)", "fora", "residual"),
}
"""What the peers stand beside."""

Switch = Callable[[Any, int], AbstractContextManager[None]]
"""``switch(pipe, steps)``: inside of the block calls of ``pipe``, of that many steps, go through the peer."""


@dataclass(frozen=True)
class Peer:
    """A public package with some settings."""

    package: str
    family: Family
    switch: Switch


def deepcache(interval: int) -> Switch:
    """horseee/DeepCache; what it keeps is only cleared by switching it, which is done for every draw."""

    @contextmanager
    def switch(pipe: Any, steps: int) -> Iterator[None]:
        helper = importlib.import_module("DeepCache").DeepCacheSDHelper(pipe=pipe)
        helper.set_params(cache_interval=interval, cache_branch_id=0)
        helper.enable()
        try:
            yield
        finally:
            helper.disable()

    return switch


@contextmanager
def tgate(pipe: Any, steps: int) -> Iterator[None]:
    """HaozheLiu-ST/T-GATE: a copy of the pipeline's call under another name; the gate as in its examples, at 40 %."""
    loaded = importlib.import_module("tgate").TgateSDLoader(pipe)
    gate = max(2, round(0.4 * steps))

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        return loaded.tgate(*args, gate_step=gate, **kwargs)

    pipe.__class__ = type(type(pipe).__name__, (type(pipe),), {"__call__": call})  # `put_back` undoes it
    yield


@contextmanager
def cache_dit(pipe: Any, steps: int) -> Iterator[None]:
    """vipshop/cache-dit: DBCache with one block to decide by, since small networks do not have the default's eight."""
    package = importlib.import_module("cache_dit")
    config = package.DBCacheConfig(Fn_compute_blocks=1, max_warmup_steps=min(8, steps // 3))
    package.enable_cache(pipe, cache_config=config)
    try:
        yield
    finally:
        package.disable_cache(pipe)


@contextmanager
def smoothcache(pipe: Any, steps: int) -> Iterator[None]:
    """Roblox/SmoothCache: every second step, since the package on PyPI comes without its calibration."""
    denoiser = Target.of(pipe).denoisers[0].module
    schedule = [int(step % 2 == 0 or step == steps - 1) for step in range(steps)]
    helper = importlib.import_module("SmoothCache").DiffuserCacheHelper(denoiser, schedule={"attn1": schedule})
    helper.enable()
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
            yield  # it prints a line for every call of a module
    finally:
        helper.disable()


PEERS: dict[str, Peer] = {
    "DeepCache, interval 2": Peer("DeepCache", "unet", deepcache(2)),
    "DeepCache, interval 3": Peer("DeepCache", "unet", deepcache(3)),
    "T-GATE": Peer("tgate", "unet", tgate),
    "cache-dit, DBCache": Peer("cache-dit", "dit", cache_dit),
    "SmoothCache, every 2nd step": Peer("dit-smoothcache", "dit", smoothcache),
}


# --- peers as arms ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeerArm(arms.Arm):
    """A peer in the place of a plan. The plan has its name and nothing else, and is never attached."""

    peer: str = ""

    @contextmanager
    def ready(self, pipe: Any) -> Iterator[None]:
        """Inside of the block ``pipe`` has the arm's solver and goes through the peer."""
        with arms.Arm(self.steps, self.solver).ready(pipe), put_back(pipe), PEERS[self.peer].switch(pipe, self.steps):
            yield


@dataclass(frozen=True)
class PeerSetup(Setup):
    """A measurement with peers (name and version) among its arms."""

    peers: Mapping[str, str] = field(default_factory=dict)

    @property
    def arms(self) -> list[arms.Arm]:
        """Every way to draw."""
        peers = [arm(*peer, self.steps, solver) for solver in self.solvers for peer in self.peers.items()]
        return [*super().arms, *peers]


def arm(name: str, version: str, steps: int, solver: str = solvers.OWN) -> PeerArm:
    """The arm of a peer."""
    return PeerArm(steps, solver, Plan(name=f"{name} ({PEERS[name].package} {version})"), name)


@contextmanager
def put_back(pipe: Any) -> Iterator[None]:
    """Leave ``pipe``, its modules and their classes with the attributes they had, whatever happened in between."""
    modules = {m for part in pipe.components.values() if isinstance(part, nn.Module) for m in part.modules()}
    inner = [vars(m)[name] for m in modules for name in ("_modules", "_forward_hooks", "_forward_pre_hooks")]
    dicts = [(own, dict(own)) for own in (vars(pipe), *map(vars, modules), *inner)]
    classes = {cls: dict(vars(cls)) for cls in {type(thing) for thing in (pipe, *modules)}}
    kind = type(pipe)
    try:
        yield
    finally:
        pipe.__class__ = kind
        for own, before in dicts:
            own.clear()
            own.update(before)
        for cls, before in classes.items():
            _class_put_back(cls, before)


def _class_put_back(cls: type, before: Mapping[str, Any]) -> None:
    for name in set(vars(cls)) - set(before):
        delattr(cls, name)
    for name, value in before.items():
        if vars(cls)[name] is not value:
            setattr(cls, name, value)


def failure(pipe: Any, name: str, prompt: str, steps: int, call: Mapping[str, Any]) -> str | None:
    """The error with which a peer fails on ``pipe``, in one line; ``None`` where it draws."""
    try:
        with arm(name, "", steps).ready(pipe):
            arms.draw(pipe, [prompt], [0], steps, call)
    except Exception as error:  # whatever it is, it is the result
        return f"{type(error).__name__}: {console.one_line(error)}"
    return None


# --- the measurement -------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, write the results, print the table."""
    options = _options(arguments)
    sys.path.append(str(Path(options.peers_path).resolve()))
    prompts, judge = prompts_and_judge(options)
    pipe, call = drawing.open_pipeline(options.model, options.device), call_arguments(options)
    pipe.set_progress_bar_config(disable=True)
    family = Target.of(pipe).family
    fitting = [name for name, peer in PEERS.items() if peer.family == family]
    plain = arms.draw(pipe, prompts[:1], [0], options.steps, call)
    failed = {name: error for name in fitting if (error := failure(pipe, name, prompts[0], options.steps, call))}
    working = {name: metadata.version(PEERS[name].package) for name in fitting if name not in failed}
    setup = PeerSetup(
        model=options.model,
        prompts=prompts,
        plans=[Plan.of(text) for text in (*OURS[family], *options.also)],
        steps=options.steps,
        solvers=solvers.solvers(pipe),
        rounds=options.rounds,
        batch=options.batch,
        call=call,
        peers=working,
    )
    folder = Path(options.out or FOLDER / f"peers-{options.model}-{options.steps}")
    folder.mkdir(parents=True, exist_ok=True)
    with console.progress() as progress:
        bench = Bench(pipe, setup, folder / JOURNAL, judge, progress)
        items = bench.run()
    rows = [_told(row) for row in results.rows(setup, items, judge)]
    same = torch.equal(plain, arms.draw(pipe, prompts[:1], [0], options.steps, call))
    left_out = [name for name in PEERS if name not in fitting]
    more = {"failed": failed, "left_out": left_out, "plain_is_plain": same}
    document = results.document(setup, bench.head, items, rows) | more
    (folder / RESULTS).write_text(json.dumps(document) + "\n", encoding="utf-8")
    table = tabulate.page(f"Peers: {options.model}, {options.steps} steps", bench.head, rows)
    (folder / PAGE).write_text(table + notes(failed, left_out, same), encoding="utf-8")
    pareto(rows, folder / PLOT)
    if options.out is None:
        DOCS.write_text((folder / PAGE).read_text(encoding="utf-8"), encoding="utf-8")
    print(tabulate.text(rows, len(prompts)), notes(failed, left_out, same), f"wrote {folder}", sep="\n")


def _told(row: results.Row) -> results.Row:
    """A peer does not say how many cells it predicted; its operations do whether there were any."""
    return replace(row, predicted=int(row.flops < 1)) if isinstance(row.arm, PeerArm) else row


def notes(failed: Mapping[str, str], left_out: Sequence[str], same: bool) -> str:
    """What the table does not show."""
    lines = [f"- {name} fails with the installed versions: `{error}`" for name, error in failed.items()]
    if left_out:
        lines.append(f"- Left out, being for networks of another kind: {'; '.join(left_out)}.")
    lines.append(f"- The plain pipeline has {'the same' if same else 'OTHER'} bits after all peers as before.")
    return "\n" + "\n".join(lines) + "\n"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-path", required=True, help="folder that the peers were installed into")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--steps", type=int, default=25)
    parser.add_argument("--n", type=int, default=16, help="prompts")
    parser.add_argument("--prompts", default="bundled", help="bundled, or a file with one prompt per line")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--guidance", type=float)
    parser.add_argument("--size", type=int)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--also", nargs="*", default=(), metavar="PLAN", help="further plans of ours, such as a file")
    parser.add_argument("--out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()

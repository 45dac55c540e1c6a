"""How every command is called: its arguments, its help and its examples."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from typing import NoReturn

from accel import __version__
from accel.errors import AccelError

COMMANDS = tuple("generate bench tune fit calibrate schedule difficulty search check plans app".split())

_EXAMPLES = """examples:
  accel generate "two green squares and a red star" --compare --seed 7
      draw it plainly and with the preset 'balanced', and say what that saved and what it cost
  accel generate "a fox" --model ./my-pipeline --plan deepcache+guidance --out out/fox
      your own pipeline, two techniques by name
  accel bench --plans balanced,fast --n 48
      which plan beats taking fewer steps, by how much, at what quality?
  accel tune --floor "40 dB" --out plan.json
      the fastest plan that stays so close to the long run, if any beats fewer steps
  accel check ./my-pipeline --plan fast
      does this plan keep its promises on this pipeline?
  accel plans
      the presets and techniques to choose from"""

_GENERATE_EXAMPLE = """example:
  accel generate "two green squares and a red star" --model tiny --plan balanced --compare --seed 7 --out out/demo

With --compare the folder holds plain.png, accelerated.png, side-by-side.png and report.json. Times are medians of runs
that take turns after a warm-up. The plan is also held against the honest alternative, the plain pipeline with as many
steps as fit its time: both by their distance (PSNR) to the plain picture of the same seed with four times the steps."""

_BENCH_EXAMPLE = """examples:
  accel bench --model tiny --plans balanced,fast,deepcache+guidance --n 48 --out out/bench
  accel bench --model ./my-pipeline --plans balanced --prompts prompts.txt --n 16 --solvers own
  accel bench --compare old/results.json new/results.json

Every plan is held against the plain pipeline's own curve over step counts, for each solver that fits. Frontier gain is
the time the plain pipeline needs for a plan's quality, by taking fewer steps with the best solver, over the plan's
time: above 1 the plan is worth having. Results are kept one by one: a run that was broken off goes on when repeated."""

_TUNE_EXAMPLE = """examples:
  accel tune --model tiny --floor "40 dB" --minutes 10 --out plan.json
  accel tune --model tiny --floor "1 point" --steps 15 --n 200 --out plan.json

A floor in dB is the mean distance (PSNR) to the plain picture of the same seed with four times the steps. A floor in
points is how many in a hundred of the facts that prompts state may be lost; it needs the bundled prompts and model, and
for a small loss many prompts. What is measured is kept beside the plan (plan.jsonl): a search that was broken off
goes on when repeated, also with more minutes or another floor of the same kind."""

_CALIBRATE_EXAMPLE = """examples:
  accel calibrate --model tiny --target 0.5 --out schedule.json
  accel calibrate --model tiny --target-db 40 --how linear --out schedule.json

With --target and --alpha only plain runs are watched. With --target-db every prompt is drawn once more for each cell
and length of a skip, so take few prompts and steps; the chosen schedule is drawn for real and held against the goal."""

_SCHEDULE_EXAMPLE = """example:
  accel schedule --model tiny --solver dpm++ --steps 10 --out schedule.json

Half of the prompts choose the schedule, the other half judge it; where the solver's own is better, that one is kept.
The plan is used like any other, also by calls that ask for more steps: they take these."""

_FIT_EXAMPLE = """example:
  accel fit --model tiny --solver dpm++ --n 40 --out fitted.json"""

_DIFFICULTY_EXAMPLE = """example:
  accel difficulty collect --model tiny --solver dpm++ --n 96 --out out/difficulty
  accel difficulty evaluate out/difficulty --goal "30 dB"
  accel difficulty train out/difficulty --goal "30 dB" --out my-predictor

Collecting draws every prompt with every step count from several starting noises, and beside them a long run of the same
noise; broken off, the same command goes on. Evaluating holds a predictor that reads the text embedding against the best
constant step count, on prompts it was not trained on, and says whether it is worth having."""

_SEARCH_EXAMPLE = """examples:
  accel search "two green squares and a red star" --candidates 8 --compare --out out/search
  accel search "a fox" --model ./my-pipeline --verifier ./my-clip --steps 20 --keep 0.5
  accel search "a fox" --model ./my-pipeline --verifier my_package.judges:sharpness --method zero_order

A verifier is 'reader' (the bundled models' own, for prompts of their kind), the folder of a CLIP model, or a function
f(pictures, prompt) that gives each picture a score. With --keep candidates are looked at early, and only the share of
them with the best previews goes on. With --compare the same work is also spent on more steps of a single picture."""

_APP_EXAMPLE = """examples:
  accel app --open
  ACCEL_APP_AUTH=me:long-password accel app --host 0.0.0.0 --model tiny ./my-pipeline

Without --host only this machine reaches it. For any other address a user and a password must be set in the environment
variable ACCEL_APP_AUTH; --force-public does without, for networks in which everybody may use this machine."""

_CHECK_EXAMPLE = """example:
  accel check tiny --plan balanced

Exit code: 0 when every check passed, 1 when one failed or the plan was refused, 2 for a mistake in the call."""


class _Parser(argparse.ArgumentParser):
    """argparse, with its complaints in the form of all others."""

    def error(self, message: str) -> NoReturn:
        raise AccelError(f"{message}; see {self.prog} --help")


def parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    main_parser = _Parser(
        prog="accel",
        description="Make diffusers pipelines faster, and measure what that saves and what it costs.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    main_parser.add_argument("--version", action="version", version=f"accel {__version__}")
    commands = main_parser.add_subparsers(dest="command", required=True, metavar="COMMAND", title="commands")
    _add_generate(commands)
    _add_bench(commands)
    _add_tune(commands)
    _add_fit(commands)
    _add_calibrate(commands)
    _add_schedule(commands)
    _add_difficulty(commands)
    _add_search(commands)
    _add_check(commands)
    commands.add_parser("plans", help="list the presets and techniques", description=_PLANS, allow_abbrev=False)
    _add_app(commands)
    return main_parser


_PLANS = "List the presets and techniques: what each does, where it comes from, and its default settings."

_PLAN_HELP = "preset, technique, several joined by +, or a .json plan file (default: the pipeline's own, else balanced)"


def _command(
    commands: argparse._SubParsersAction[_Parser], name: str, *, help: str, description: str, epilog: str | None = None
) -> _Parser:
    return commands.add_parser(
        name,
        help=help,
        description=description,
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


def _add_generate(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "generate",
        help="draw a prompt under a plan, and compare it with the plain pipeline",
        description="Draw a prompt under a plan; with --compare also plainly, both timed.",
        epilog=_GENERATE_EXAMPLE,
    )
    command.add_argument("prompt", help="what to draw")
    command.add_argument("--plan", help=_PLAN_HELP)
    command.add_argument("--compare", action="store_true", help="draw plainly too, and time both")
    command.add_argument(
        "--repeats", type=_whole(1, 100), default=3, metavar="N", help="timed runs of each with --compare (default: 3)"
    )
    command.add_argument("--out", default="out", metavar="DIR", help="folder for pictures and report (default: out)")
    command.add_argument(
        "--steps", type=_whole(1, 1000), default=25, metavar="N", help="steps of the solver (default: 25)"
    )
    _add_solver(command)
    command.add_argument("--negative", metavar="TEXT", help="what not to draw")
    command.add_argument(
        "--batch", "--n", type=_whole(1, 64), default=1, metavar="N", help="pictures at once, of seeds SEED, SEED+1, …"
    )
    _add_model(command)


def _add_bench(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "bench",
        help="measure plans against the plain pipeline with fewer steps, on many prompts",
        description="Measure plans beside the plain pipeline's own curve: time, quality, operations and memory.",
        epilog=_BENCH_EXAMPLE,
    )
    number = _whole(1, 100_000)
    command.add_argument(
        "--plans", default="balanced,fast", metavar="A,B", help="as --plan elsewhere, separated by commas"
    )
    _add_solver(command)
    command.add_argument(
        "--solvers", metavar="A,B", help="which to measure, own being that of --solver (default: all that fit)"
    )
    command.add_argument("--rounds", type=number, default=5, metavar="N", help="timed rounds (default: 5)")
    command.add_argument("--out", default="out/bench", metavar="DIR", help="folder (default: out/bench)")
    command.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="what changed between two results")
    command.add_argument("--clip", metavar="FOLDER", help="CLIPScore too, by the CLIP model of this folder or hub id")
    command.add_argument(
        "--lpips", choices=("alex", "vgg", "squeeze"), help="LPIPS too, where torchvision and its weights are at hand"
    )
    _add_subject(command)


def _add_tune(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "tune",
        help="find the fastest plan whose quality stays above a floor",
        description="Search techniques, their settings, step counts and solvers for the fastest that keeps a floor.",
        epilog=_TUNE_EXAMPLE,
    )
    command.add_argument("--floor", default="40 dB", help="'40 dB' or '1 point' (default: 40 dB)")
    command.add_argument("--minutes", type=_scale, default=20.0, metavar="X", help="time to search (default: 20)")
    _add_plan_file(command)
    command.add_argument(
        "--helper", metavar="PIPE", help="folder or hub id of a smaller model that may take a part of the steps"
    )
    command.add_argument("--why", action="store_true", help="say why the others were not chosen, and show the front")
    _add_subject(command)


def _add_fit(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "fit",
        help="fit predictions of the deep part and of guidance to the final picture",
        description="Fit the weights of predictions to the long run's pictures on a few prompts, for one solver.",
        epilog=_FIT_EXAMPLE,
    )
    number = _whole(1, 250)
    _add_solver(command)
    command.add_argument("--interval", type=number, default=2, metavar="N", help="compute every N-th step (default: 2)")
    command.add_argument("--warm-up", type=number, default=3, metavar="N", help="after computing N (default: 3)")
    command.add_argument(
        "--order", type=_whole(1, 3), default=2, metavar="N", help="values per prediction (default: 2)"
    )
    command.add_argument(
        "--parts", nargs="+", choices=("deep", "guidance"), default=("deep", "guidance"), help="(default: both)"
    )
    _add_plan_file(command)
    _add_subject(command, prompts=40)


def _add_schedule(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "schedule",
        help="choose the steps of a short schedule for one model and solver",
        description="Choose the steps of a short schedule on a long trajectory, and hold it against the solver's own.",
        epilog=_SCHEDULE_EXAMPLE,
    )
    _add_solver(command)
    command.add_argument(
        "--nodes", type=_whole(3, 250), default=48, metavar="N", help="steps of the long runs (default: 48)"
    )
    _add_plan_file(command)
    _add_subject(command, prompts=8)


def _add_calibrate(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "calibrate",
        help="measure on a few prompts which steps each component may skip",
        description="Calibrate a static schedule (SmoothCache) on a few prompts, and save it as a plan.",
        epilog=_CALIBRATE_EXAMPLE,
    )
    goal = command.add_mutually_exclusive_group()
    goal.add_argument("--target", type=_scale, default=0.5, metavar="X", help="share of computed cells (default: 0.5)")
    goal.add_argument("--alpha", type=_scale, metavar="X", help="largest relative error of a predicted cell instead")
    goal.add_argument(
        "--target-db",
        type=_scale,
        metavar="X",
        help="distance (PSNR) of the pictures to the plain ones instead: measures what each cell does to them, slowly",
    )
    command.add_argument("--how", choices=("reuse", "linear"), help="predictor (default: of the smaller error)")
    command.add_argument(
        "--lookahead", type=_whole(1, 20), metavar="N", help="longest skip (default: 3, with --target-db 2)"
    )
    _add_solver(command)
    _add_plan_file(command)
    _add_subject(command, prompts=4, batch=False)


def _add_difficulty(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "difficulty",
        help="measure whether a prompt tells how many steps it needs, and train a predictor",
        description="Learn from the prompt how many steps it needs: collect, evaluate, then train.",
        epilog=_DIFFICULTY_EXAMPLE,
    )
    actions = command.add_subparsers(dest="action", required=True, metavar="ACTION", title="actions")
    about = "draw prompts with several step counts and noises"
    collect = _command(actions, "collect", help=about, description=f"{about.capitalize()}.")
    collect.add_argument("--counts", type=_rising, default=(4, 6, 8, 10, 12, 16, 20), metavar="A,B", help="step counts")
    collect.add_argument("--seeds", type=_whole(2, 1000), default=8, metavar="N", help="noises a prompt (default: 8)")
    collect.add_argument(
        "--reference", type=_whole(2, 1000), default=64, metavar="N", help="steps of the long run (default: 64)"
    )
    collect.add_argument("--out", default="out/difficulty", metavar="DIR", help="(default: out/difficulty)")
    _add_solver(collect)
    _add_prompts(collect, prompts=96)
    collect.add_argument("--batch", type=_whole(1, 100_000), default=16, metavar="N", help="at once (default: 16)")
    _add_model(collect)
    parts = {"evaluate": "hold a predictor against constants", "train": "train a predictor on all prompts"}
    for name, about in parts.items():
        action = _command(actions, name, help=about, description=f"{about.capitalize()}.")
        action.add_argument("folder", metavar="DIR", help="what collect wrote")
        action.add_argument("--goal", default="30 dB", help="'30 dB' to the long run, or facts (default: 30 dB)")
        if name == "train":
            action.add_argument("--out", metavar="DIR", help="where the predictor goes (default: beside the curves)")


def _add_search(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "search",
        help="look for a better starting noise, instead of taking more steps",
        description="Draw a prompt from several starting noises, and keep the picture that a verifier likes best.",
        epilog=_SEARCH_EXAMPLE,
    )
    command.add_argument("prompt", help="what to draw")
    command.add_argument("--verifier", metavar="NAME", help="reader, a CLIP folder or pkg:function (tiny: reader)")
    command.add_argument("--candidates", type=_whole(1, 10_000), default=8, metavar="N", help="noises (default: 8)")
    command.add_argument(
        "--method", choices=("random", "zero_order", "paths"), default="random", help="(default: random)"
    )
    command.add_argument("--keep", type=_scale, metavar="X", help="share that goes on after a preview (default: all)")
    command.add_argument("--after", type=_scale, default=0.3, metavar="X", help="share of steps before (default: 0.3)")
    command.add_argument("--compare", action="store_true", help="spend the same work on more steps, too")
    command.add_argument("--steps", type=_whole(2, 1000), default=25, metavar="N", help="steps (default: 25)")
    command.add_argument("--batch", type=_whole(1, 100_000), default=8, metavar="N", help="at once (default: 8)")
    command.add_argument("--out", default="out/search", metavar="DIR", help="folder (default: out/search)")
    _add_solver(command)
    _add_model(command)


def _add_plan_file(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", default="plan.json", metavar="FILE", help="where the plan goes (default: plan.json)")


def _add_solver(command: argparse.ArgumentParser) -> None:
    command.add_argument("--solver", default="own", metavar="NAME", help="own or dpm++ (default: the pipeline's own)")


def _add_subject(command: argparse.ArgumentParser, prompts: int = 48, batch: bool = True) -> None:
    """What bench, tune and the like draw."""
    number = _whole(1, 100_000)
    _add_prompts(command, prompts)
    command.add_argument("--steps", type=_whole(2, 250), default=25, metavar="N", help="of the plans (default: 25)")
    if batch:
        command.add_argument(
            "--batch", type=number, default=8, metavar="N", help="pictures at once, untimed (default: 8)"
        )
    _add_model(command)


def _add_prompts(command: argparse.ArgumentParser, prompts: int) -> None:
    command.add_argument("--prompts", default="bundled", metavar="FILE", help="one per line (default: bundled)")
    number = _whole(1, 100_000)
    command.add_argument("--n", type=number, default=prompts, metavar="N", help=f"prompts (default: {prompts})")


def _add_model(command: argparse.ArgumentParser) -> None:
    """The pipeline of a command that draws, and how it is called."""
    command.add_argument("--model", default="tiny", help="bundled name, folder or hub id (default: tiny)")
    command.add_argument(
        "--seed", type=_whole(0, 2**63 - 1), default=0, metavar="N", help="starting noise (default: 0)"
    )
    command.add_argument(
        "--guidance", type=_scale, metavar="X", help="guidance scale (default: the pipeline's, tiny: 4)"
    )
    command.add_argument("--size", type=_whole(1, 8192), metavar="N", help="edge in pixels (default: the pipeline's)")
    _add_placement(command)


def _add_check(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "check",
        help="check that a plan fits a pipeline and keeps its promises there",
        description="Check that a plan fits a pipeline, then run the contract of every plan at a small size.",
        epilog=_CHECK_EXAMPLE,
    )
    command.add_argument("pipe", metavar="PIPE", help="bundled name, folder or hub id")
    command.add_argument("--plan", help=_PLAN_HELP)
    command.add_argument("--steps", type=_whole(1, 1000), default=8, metavar="N", help="steps of a run (default: 8)")
    _add_placement(command)


def _add_app(commands: argparse._SubParsersAction[_Parser]) -> None:
    command = _command(
        commands,
        "app",
        help="compare, build, edit and tune in the browser",
        description="Serve the browser app. It needs the extra 'app': pip install \"diffusers-accel[app]\".",
        epilog=_APP_EXAMPLE,
    )
    command.add_argument("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    command.add_argument("--port", type=_whole(1, 65535), metavar="N", help="(default: the first free from 7860 on)")
    command.add_argument("--open", action="store_true", help="open a browser")
    command.add_argument(
        "--model",
        nargs="+",
        default=["tiny", "tiny-dit"],
        help="what visitors may use: bundled names, folders, hub ids",
    )
    command.add_argument("--allow-hub", action="store_true", help="let visitors load any hub id")
    command.add_argument("--force-public", action="store_true", help="listen to others without a password")
    command.add_argument(
        "--max-steps", type=_whole(2, 1000), default=50, metavar="N", help="most steps a visitor gets (default: 50)"
    )
    command.add_argument(
        "--max-size", type=_whole(64, 8192), default=512, metavar="N", help="largest edge in pixels (default: 512)"
    )
    _add_placement(command)


def _add_placement(command: argparse.ArgumentParser) -> None:
    command.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps, … (default: auto)")
    command.add_argument(
        "--dtype", choices=("float32", "bfloat16", "float16"), default="float32", help="(default: float32)"
    )


def _whole(least: int, most: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.lstrip("+-").isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"must be a whole number from {least} to {most}, not {text!r}")
        return int(text)

    return convert


def _rising(text: str) -> tuple[int, ...]:
    """``"4,8,12"``; that it rises is checked where it is used."""
    return tuple(_whole(1, 1000)(part.strip()) for part in text.split(","))


def _scale(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"must be a number from 0 to 1000, not {text!r}")
    return value

"""Train the bundled pipelines: ``python -m accel.tiny.train STAGE --out FOLDER``.

Stages, in order: ``vae``, ``text``, ``latents``, ``unet``, ``export``; every stage reads what the
earlier ones left in ``FOLDER``. With ``--model tiny-dit`` they are ``vae``, ``latents``, ``dit`` and
``export``: its text encoder is that of ``tiny``. ``reader`` trains the judge by which ``score`` judges
the pipeline in ``--to``. ``--init PIPELINE`` starts from a finished pipeline's weights instead of
random ones.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from diffusers import DiffusionPipeline

import accel.tiny
from accel.tiny.models import make_vae
from accel.tiny.reader import load as load_reader
from accel.tiny.training import dit, evaluate, export, latents, reader, text, unet, vae
from accel.tiny.training.loop import Settings, Task, run
from accel.tiny.transformer import make_dit_vae

_VAES = {"tiny": make_vae, "tiny-dit": make_dit_vae}
_DENOISERS: dict[str, Callable[..., Task]] = {"unet": unet.make_task, "dit": dit.make_task}
_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one stage; returns the exit status."""
    options = _parser().parse_args(argv)
    try:
        _STAGES[options.stage](options)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m accel.tiny.train", description=__doc__)
    parser.add_argument("stage", choices=tuple(_STAGES))
    parser.add_argument("--model", choices=tuple(_VAES), default="tiny", help="which pipeline (vae, latents, export)")
    parser.add_argument("--out", type=Path, default=Path("runs/tiny"), help="folder of this run")
    parser.add_argument("--init", type=Path, help="pipeline folder whose weights to start from")
    parser.add_argument("--minutes", type=float, help="length of the stage in training time")
    parser.add_argument("--steps", type=int, help="length of the stage in steps instead")
    parser.add_argument("--batch", type=int, help="samples per process and step")
    parser.add_argument("--lr", type=float, help="peak learning rate")
    parser.add_argument("--processes", type=int, default=1, help="data-parallel processes (CPU)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=tuple(_DTYPES), default="fp32", help="bf16 pays where the chip has it")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenes", type=int, default=40_000, help="scenes to encode (latents)")
    parser.add_argument("--count", type=int, default=64, help="prompts of each difficulty (score)")
    parser.add_argument("--decoder-only", action="store_true", help="keep the encoder (vae)")
    parser.add_argument("--to", type=Path, help="folder to write (export, reader) or to judge (score)")
    return parser


def _settings(options: argparse.Namespace, stage: str, *, muon: bool = False, **defaults: float) -> Settings:
    length = {"steps": options.steps, "minutes": options.minutes}
    if options.steps is None and options.minutes is None:
        length["minutes"] = defaults["minutes"]
    return Settings(
        out=options.out / stage,
        learning_rate=options.lr or defaults["learning_rate"],
        batch=options.batch or int(defaults["batch"]),
        ema=defaults["ema"],
        weight_decay=defaults["weight_decay"],
        muon=muon,
        seed=options.seed,
        dtype=_DTYPES[options.dtype],
        device=options.device,
        **length,
    )


def _vae(options: argparse.Namespace) -> None:
    stage = "decoder" if options.decoder_only else "vae"
    init = options.out if options.decoder_only else options.init
    settings = _settings(options, stage, muon=True, learning_rate=2e-3, batch=2, minutes=25, ema=0.99, weight_decay=0.0)
    make = functools.partial(vae.make_task, _VAES[options.model], init=init, decoder_only=options.decoder_only)
    if not run(make, settings, options.processes):
        return
    task = make()
    vae.save(task, settings.out / "checkpoint.pt", options.out)
    print(f"held-out reconstruction {vae.psnr(task.vae):.2f} dB")


def _text(options: argparse.Namespace) -> None:
    settings = _settings(options, "text", learning_rate=1e-3, batch=64, minutes=4, ema=0.995, weight_decay=0.01)
    if not run(text.make_task, settings, options.processes):
        return
    task = text.make_task()
    text.save(task, settings.out / "checkpoint.pt", options.out)
    print(f"every fact right in {task.accuracy():.1%} of held-out captions")


def _latents(options: argparse.Namespace) -> None:
    parts = ("vae", "text_encoder") if options.model == "tiny" else ("vae",)
    latents.encode(options.out, options.scenes, init=options.init, parts=parts, device=options.device)


def _denoiser(options: argparse.Namespace) -> None:
    settings = _settings(
        options, options.stage, muon=True, learning_rate=1e-3, batch=32, minutes=60, ema=0.998, weight_decay=0.01
    )
    run(functools.partial(_DENOISERS[options.stage], options.out, init=options.init), settings, options.processes)


def _export(options: argparse.Namespace) -> None:
    if options.to is None:
        raise ValueError("export has nowhere to write: give --to FOLDER")
    export.export(options.out, options.to, options.model)


def _reader(options: argparse.Namespace) -> None:
    settings = _settings(options, "reader", learning_rate=2e-3, batch=32, minutes=15, ema=0.995, weight_decay=0.01)
    if not run(reader.make_task, settings, options.processes):
        return
    folder = reader.save(reader.make_task(), settings.out / "checkpoint.pt", options.to or options.out / "reader")
    print(f"every stated fact read in {reader.accuracy(load_reader(folder)):.1%} of held-out scenes")


def _score(options: argparse.Namespace) -> None:
    pipe = DiffusionPipeline.from_pretrained(options.to or accel.tiny.path()).to(options.device)
    pipe.set_progress_bar_config(disable=True)
    print(evaluate.score(pipe, count=options.count, seed=options.seed))


_STAGES = {
    "vae": _vae,
    "text": _text,
    "latents": _latents,
    "unet": _denoiser,
    "dit": _denoiser,
    "export": _export,
    "reader": _reader,
    "score": _score,
}


if __name__ == "__main__":
    sys.exit(main())

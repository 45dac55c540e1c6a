"""Opening a pipeline for a command, and drawing with it: what the user asked for, checked against what it can do."""

from __future__ import annotations

import inspect
import math
import re
import time
import warnings
from dataclasses import dataclass
from typing import Any

import torch

import accel
from accel import console
from accel.errors import AccelError, AccelWarning
from accel.measure.solvers import OWN, set_up, solvers
from accel.plan import Plan

_CLOSED_VOCABULARY = 4096
"""A tokenizer with fewer entries knows a closed world of words; larger ones piece any word together."""

_NEEDED = ("prompt", "num_inference_steps", "generator", "output_type")


@dataclass(frozen=True)
class Request:
    """What to draw. Picture ``i`` of a batch starts from the noise of ``seed + i``."""

    prompt: str
    steps: int
    seed: int = 0
    negative: str | None = None
    guidance: float | None = None
    """``None`` leaves it to the pipeline."""
    size: int | None = None
    """Edge in pixels; ``None`` leaves it to the pipeline."""
    batch: int = 1


@dataclass(frozen=True)
class Drawn:
    """The pictures of one run, how long it took, and where its (first) random generator stood at the end."""

    pictures: torch.Tensor
    seconds: float
    noise: torch.Tensor


def open_pipeline(model: str, device: str = "auto", dtype: str = "float32") -> Any:
    """Load a pipeline without any plan onto a device; whatever is wrong with it is an `AccelError`."""
    place = _device(device)
    try:
        with console.loading() as said:
            # Safetensors only: the other format is a pickle, which may run any code.
            pipe = accel.load(model, plan=Plan(), torch_dtype=getattr(torch, dtype), use_safetensors=True)
            _check_weights(model, said)
    except AccelError:
        raise
    except Exception as error:  # libraries raise nearly anything for broken files
        raise AccelError(_cannot_load(model, error)) from error
    missing = [name for name in _NEEDED if name not in inspect.signature(pipe.__call__).parameters]
    if missing:
        raise AccelError(f"{type(pipe).__name__} draws no pictures from a prompt: it takes no {', '.join(missing)}")
    return pipe.to(place)


def _cannot_load(model: str, error: Exception) -> str:
    reason = console.one_line(error).split(". ")[0].rstrip(".")
    if "Hub" in str(error) or "huggingface.co" in str(error):
        return (
            f"{model} is no folder here, is not in the local cache and cannot be fetched from the hub: check the name "
            "and the connection, or use a folder or the bundled model tiny"
        )
    return f"{model} cannot be loaded: {reason}"


def _check_weights(model: str, said: list[str]) -> None:
    """Libraries fill what a file lacks with random numbers, and only mention it."""
    for text in said:
        if "newly initialized" in text and (lacking := re.findall(r"[\w.]+\.(?:weight|bias)\b", text)):
            raise AccelError(f"{model} has incomplete weights, {lacking[0]} is missing: copy or download it again")


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].split(". ")[0]
        raise AccelError(f"device {name} cannot be used here ({reason}): use --device cpu") from None
    return device


def set_solver(pipe: Any, name: str) -> None:
    """Give ``pipe`` the solver of that name; raises `AccelError` for one that does not fit."""
    if name not in (known := solvers(pipe)):
        raise AccelError(f"no solver {name!r} for {type(pipe).__name__}: there are {', '.join(known)}")
    if name != OWN:
        pipe.scheduler = set_up(name, pipe.scheduler)


def check(pipe: Any, request: Request) -> None:
    """Raise `AccelError` for what ``pipe`` cannot do, and warn of what it will not understand."""
    takes = inspect.signature(pipe.__call__).parameters
    if request.negative is not None and "negative_prompt" not in takes:
        raise AccelError(f"{type(pipe).__name__} takes no negative prompt: leave --negative out")
    if request.guidance is not None and "guidance_scale" not in takes:
        raise AccelError(f"{type(pipe).__name__} takes no guidance scale: leave --guidance out")
    if request.batch > 1 and "num_images_per_prompt" not in takes:
        raise AccelError(f"{type(pipe).__name__} draws one picture at a time: leave --batch out")
    limit = longest(pipe)
    if request.steps > limit:
        raise AccelError(f"--steps {request.steps} is more than the model's noise levels: use at most {limit}")
    factor = size_factor(pipe)
    if request.size is not None and request.size % factor:
        near = max(1, round(request.size / factor)) * factor
        raise AccelError(f"--size {request.size} is not a multiple of {factor} as the model needs: try {near}")
    if request.negative is not None and request.guidance is not None and request.guidance <= 1:
        _warn("the negative prompt does nothing without guidance: use --guidance above 1")
    words = unknown_words(getattr(pipe, "tokenizer", None), f"{request.prompt} {request.negative or ''}")
    if words:
        _warn(f"the model does not know {', '.join(map(repr, words))}: expect a picture without it")


def longest(pipe: Any) -> int:
    """The largest step count the pipeline's scheduler can schedule."""
    return int(getattr(pipe.scheduler.config, "num_train_timesteps", 1000))


def size_factor(pipe: Any) -> int:
    """The edge of a picture must be a multiple of this."""
    scale = int(getattr(pipe, "vae_scale_factor", 8))
    transformer = getattr(pipe, "transformer", None)
    if transformer is None:
        return math.lcm(8, scale)  # the UNet pipelines insist on 8, whatever their VAE
    patch = getattr(transformer.config, "patch_size", None)
    patch = patch if isinstance(patch, int) else 1
    channels = getattr(getattr(pipe, "vae", None), "config", {}).get("latent_channels", 0)
    packed = transformer.config.get("in_channels") == 4 * channels  # the pipeline folds 2 x 2 latents into one token
    return scale * (2 if packed and patch == 1 else patch)


def small_size(pipe: Any) -> int:
    """An edge at which ``pipe`` runs quickly: 64 pixels, or what its levels need at least."""
    factor = size_factor(pipe)
    levels = len(getattr(getattr(pipe, "unet", None), "down_blocks", ())) or 2
    least = max(64, int(getattr(pipe, "vae_scale_factor", 8)) * 2**levels)
    return math.ceil(least / factor) * factor


def unknown_words(tokenizer: Any, text: str) -> list[str]:
    """The words of ``text`` outside of a closed vocabulary, in order; none when the vocabulary is open."""
    if tokenizer is None or len(tokenizer) > _CLOSED_VOCABULARY:
        return []
    words = dict.fromkeys(re.findall(r"[^\W_]+", text.lower()))
    return [word for word in words if len(tokenizer.tokenize(word)) != 1]


def draw(pipe: Any, request: Request, steps: int | None = None, phase: str = "drawing") -> Drawn:
    """Run ``pipe`` on ``request`` (with another step count, if given) under a progress bar named ``phase``."""
    # The generators stay on the CPU: a seed means the same noise on every device.
    noise = [torch.Generator().manual_seed(request.seed + index) for index in range(request.batch)]
    pipe.set_progress_bar_config(desc=phase, leave=False, disable=None)  # none where nobody is watching
    began = time.perf_counter()
    try:
        output = pipe(**_arguments(request, steps or request.steps), generator=noise, output_type="pt")
    except torch.OutOfMemoryError:
        raise AccelError("not enough memory: try a smaller --size or --batch, or --dtype bfloat16") from None
    except AccelError:
        raise
    except ValueError as error:
        raise AccelError(f"{type(pipe).__name__} cannot draw this: {error}") from error
    pictures = _pictures(pipe, output)
    return Drawn(pictures, time.perf_counter() - began, noise[0].get_state())


def _arguments(request: Request, steps: int) -> dict[str, Any]:
    asked = {
        "guidance_scale": request.guidance,
        "negative_prompt": request.negative,
        "height": request.size,
        "width": request.size,
        "num_images_per_prompt": request.batch if request.batch > 1 else None,
    }
    given = {name: value for name, value in asked.items() if value is not None}
    return {"prompt": request.prompt, "num_inference_steps": steps, **given}


def _pictures(pipe: Any, output: Any) -> torch.Tensor:
    """The pictures as float32 on the CPU, which also waits for a GPU to be done."""
    images = getattr(output, "images", None)
    if not isinstance(images, torch.Tensor) or images.ndim != 4 or images.shape[1] != 3:
        raise AccelError(f"{type(pipe).__name__} makes something other than pictures: call it from Python instead")
    pictures = images.detach().to("cpu", torch.float32)
    if not torch.isfinite(pictures).all():
        _warn("the picture holds values that are not numbers: use --dtype float32")
        pictures = pictures.nan_to_num()
    return pictures


def _warn(message: str) -> None:
    warnings.warn(message, AccelWarning, stacklevel=2)

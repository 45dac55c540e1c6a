"""Plans against the plain pipeline with fewer steps, with its best solver: the numbers of README and docs.

    python benchmarks/plans.py

This is ``accel bench`` with fixed arguments, in one thread: a second one gains little on two virtual cores, and
scatters the times. An hour and a half on a quiet core. Results go to ``results/plans-<steps>``; broken off, it goes on
when it is repeated. At the end ``docs/benchmarks.md`` is written from them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from accel import cli

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

FITTED = Path(__file__).parent / "fitted.json"
"""Weights for 25 steps of DPM++ on the bundled pipeline; see ``README.md``."""

RUNS = {
    25: (256, ("balanced", "fast", "deepcache(how=reuse)", "guidance", str(FITTED))),
    50: (
        24,
        ("balanced", "lossless+deepcache(axis=logsnr)", "lossless+deepcache(how=quadratic)", "deepcache+guidance"),
    ),
}
"""Steps of the plans to the number of prompts, and the plans."""

ROUNDS = 9


def main() -> None:
    """Measure, then write the page."""
    torch.set_num_threads(1)
    for steps, (prompts, plans) in RUNS.items():
        size = ["--steps", str(steps), "--n", str(prompts), "--rounds", str(ROUNDS), "--batch", "16"]
        where = ["--model", "tiny", "--solver", "dpm++", "--out", str(RESULTS / f"plans-{steps}")]
        if cli.main(["bench", *where, "--plans", ",".join(plans), *size]):
            raise SystemExit(1)
    PAGE.write_text(_page(), encoding="utf-8")


def _page() -> str:
    parts = [f"# Benchmarks\n\nWritten by `benchmarks/plans.py` from `benchmarks/results`.\n\n{_EXPLAINED}"]
    for steps in RUNS:
        folder = RESULTS / f"plans-{steps}"
        picture = f"images/front-{steps}.png"
        shutil.copy(folder / "front.png", PAGE.parent / picture)
        title, _, body = (folder / "results.md").read_text(encoding="utf-8").partition("\n")
        parts.append(f"#{title}\n{body}\n![Time against quality at {steps} steps]({picture})\n")
    return "\n".join(parts)


_EXPLAINED = """- *Speed-up*: of one picture, all arms taking turns; median over the rounds, with its 95 % interval.
- *PSNR*, *SSIM*: to the plain picture of the same seed and solver with four times the steps; mean over prompts.
- *MS-SSIM*: SSIM over five scales, for pictures of 176 pixels a side and more; else a line below the table says so.
- *CLIPScore* (`--clip FOLDER`): `100 · max(cos, 0)` of picture and prompt, by a CLIP model of yours; the paper's own
  scale is 2.5. *LPIPS* (`--lpips alex`): to the long run, where torchvision and its weights are at hand. Nothing is
  downloaded unless a hub id is named, and what is missing is said before anything is drawn.
- *FID (real: x)*: Fréchet distance to rendered scenes; x is that of as many other rendered ones. Its size depends on
  the number of pictures, so only the two together say something; KID does not have that bias.
- *Attributes right*: attribute accuracy, the mean share of a prompt's stated facts (what, colour, how many, where, on
  what) that the reader finds; *all of them*: the share of pictures in which it finds every one.
- *KID*: distance to rendered scenes in the reader's features.
- *Frontier gain*: the time the plain pipeline needs for the same PSNR, by taking fewer steps with the best solver, over
  the plan's time; intervals over prompts and rounds. Above 1 the plan is worth having.
- *At equal content*: the same, for the fastest plain way whose attribute accuracy is at most one point below the long
  run's, where the plan's is as well; only with 100 prompts and more.
"""


if __name__ == "__main__":
    main()

"""Plans against the plain pipeline with fewer steps, at 25 and 15 steps: the numbers of README and docs.

    python benchmarks/plans.py

This is ``accel bench`` with fixed arguments. Results go to ``results/plans-<steps>``; broken off, it goes on when it is
repeated. At the end ``docs/benchmarks.md`` is written from them.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from accel import cli

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"

RUNS = {25: 16, 15: 8}
"""Steps of the plans to number of prompts."""

PLANS = (
    "balanced",
    "fast",
    "deepcache",
    "deepcache(how=reuse)",
    "guidance",
    "guidance(how=reuse)",
    "tgate",
    "tgate(cutoff=cond)",
    "fora",
    "rehash",
    "residual(indicator=sea)",
    "lossless",
)
"""The presets, and what they are made of, each with the predictor it has in its paper beside ours."""

FITTED = Path(__file__).parent / "fitted.json"
"""Weights for 25 steps of DPM++ on the bundled pipeline, an arm of the run of 25 steps; see ``README.md``."""


def main() -> None:
    """Measure, then write the page."""
    for steps, prompts in RUNS.items():
        folder = RESULTS / f"plans-{steps}"
        plans = (*PLANS, str(FITTED)) if steps == 25 else PLANS
        arguments = ["--steps", str(steps), "--n", str(prompts), "--rounds", "3", "--out", str(folder)]
        if cli.main(["bench", "--model", "tiny", "--plans", ",".join(plans), *arguments]):
            raise SystemExit(1)
    PAGE.write_text(_page(), encoding="utf-8")


def _page() -> str:
    parts = [
        "# Benchmarks\n",
        f"Written by `benchmarks/plans.py` from `benchmarks/results`. {_WEIGHTS}\n\n{_EXPLAINED}",
    ]
    for steps in RUNS:
        folder = RESULTS / f"plans-{steps}"
        picture = f"images/front-{steps}.png"
        shutil.copy(folder / "front.png", PAGE.parent / picture)
        title, _, body = (folder / "results.md").read_text(encoding="utf-8").partition("\n")
        parts.append(f"#{title}\n{body}\n![Time against quality at {steps} steps]({picture})\n")
    return "\n".join(parts)


_WEIGHTS = "Drawn with the weights of the denoiser's first training run, whose facts were right far less often."
"""Which weights the committed results are of; to be brought up to date with them."""

_EXPLAINED = """- *Speed-up*: of one picture, all arms taking turns; median over the rounds, with its 95 % interval.
- *PSNR*, *SSIM*: to the plain picture of the same seed and solver with four times the steps; mean over prompts.
- *MS-SSIM*: SSIM over five scales, for pictures of 176 pixels a side and more; else a line below the table says so.
- *CLIPScore* (`--clip FOLDER`): `100 · max(cos, 0)` of picture and prompt, by a CLIP model of yours; the paper's own
  scale is 2.5. *LPIPS* (`--lpips alex`): to the long run, where torchvision and its weights are at hand. Nothing is
  downloaded unless a hub id is named, and what is missing is said before anything is drawn.
- *FID (real: x)*: Fréchet distance to rendered scenes; x is that of as many other rendered ones. Its size depends on
  the number of pictures, so only the two together say something; KID does not have that bias.
- *All facts right*: share of pictures in which the reader finds every fact the prompt states.
- *KID*: distance to rendered scenes in the reader's features.
- *Frontier gain*: the time the plain pipeline needs for the same PSNR, by taking fewer steps with the best solver, over
  the plan's time; intervals over prompts and rounds. Above 1 the plan is worth having.
- *At equal content*: the same, for the fastest plain way whose share of right pictures is at most one point below the
  long run's, where the plan's is as well; only with 100 prompts and more.
"""


if __name__ == "__main__":
    main()

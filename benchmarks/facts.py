"""Which facts of their prompts a bundled pipeline's pictures show, by difficulty: the figures of its model card.

    python benchmarks/facts.py --model tiny --count 96

The same as ``python -m accel.tiny.train score``, kept: 25 steps, guidance 4, held-out prompts, judged by the reader.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict

from common import subject, write

from accel.tiny.training.evaluate import score


def main() -> None:
    """Measure, print, write ``results/facts-MODEL.json``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="bundled name (default: tiny)")
    parser.add_argument("--count", type=int, default=96, help="prompts of each difficulty")
    options = parser.parse_args()
    found = score(subject(options.model), count=options.count)
    print(found)
    print(write(f"facts-{options.model}", {"model": options.model, **asdict(found)}))


if __name__ == "__main__":
    main()

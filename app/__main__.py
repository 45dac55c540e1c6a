"""``python -m accel.app`` is ``accel app``."""

import sys

from accel.cli import main

raise SystemExit(main(["app", *sys.argv[1:]]))

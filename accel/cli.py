"""The command line: ``accel generate``, ``bench``, ``tune``, ``fit``, ``calibrate``, ``schedule``, ``difficulty``,
``search``, ``check``, ``plans``, ``app``.

A command is imported when it is called, so that help comes at once; `accel.parsers` says how each is called. Whatever
a user can mend is one line on standard error and exit code 2.
"""

from __future__ import annotations

import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from accel import console
from accel.errors import AccelError
from accel.parsers import COMMANDS, parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code (0 done, 1 a check failed, 2 a user's mistake, 130 interrupted)."""
    with console.plain_warnings():
        try:
            return _dispatch(list(sys.argv[1:] if argv is None else argv))
        except AccelError as error:
            console.say("error", error)
            return 2
        except KeyboardInterrupt:
            print("\naccel: interrupted", file=sys.stderr)
            return 130
        except BrokenPipeError:  # `accel plans | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 141
        except SystemExit as done:  # argparse, after --help and --version
            return int(done.code or 0)


def _dispatch(argv: list[str]) -> int:
    if argv and not argv[0].startswith("-") and argv[0] not in COMMANDS:
        near = difflib.get_close_matches(argv[0], COMMANDS, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(COMMANDS)}"
        raise AccelError(f"no command is called {argv[0]!r}: {hint}")
    options = parser().parse_args(argv)
    return importlib.import_module(f"accel.commands.{options.command}").run(options)

"""The toolkit's own errors and warnings: every message names the thing, the reason and the way out."""

from __future__ import annotations

from collections.abc import Sequence


class AccelError(ValueError):
    """Something the caller can mend: a name, a file, a setting. The message is one readable line."""


class Refused(AccelError):
    """A plan does not fit a pipeline. ``problems`` lists every reason at once; nothing was changed."""

    def __init__(self, subject: str, problems: Sequence[str]):
        self.problems = tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"{subject} was refused, nothing was changed:{lines}")


class AccelWarning(UserWarning):
    """The result is correct, but not what was asked for (nothing was saved, a plan was made elsewhere, …)."""

"""Techniques as a user writes them: ``deepcache(interval=3, how=reuse)``, the form in which reports print them."""

from __future__ import annotations

import ast
import re
from typing import Any

from accel.errors import AccelError

_OUTSIDE = r"(?![^()\[\]]*[)\]])"
"""What follows is not inside of brackets."""


def split(text: str, separator: str) -> list[str]:
    """The parts of ``text`` between separators outside of brackets, without blanks and without empty ones."""
    parts = (part.strip() for part in re.split(re.escape(separator) + _OUTSIDE, text))
    return [part for part in parts if part]


def call(text: str) -> tuple[str, dict[str, Any]]:
    """``"tgate(gate=0.4, how=reuse)"`` to its name and settings; bare words are texts.

    Raises:
        AccelError: when it is not of that form.
    """
    try:
        parsed = ast.parse(text.strip(), mode="eval").body
    except SyntaxError:
        raise _unreadable(text) from None
    if isinstance(parsed, ast.Name):
        return parsed.id, {}
    if not isinstance(parsed, ast.Call) or not isinstance(parsed.func, ast.Name) or parsed.args:
        raise _unreadable(text)
    return parsed.func.id, {word.arg: _value(word.value, text) for word in parsed.keywords if word.arg}


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _unreadable(text) from None


def _unreadable(text: str) -> AccelError:
    return AccelError(f"{text!r} is not a technique with settings: write it like deepcache(interval=3, how=reuse)")

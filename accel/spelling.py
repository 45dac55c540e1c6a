"""Techniques as a user writes them: ``deepcache(interval=3, how=reuse)``, the form in which reports print them."""

from __future__ import annotations

import ast
from typing import Any

from accel.errors import AccelError


def split(text: str, separator: str) -> list[str]:
    """The parts of ``text`` between separators outside of brackets, without blanks and without empty ones."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]


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
    if not all(word.arg for word in parsed.keywords):
        raise _unreadable(text)
    return parsed.func.id, {str(word.arg): _value(word.value, text) for word in parsed.keywords}


def _value(node: ast.expr, text: str) -> Any:
    if isinstance(node, ast.Name):
        return node.id
    try:
        return ast.literal_eval(node)
    except ValueError:
        raise _unreadable(text) from None


def _unreadable(text: str) -> AccelError:
    return AccelError(f"{text!r} is not a technique with settings: write it like deepcache(interval=3, how=reuse)")

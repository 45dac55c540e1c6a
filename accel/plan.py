"""A plan: which techniques, with which settings, and what they were tuned for. JSON in, JSON out."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from accel import registry, spelling
from accel.errors import AccelError
from accel.fingerprint import Fingerprint
from accel.technique import Technique

FORMAT = 1
"""Version of the JSON form."""

_KEYS = {"format", "name", "promise", "techniques", "optional", "fingerprint"}


@dataclass(frozen=True)
class Plan:
    """An ordered list of techniques. Presets are plans with a name and a promise."""

    techniques: tuple[Technique, ...] = ()
    name: str | None = None
    promise: str | None = None
    """``"same picture"`` (close to the plain run) or ``"same content"`` (every stated fact still right)."""
    fingerprint: Fingerprint | None = None
    """What it was tuned for; ``None`` when it is meant for anything."""
    optional: frozenset[str] = frozenset()
    """Names of techniques that are left out, with the reason in the report, where they do not fit: those of presets."""

    @classmethod
    def of(cls, what: Any) -> Plan:
        """A plan from a plan, its JSON form, a technique, several of them, or a text.

        A text is the name of a preset or a technique, the latter with settings where wanted
        (``"deepcache(interval=3)"``), several of them joined by ``+``, or the path of a ``.json`` file.
        """
        if isinstance(what, Plan):
            return what
        if isinstance(what, Technique):
            return cls((what,))
        if isinstance(what, Path) or (isinstance(what, str) and what.endswith(".json")):
            return cls.load(what)
        if isinstance(what, str):
            return cls._named(what)
        if isinstance(what, dict):
            return cls.from_dict(what)
        if isinstance(what, Iterable):
            return cls._joined([cls.of(part) for part in what])
        raise AccelError(f"a plan is a preset's name, a Plan, a technique or a list of them, not {what!r}")

    @classmethod
    def _named(cls, text: str) -> Plan:
        if text in presets():
            return cls.from_dict(json.loads(_preset_file(text).read_text()))
        if len(parts := spelling.split(text, "+")) > 1:
            return cls.of(parts)
        if text.partition("(")[0] in registry.names():
            name, settings = spelling.call(text)
            return cls((registry.find(name).from_settings(settings),))
        near = difflib.get_close_matches(text, [*presets(), *registry.names()], n=1)
        known = f"presets are {', '.join(presets())}, techniques {', '.join(registry.names())}"
        hint = f"did you mean {near[0]}?" if near else known
        raise AccelError(f"no preset or technique is called {text!r}: {hint}")

    @classmethod
    def _joined(cls, plans: list[Plan]) -> Plan:
        """All techniques in turn. What is optional in one plan and asked for in another is there once, as asked for."""
        marks = {mark.denoiser: mark for plan in plans if (mark := plan.fingerprint)}
        if len(marks) > 1:
            raise AccelError(f"plans tuned for {' and '.join(sorted(marks))} cannot be joined: use one of them")
        each = [(technique, technique.name in plan.optional) for plan in plans for technique in plan.techniques]
        wanted = {technique.name for technique, optional in each if not optional}
        kept: list[Technique] = []
        for technique, optional in each:
            if not optional or (technique.name not in wanted and technique not in kept):
                kept.append(technique)
        names = {technique.name for technique in kept} - wanted
        return cls(tuple(kept), fingerprint=next(iter(marks.values()), None), optional=frozenset(names))

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan file; raises `AccelError` when it is missing, not JSON, or not a plan."""
        try:
            return cls.from_dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except OSError as error:
            raise AccelError(f"plan file {path} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise AccelError(f"plan file {path} is not a plan: {error}") from None

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(json.dumps(self.to_dict(), indent=2) + "\n", encoding="utf-8")

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready form."""
        return {
            "format": FORMAT,
            "name": self.name,
            "promise": self.promise,
            "techniques": [{"name": t.name, **t.settings()} for t in self.techniques],
            **({"optional": sorted(self.optional)} if self.optional else {}),
            "fingerprint": self.fingerprint.to_dict() if self.fingerprint else None,
        }

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read the JSON form; unknown keys, techniques, settings and newer formats are refused by name."""
        if not isinstance(data, dict) or not isinstance(data.get("techniques"), list):
            raise AccelError("a plan is a JSON object with a list of techniques")
        if unknown := sorted(set(data) - _KEYS):
            raise AccelError(f"unknown key {', '.join(unknown)}: a plan has {', '.join(sorted(_KEYS))}")
        if data.get("format", FORMAT) != FORMAT:
            raise AccelError(f"format {data['format']} is not {FORMAT}: it was written by another version")
        name, promise, mark = (data.get(key) for key in ("name", "promise", "fingerprint"))
        for key, text in {"name": name, "promise": promise}.items():
            if text is not None and not isinstance(text, str):
                raise AccelError(f"a plan's {key} is a text or null, not {text!r}")
        techniques = tuple(_technique(entry) for entry in data["techniques"])
        optional = _optional(data.get("optional", []), techniques)
        return cls(techniques, name, promise, None if mark is None else Fingerprint.from_dict(mark), optional)

    def __str__(self) -> str:
        inner = " + ".join(map(str, self.techniques)) or "plain"
        return f"{self.name} = {inner}" if self.name else inner


def presets() -> list[str]:
    """Names of the presets that ship."""
    return sorted(entry.name.removesuffix(".json") for entry in resources.files("accel").joinpath("presets").iterdir())


def _preset_file(name: str) -> Any:
    return resources.files("accel").joinpath("presets", f"{name}.json")


def _optional(names: Any, techniques: tuple[Technique, ...]) -> frozenset[str]:
    own = {technique.name for technique in techniques}
    if not isinstance(names, list) or not all(isinstance(name, str) and name in own for name in names):
        raise AccelError(f"a plan's optional is a list of names of its techniques, not {names!r}")
    return frozenset(names)


def _technique(entry: Any) -> Technique:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
        raise AccelError(f"a technique is an object with a name, not {entry!r}")
    settings = {key: value for key, value in entry.items() if key != "name"}
    return registry.find(entry["name"]).from_settings(settings)

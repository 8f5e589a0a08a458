"""What a device decided and why, as text for people.

`fleet why` and `fleet-agent why` show the same lines for the same event.

Rules:
- Control characters in text from outside are replaced, so that no terminal obeys them.
- An unknown value is left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from wire.console.sizes import bytes_text
from wire.console.text import local_time, plain_text

KINDS: Final = (
    "clock",
    "connection",
    "damage",
    "decision",
    "defer",
    "drift",
    "fallback",
    "gap",
    "grpc",
    "hook",
    "install",
    "measure",
    "override",
    "peers",
    "points",
    "policy",
    "refused",
    "removed",
    "restore",
    "scrub",
    "series",
    "shadow",
    "slow",
    "source",
    "start",
    "storage",
    "switch",
    "trust",
    "unload",
    "worker",
)
"""The kinds of events of this version; a newer agent may have more."""


def reason_lines(at_s: float, kind: str, reason: str, data: Mapping[str, Any]) -> list[str]:
    """Return an event for people.

    Args:
        at_s: When it happened, in seconds since the epoch.
        kind: What it was, such as `switch`.
        reason: Why, in the device's own words.
        data: The inputs of the decision.

    Returns:
        When, what and why on one line; below it the inputs of the decision and why each other
        variant lost.
    """
    rest = dict(data)
    verdicts, inputs = rest.pop("verdicts", None), rest.pop("inputs", None)
    changed, before = rest.get("changed"), rest.get("before")
    settings = ""
    if isinstance(changed, dict) and isinstance(before, dict):
        settings = changes_text(rest.pop("before"), rest.pop("changed"))
    change = ""
    if {"from", "to"} <= rest.keys():
        change = f" {_text(rest.pop('from'))} -> {_text(rest.pop('to'))}"
    lines = [f"{local_time(at_s)} {_text(kind)}{change}: {_text(reason)}"]
    if settings:
        lines.append(f"    changed: {settings}")
    lines += [f"    {_text(n)}: {_value(n, v)}" for n, v in sorted(rest.items()) if _is_known(v)]
    if isinstance(inputs, dict) and any(map(_is_known, inputs.values())):
        lines.append(f"    inputs: {_pairs(inputs)}")
    if isinstance(verdicts, dict):
        lines += [f"    not {_text(name)}: {_text(verdicts[name])}" for name in sorted(verdicts)]
    return lines


def changes_text(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """Return what changed, each setting with its old value.

    Args:
        before: The settings that changed, as they were.
        after: The same as they are; None, or left out, for none.

    Returns:
        Such as `objective.deadline_ms=none (was 100)  kind=rules (was adaptive)`.
    """
    names = sorted({*before, *after})
    return "  ".join(
        f"{_text(n)}={_setting(n, after.get(n))} (was {_setting(n, before.get(n))})" for n in names
    )


def _setting(name: str, value: object) -> str:
    return "none" if value is None else _value(name, value)


def _pairs(values: Mapping[str, Any]) -> str:
    known = {name: value for name, value in sorted(values.items()) if _is_known(value)}
    return "  ".join(f"{_text(name)}={_value(name, value)}" for name, value in known.items())


def _is_known(value: object) -> bool:
    return value is not None and value not in ("", {}, [], ())


def _value(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return bytes_text(value) if name.endswith("_bytes") else f"{value:.6g}"
    if isinstance(value, dict) and name.endswith("bytes_by_source"):
        return ", ".join(f"{_text(source)} {_value('_bytes', n)}" for source, n in value.items())
    if isinstance(value, dict):
        return _pairs(value)
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return _text(value)


def _text(value: object) -> str:
    return "nothing" if value is None else plain_text(str(value))

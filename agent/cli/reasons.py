"""What the agent decided and why, as text for people.

Rules:
- Text from outside is shown, never obeyed: control characters are replaced.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Final

MIB: Final = 1024 * 1024


def reason_lines(event: Mapping[str, Any]) -> list[str]:
    """Return an event for people.

    Args:
        event: As the control socket or the spool gives it.

    Returns:
        When, what and why on one line; below it what the decision was made from and why each other
        candidate lost.
    """
    data = dict(event.get("data") or {})
    verdicts, inputs = data.pop("verdicts", None), data.pop("inputs", None)
    change = ""
    if {"from", "to"} <= data.keys():
        change = f" {_text(data.pop('from'))} -> {_text(data.pop('to'))}"
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at_s"]))
    lines = [f"{moment} {_text(event['kind'])}{change}: {_text(event['reason'])}"]
    lines += [f"    {_text(n)}: {_value(n, v)}" for n, v in sorted(data.items()) if _is_known(v)]
    if isinstance(inputs, dict) and any(map(_is_known, inputs.values())):
        lines.append(f"    inputs: {_pairs(inputs)}")
    if isinstance(verdicts, dict):
        lines += [f"    not {_text(name)}: {_text(verdicts[name])}" for name in sorted(verdicts)]
    return lines


def _pairs(values: Mapping[str, Any]) -> str:
    known = {name: value for name, value in sorted(values.items()) if _is_known(value)}
    return "  ".join(f"{_text(name)}={_value(name, value)}" for name, value in known.items())


def _is_known(value: object) -> bool:
    return value is not None and value not in ("", {}, [], ())


def _value(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        is_size = name.endswith("_bytes")
        return f"{value / MIB:.1f} MiB" if is_size else f"{value:.6g}"
    if isinstance(value, dict):
        return _pairs(value)
    if isinstance(value, list | tuple):
        return ", ".join(_text(item) for item in value)
    return _text(value)


def _text(value: object) -> str:
    text = "nothing" if value is None else str(value)
    return "".join(c if c.isprintable() else "\ufffd" for c in text)

"""Attributes: what the controller knows of a device from the device itself. Pure.

Labels are the operator's and attributes are the device's. They are kept apart, and each has names
of its own.

Rules:
- A label set today has the name of no attribute. One of an earlier version may have it: then the
  plain name means the attribute, and `label:NAME` the label.
- A steady attribute changes only when a device connects. Policies and captures may ask for steady
  ones alone, because they are chosen anew then, and not when another one changes.
- An attribute that is not known of a device has no value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from wire.durations import parse_duration_s
from wire.errors import WireFormatError

Kind = Literal["text", "version", "number", "list"]
Unit = Literal["", "bytes", "s"]
Value = str | float | tuple[str, ...]
"""A text or a version, a number, or a list."""

MODEL_PREFIX: Final = "model."
MAX_NUMBER_DIGITS: Final = 18
"""A device that reports a longer number is believed to have none."""

_NUMBER: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,6})?)([A-Za-z]*)", re.ASCII)
_BYTES: Final = {
    "": 1, "B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3, "TB": 1000**4,
    "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3, "TiB": 1024**4,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """An attribute."""

    kind: Kind
    unit: Unit = ""
    steady: bool = True


ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "id": Attribute(kind="text"),
    "profile": Attribute(kind="text"),
    "arch": Attribute(kind="text"),
    "agent_version": Attribute(kind="version"),
    "cpu_count": Attribute(kind="number"),
    "memory_bytes": Attribute(kind="number", unit="bytes"),
    "storage_bytes": Attribute(kind="number", unit="bytes"),
    "power_source": Attribute(kind="text"),
    "runtimes": Attribute(kind="list"),
    "accelerators": Attribute(kind="list"),
    "isa_features": Attribute(kind="list"),
    "device_state": Attribute(kind="text", steady=False),
    "online": Attribute(kind="text", steady=False),
    "silent_s": Attribute(kind="number", unit="s", steady=False),
}
"""Those that all devices have, beside `model.NAME`."""

OF_MODEL: Final = Attribute(kind="version", steady=False)
"""The version of a model's release that is active on the device."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceValues:
    """What selectors are matched with."""

    labels: Mapping[str, str]
    attributes: Mapping[str, Value]


def attribute(name: str) -> Attribute | None:
    """Return an attribute; None if there is none of that name."""
    is_model = name.startswith(MODEL_PREFIX) and len(name) > len(MODEL_PREFIX)
    return OF_MODEL if is_model else ATTRIBUTES.get(name)


def parse_amount(text: str, unit: Unit) -> float | None:
    """Read a number with its unit.

    Args:
        text: Such as `4`, `2GiB`, `500MB`, `90s`, `1h30m`.
        unit: The unit of the attribute.

    Returns:
        The number in that unit; None if it cannot be read.
    """
    found = _NUMBER.fullmatch(text)
    if found is not None and unit == "bytes":
        factor = _BYTES.get(found[2])
        return None if factor is None else float(found[1]) * factor
    if found is not None and not found[2]:
        return float(found[1])
    if unit != "s":
        return None
    try:
        return parse_duration_s(text)
    except WireFormatError:
        return None


def how_written(unit: Unit) -> str:
    """Return how a number of a unit is written."""
    return {
        "": "a number such as 4",
        "bytes": "bytes, or a number with kB, MB, GB, TB, KiB, MiB, GiB or TiB, such as 2GiB",
        "s": "seconds, or a time such as 90s, 30m or 1h30m",
    }[unit]

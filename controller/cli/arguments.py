"""Values as people type them: durations, stages, labels; and options that many commands share.

Rules:
- A value that cannot be read is refused, with an example of one that can.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

import typer

from controller.client.errors import ArgumentError
from controller.client.words import (
    MAX_DURATION_S,
    WHOLE_PERCENT,
    parse_agreement,
    parse_duration,
    parse_percent,
)

__all__ = [
    "ALL_DEVICES",
    "GLOBAL_FLAGS",
    "GLOBAL_OPTIONS",
    "MAX_BYTES",
    "MAX_DURATION_S",
    "WHOLE_PERCENT",
    "HomeArgument",
    "JsonOption",
    "hoist_global_options",
    "parse_agreement",
    "parse_bytes",
    "parse_duration",
    "parse_labels",
    "parse_percent",
    "parse_rate",
    "selected",
]

MAX_BYTES = 10**12
_UNITS: Final = {
    "": 1, "b": 1, "kb": 1000, "mb": 1000**2, "gb": 1000**3,
    "kib": 1024, "mib": 1024**2, "gib": 1024**3,
}  # fmt: skip
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,6})?) ?([kmg]?i?b|)", re.IGNORECASE | re.ASCII)
_RATE = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,6})?)/(s|min|h)", re.ASCII)
_RATE_UNITS_S: Final = {"s": 1.0, "min": 60.0, "h": 3600.0}

JsonOption = Annotated[bool, typer.Option("--json", help="Print as JSON.")]
HomeArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Data directory of the controller.")
]
ALL_DEVICES = "all devices"
GLOBAL_OPTIONS = ("--home", "--url", "--token-file", "--ca-file")
GLOBAL_FLAGS = ("--api-clear-text",)


def parse_rate(text: str, *, option: str) -> float:
    """Read how often something may happen.

    Args:
        text: Such as `20/s` or `30/min`.
        option: The option that it belongs to, for the error.

    Returns:
        Times a second.

    Raises:
        ArgumentError: Not a rate.
    """
    found = _RATE.fullmatch(text.strip())
    if found is None or float(found[1]) == 0.0:
        raise ArgumentError(
            f"{option}: {text[:40]!r} is not a rate", remedy="write it as 20/s or 30/min"
        )
    return float(found[1]) / _RATE_UNITS_S[found[2]]


def parse_bytes(text: str, *, option: str) -> int:
    """Read a size.

    Args:
        text: Such as `500kB`, `1MB`, `2MiB`; or a number of bytes.
        option: The option that it belongs to, for the error.

    Returns:
        Bytes.

    Raises:
        ArgumentError: Not a size, or none.
    """
    found = _SIZE.fullmatch(text.strip())
    size = float(found[1]) * _UNITS[found[2].lower()] if found else 0.0
    if not 1.0 <= size <= MAX_BYTES:
        raise ArgumentError(
            f"{option}: {text!r} is not a size", remedy="write a number and a unit, such as 1MB"
        )
    return int(size)


def parse_labels(pairs: Sequence[str]) -> dict[str, str]:
    """Read labels.

    Args:
        pairs: Each `key=value`.

    Returns:
        Key to value.

    Raises:
        ArgumentError: Not of that form, or a key twice.
    """
    labels: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not (key and equals and value):
            raise ArgumentError(f"{pair!r} is not a label", remedy="write key=value")
        if key in labels:
            raise ArgumentError(
                f"the label {key} is given twice", remedy="give one value for each label"
            )
        labels[key] = value
    return labels


def label_changes(changes: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Read changes of labels.

    Args:
        changes: Each `key=value` to set, or `key-` to remove.

    Returns:
        The labels to set, and those to remove; one that is both is set.

    Raises:
        ArgumentError: A change of neither form, or a key twice.
    """
    removed = [change[:-1] for change in changes if "=" not in change and change.endswith("-")]
    added = parse_labels([change for change in changes if change[:-1] not in removed])
    return added, [key for key in dict.fromkeys(removed) if key not in added]


def selected(selector: str) -> str:
    """Return a selector as it is shown: the empty one selects all devices."""
    return selector or ALL_DEVICES


def hoist_global_options(arguments: Sequence[str]) -> list[str]:
    """Move the options that say where the controller is to the front, so they may be anywhere.

    Args:
        arguments: The command line.

    Returns:
        The same arguments in another order; nothing after `--` moves.
    """
    front: list[str] = []
    rest: list[str] = []
    waiting = iter(arguments)
    for argument in waiting:
        if argument == "--":
            rest.append(argument)
            rest.extend(waiting)
        elif argument in GLOBAL_OPTIONS:
            value = next(waiting, None)
            front.extend([argument] if value is None else [argument, value])
        elif argument.partition("=")[0] in GLOBAL_OPTIONS or argument in GLOBAL_FLAGS:
            front.append(argument)
        else:
            rest.append(argument)
    return [*front, *rest]

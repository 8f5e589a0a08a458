"""A policy as a person writes it, in a file or with options: what is wrong in it. Pure.

Rules:
- What would have no effect is a fault here: a key that is misspelt, an objective that `rules` does
  not look at. In a message or in what is stored neither is: it may be of another version.
- A fault names the key; the remedy says what may be written.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import time
from types import MappingProxyType
from typing import Any, Final, get_args

import msgspec

from wire.codec import MAX_JSON_BYTES, convert, from_json, from_toml
from wire.errors import PolicyFileError, WireFormatError
from wire.policy import MAX_WEIGHT, MAX_WORKERS, REPORT_S, Objective, PolicySpec, Sharing
from wire.settings_faults import no_such_setting, plain_fault

OBJECTIVE: Final = "objective"
SHARING: Final = "sharing"
TABLES: Final = MappingProxyType({OBJECTIVE: Objective, SHARING: Sharing})
"""The tables within a policy."""

ADAPTIVE: Final = "adaptive"
KINDS: Final[tuple[str, ...]] = get_args(msgspec.structs.fields(PolicySpec)[0].type)

LIMITS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "hot_headroom": "a number that is not below cool_headroom",
        "cool_headroom": "a number that is not above hot_headroom",
        "low_battery_ratio": "0 to 1, and not above ok_battery_ratio",
        "ok_battery_ratio": "0 to 1, and not below low_battery_ratio",
        "low_memory_bytes": "a whole number, 0 or more",
        "dwell_s": "0 or more",
        "report_every_s": f"seconds, from {REPORT_S[0]:g} to {REPORT_S[1]:g}",
        "objective.min_retention": "0 to 1",
        "objective.deadline_ms": "a number above 0, or leave it out where only the rate counts",
        "objective.deadline_probability": "0.5 or more, and below 1",
        "objective.battery_lasts_s": "seconds, 0 or more",
        "objective.battery_until": 'a time of day in quotes, such as "18:00"',
        "sharing.weight": f"a number from {1.0 / MAX_WEIGHT:g} to {MAX_WEIGHT:g}",
        "sharing.may_park": "true or false",
        "sharing.workers": f"a whole number from 1 to {MAX_WORKERS}",
        "sharing.keep_previous": "true or false",
    }
)
"""What each key may be."""

_ELSEWHERE: Final = MappingProxyType(
    {
        "battery_hours": ("objective.battery_lasts_s", "in seconds: 6 hours are 21600"),
        "deadline_s": ("objective.deadline_ms", "in milliseconds"),
    }
)
"""Names that a reader of `--help` may take for keys."""

_BARE_TIME: Final = re.compile(
    r"""^\s*(?:objective\.)?battery_until\s*=\s*(\d{1,2}:\d{2})""", re.MULTILINE
)


def read_policy(data: bytes, name: str, *, limit_bytes: int = MAX_JSON_BYTES) -> dict[str, Any]:
    """Read the keys of a policy from a file.

    Args:
        data: The bytes of the file.
        name: Its name: one that ends in `.json` is JSON. Any other is TOML, or JSON if it begins
            with a brace, as no TOML does.
        limit_bytes: Refuse anything longer.

    Returns:
        The keys; `checked_policy` says whether they can be.

    Raises:
        PolicyFileError: It is neither TOML nor JSON, or too long.
    """
    is_json = name.endswith(".json") or data.lstrip().startswith(b"{")
    try:
        if is_json:
            return from_json(data, dict)
        return from_toml(data, dict, limit_bytes=limit_bytes)
    except WireFormatError as exc:
        bare = None if is_json else _BARE_TIME.search(data.decode(errors="replace"))
        if bare is not None:
            fault = _unquoted(bare[1])
            raise fault from exc
        raise PolicyFileError(
            exc.message, remedy="write the keys of [policy] in agent.toml, without that heading"
        ) from exc


def checked_policy(values: Mapping[str, Any]) -> PolicySpec:
    """Return the policy that a person wrote.

    Args:
        values: Its keys; what is left out has its default.

    Returns:
        The policy.

    Raises:
        PolicyFileError: It cannot be, or a part of it would have no effect.
    """
    if isinstance(values.get("policy"), dict):
        raise PolicyFileError(
            "[policy] is a heading of agent.toml",
            remedy="write its keys without that heading, and [policy.objective] as [objective]",
        )
    tables = {name: values.get(name, {}) for name in TABLES}
    for name, table in tables.items():
        if not isinstance(table, dict):
            raise PolicyFileError(
                f"{name} is not a table", remedy=f"write it as [{name}]", key=name
            )
    _check_names(values, tables)
    if values.get("kind", PolicySpec().kind) not in KINDS:
        raise PolicyFileError(
            f"kind is {' or '.join(KINDS)}, not {str(values['kind'])[:64]!r}",
            remedy="write one of them",
            key="kind",
        )
    inner = {f"{name}.{key}": v for name, table in tables.items() for key, v in table.items()}
    _check_values(dict(values) | inner)
    try:
        spec = convert(dict(values), PolicySpec)
    except WireFormatError as exc:
        fault = plain_fault(exc.message, PolicySpec)
        error = _faulty(fault)
        raise error from exc
    if faults := spec.faults():
        error = _faulty(faults[0])
        raise error
    if OBJECTIVE in values and spec.kind != ADAPTIVE:
        raise PolicyFileError(
            "only the adaptive policy has an objective",
            remedy='write kind = "adaptive"',
            key=OBJECTIVE,
        )
    return spec


def _check_names(values: Mapping[str, Any], tables: Mapping[str, Mapping[str, Any]]) -> None:
    inner = {key: name for name, kind in TABLES.items() for key in kind.__struct_fields__}
    known = {f"{name}.": kind.__struct_fields__ for name, kind in TABLES.items()}
    for table, keys, allowed in (
        ("", values, PolicySpec.__struct_fields__),
        *((f"{name}.", keys, known[f"{name}."]) for name, keys in tables.items()),
    ):
        for key in keys:
            if key in allowed:
                continue
            if not table and key in inner:
                where = f"the {inner[key]}" if inner[key] == OBJECTIVE else f"[{inner[key]}]"
                raise PolicyFileError(
                    f"{key} stands outside of {where}",
                    remedy=f"write it below [{inner[key]}], at the end",
                    key=key,
                )
            if key in _ELSEWHERE:
                name, how = _ELSEWHERE[key]
                fault = f"there is no setting {table}{key} (did you mean {name}, {how}?)"
            else:
                shown = key[:64] if key.isprintable() else ascii(key[:64])
                fault = no_such_setting(f"{table}{shown}", PolicySpec)
            raise PolicyFileError(
                fault,
                remedy="docs/policies.md lists the keys and their limits",
                key=table + key,
            )


def _check_values(values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise PolicyFileError(f"{key} is not a number: {value}", remedy=_remedy(key), key=key)
        if isinstance(value, time) and key.endswith("battery_until"):
            error = _unquoted(f"{value:%H:%M}")
            raise error


def _unquoted(text: str) -> PolicyFileError:
    return PolicyFileError(
        f"objective.battery_until is {text} without quotes",
        remedy=f'write it in quotes: "{text}"',
        key="objective.battery_until",
    )


def _faulty(fault: str) -> PolicyFileError:
    key = fault.partition(" ")[0].rstrip(":")
    return PolicyFileError(fault, remedy=_remedy(key), key=key)


def _remedy(key: str) -> str:
    limit = LIMITS.get(key)
    return f"give {limit}" if limit else "docs/policies.md lists the keys and their limits"

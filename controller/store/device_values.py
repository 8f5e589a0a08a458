"""What selectors are matched with: the labels of devices, and the attributes that they report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from controller.domain.attributes import (
    MAX_NUMBER_DIGITS,
    MODEL_PREFIX,
    DeviceValues,
    Value,
)
from controller.store.device_tables import DeviceLabelRow, DeviceRow

_STEADY = (
    DeviceRow.id,
    DeviceRow.profile_name,
    DeviceRow.architecture,
    DeviceRow.agent_version,
    DeviceRow.profile,
    DeviceRow.runtimes,
)
_NUMBERS = ("cpu_count", "memory_bytes", "storage_bytes")
_LISTS = ("accelerators", "isa_features")


def steady_attributes(row: Any) -> dict[str, Value]:  # noqa: ANN401 - a DeviceRow or a part of one
    """Return the attributes that change only when a device connects.

    Args:
        row: A device, or a row of a query that has its columns.

    Returns:
        Name to value, without what is not known.
    """
    profile: Mapping[str, Any] = row.profile
    found: dict[str, Value] = {
        "id": row.id,
        "profile": row.profile_name,
        "arch": row.architecture,
        "agent_version": row.agent_version,
    }
    if "power_source" in profile:
        found["power_source"] = profile["power_source"]
    for name in _NUMBERS:
        number = profile.get(name)
        if number is not None and number < 10**MAX_NUMBER_DIGITS:
            found[name] = number
    runtimes = profile.get("runtimes", ()) if row.runtimes is None else row.runtimes
    lists = {"runtimes": runtimes} | {name: profile.get(name, ()) for name in _LISTS}
    return found | {name: tuple(items) for name, items in lists.items() if items}


def attributes(row: DeviceRow, models: Mapping[str, str], *, now_s: float) -> dict[str, Value]:
    """Return all attributes of a device.

    Args:
        row: The device.
        models: Of each model that it runs the version, or the digest of what nobody published.
        now_s: Wall time.

    Returns:
        Name to value, without what is not known.
    """
    found = steady_attributes(row)
    found["device_state"] = row.state
    found["online"] = "true" if row.online else "false"
    if row.last_seen_at_s is not None:
        found["silent_s"] = now_s - row.last_seen_at_s
    return found | {MODEL_PREFIX + name: version for name, version in models.items() if name}


def steady_values(session: Session, devices: Sequence[str]) -> dict[str, DeviceValues]:
    """Return the labels and the steady attributes of devices.

    Args:
        session: The transaction.
        devices: Which devices; at most as many as one statement may name.

    Returns:
        Device to what is known of it.
    """
    rows = session.execute(select(*_STEADY).where(DeviceRow.id.in_(devices)))
    found = {row.id: steady_attributes(row) for row in rows}
    labels: dict[str, dict[str, str]] = {device: {} for device in found}
    rows_of_labels = session.execute(
        select(DeviceLabelRow.device, DeviceLabelRow.key, DeviceLabelRow.value).where(
            DeviceLabelRow.device.in_(devices)
        )
    )
    for device, key, value in rows_of_labels:
        labels[device][key] = value
    return {
        device: DeviceValues(labels=labels[device], attributes=known)
        for device, known in found.items()
    }

"""Labels of many devices at once; those of one are in `controller.store.devices`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import bindparam, delete, insert, select
from sqlalchemy.orm import Session

from controller.store import devices as device_rows
from controller.store import policy_choices
from controller.store.database import in_batches
from controller.store.device_tables import DeviceLabelRow

_REMOVE = delete(DeviceLabelRow).where(
    DeviceLabelRow.device == bindparam("of_device"), DeviceLabelRow.key == bindparam("of_key")
)


def locked(session: Session, devices: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the labels of devices, and keep other transactions from changing the devices.

    Args:
        session: The transaction.
        devices: Which; sorted, so that no two transactions wait for each other.

    Returns:
        Device to its labels, of those that there are.
    """
    found: dict[str, dict[str, str]] = {}
    label = DeviceLabelRow
    for batch in in_batches(devices):
        found |= {device: {} for device in device_rows.lock_all(session, batch)}
        labels = select(label.device, label.key, label.value).where(label.device.in_(batch))
        for device, key, value in session.execute(labels):
            if device in found:
                found[device][key] = value
    return found


def change(
    session: Session,
    before: Mapping[str, Mapping[str, str]],
    after: Mapping[str, Mapping[str, str]],
) -> None:
    """Give devices other labels; their policies are chosen again.

    Args:
        session: The transaction; it holds the locks of the devices.
        before: Device to the labels that it has.
        after: The same devices to those that it gets.
    """
    old = [(device, item) for device, labels in before.items() for item in labels.items()]
    new = [(device, item) for device, labels in after.items() for item in labels.items()]
    gone, added = set(old).difference(new), set(new).difference(old)
    connection = session.connection()
    if gone:
        names = [{"of_device": device, "of_key": key} for device, (key, _) in sorted(gone)]
        connection.execute(_REMOVE, names)
    if added:
        rows = [
            {"device": device, "key": key, "value": value} for device, (key, value) in sorted(added)
        ]
        connection.execute(insert(DeviceLabelRow), rows)
    session.expire_all()
    policy_choices.mark_all_stale(session, sorted({device for device, _ in gone | added}))

"""What devices said of themselves, in one query for a whole fleet: what a preflight needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, String, cast, select
from sqlalchemy.orm import Session

from controller.domain.selectors import Selector
from controller.store.database import in_batches
from controller.store.devices import selected
from controller.store.tables import DeviceRow


class DeviceFacts(NamedTuple):
    """A device, as far as it decides whether it can take a release."""

    id: str
    state: str
    online: bool
    profile: str
    """JSON. It is not read here: thousands of devices have the same."""

    runtimes: str | None
    """JSON: those of the profile that it has; None where it has all of them."""

    greeted: bool
    """Whether this is what it said itself, and not only what its enrolment says."""

    release: str | None
    """Digest of what it runs."""

    lent: bool
    """Whether the operator lends it for measurements."""

    boot_id: str
    """The start of its agent that was heard of last."""

    profile_name: str


_FACTS = select(
    DeviceRow.id,
    DeviceRow.state,
    DeviceRow.online,
    cast(DeviceRow.profile, String),
    cast(DeviceRow.runtimes, String),
    DeviceRow.greeted,
    DeviceRow.reported_release,
    DeviceRow.lent,
    DeviceRow.boot_id,
    DeviceRow.profile_name,
)


def of_selector(session: Session, selector: Selector) -> list[DeviceFacts]:
    """Return the devices that match a selector, by identifier, whatever their state."""
    return _facts(session, selected(selector))


def of_devices(session: Session, devices: Sequence[str]) -> list[DeviceFacts]:
    """Return some devices."""
    found: list[DeviceFacts] = []
    for batch in in_batches(devices):
        found += _facts(session, [DeviceRow.id.in_(batch)])
    return found


def _facts(session: Session, conditions: list[ColumnElement[bool]]) -> list[DeviceFacts]:
    rows = session.execute(_FACTS.where(*conditions).order_by(DeviceRow.id))
    return [DeviceFacts._make(row) for row in rows]

"""What devices said of themselves, in few queries for a whole fleet: what a preflight needs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import ColumnElement, String, cast, select
from sqlalchemy.orm import Session

from controller.domain.selectors import Selector
from controller.store.database import in_batches
from controller.store.devices import named_model
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.selector_conditions import conditions
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

    releases: frozenset[str]
    """Digests of what it runs."""

    models: frozenset[str]
    """The models that it runs or is to run."""

    desired_form: int
    """The newest form of a desired state that it reads."""

    lent: bool
    """Whether the operator lends it for measurements."""

    boot_id: str
    """The start of its agent that was heard of last."""

    profile_name: str
    allows_shadows: bool
    """Whether it may run a shadow, as far as it has said."""


_FACTS = select(
    DeviceRow.id,
    DeviceRow.state,
    DeviceRow.online,
    cast(DeviceRow.profile, String).label("profile"),
    cast(DeviceRow.runtimes, String).label("runtimes"),
    DeviceRow.greeted,
    DeviceRow.desired_form,
    DeviceRow.lent,
    DeviceRow.boot_id,
    DeviceRow.profile_name,
    DeviceRow.allows_shadows,
)
_SAID = DeviceFacts._fields.index("releases")
"""How many of these come before what other tables have."""

_TOLD = (
    select(DeviceModelRow.device, DeviceModelRow.model, DeviceModelRow.release)
    .join(DeviceRow, DeviceRow.id == DeviceModelRow.device)
    .where(DeviceModelRow.release.is_not(None))
)
_WANTED = select(DesiredModelRow.device, DesiredModelRow.model).join(DeviceRow, named_model())
_REMOVED = (
    select(DesiredModelRow.device, DesiredModelRow.model)
    .join(DeviceRow, DeviceRow.id == DesiredModelRow.device)
    .where(DesiredModelRow.removed)
)


def of_selector(session: Session, selector: Selector) -> list[DeviceFacts]:
    """Return the devices that match a selector, by identifier, whatever their state."""
    return _facts(session, conditions(session, selector))


def of_devices(session: Session, devices: Sequence[str]) -> list[DeviceFacts]:
    """Return some devices."""
    found: list[DeviceFacts] = []
    for batch in in_batches(devices):
        found += _facts(session, [DeviceRow.id.in_(batch)])
    return found


def profile_names(session: Session, devices: Sequence[str]) -> dict[str, str]:
    """Return the profiles of some devices."""
    found: dict[str, str] = {}
    for batch in in_batches(devices):
        rows = session.execute(
            select(DeviceRow.id, DeviceRow.profile_name).where(DeviceRow.id.in_(batch))
        )
        found |= dict(rows.all())
    return found


def _facts(session: Session, wanted: list[ColumnElement[bool]]) -> list[DeviceFacts]:
    releases: defaultdict[str, set[str]] = defaultdict(set)
    models: defaultdict[str, set[str]] = defaultdict(set)
    connection = session.connection()  # no objects are read, and a session takes twice as long
    for device, model, release in connection.execute(_TOLD.where(*wanted)):
        releases[device].add(release or "")
        models[device].add(model)
    for device, model in connection.execute(_REMOVED.where(*wanted)):
        models[device].discard(model)
    for device, model in connection.execute(_WANTED.where(*wanted)):
        models[device].add(model)
    rows = connection.execute(_FACTS.where(*wanted).order_by(DeviceRow.id))
    return [
        DeviceFacts._make(
            (*row[:_SAID], frozenset(releases[row.id]), frozenset(models[row.id]), *row[_SAID:])
        )
        for row in rows
    ]

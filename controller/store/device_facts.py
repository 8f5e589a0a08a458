"""What devices said of themselves, in few queries for a whole fleet: what a preflight needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Select, String, cast, func, select
from sqlalchemy.orm import InstrumentedAttribute, Session

from controller.domain.selectors import Selector
from controller.store.database import in_batches
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.selector_conditions import conditions
from controller.store.tables import DeviceRow


class Kind(NamedTuple):
    """What decides whether a device can take a release: those that are alike say the same."""

    profile: str
    """JSON. It is not read here: thousands of devices have the same."""

    runtimes: str | None
    """JSON: those of the profile that it has; None where it has all of them."""

    greeted: bool
    """Whether this is what it said itself, and not only what its enrolment says."""

    desired_form: int
    """The newest form of a desired state that it reads."""

    releases: frozenset[str]
    """Digests of what it runs."""

    models: frozenset[str]
    """The models that it runs or is to run."""


class DeviceFacts(NamedTuple):
    """A device, as far as people ask before a rollout or a measurement."""

    id: str
    kind: Kind
    """Devices that are alike share one object."""

    state: str
    online: bool
    lent: bool
    """Whether the operator lends it for measurements."""

    boot_id: str
    """The start of its agent that was heard of last."""

    profile_name: str
    allows_shadows: bool
    """Whether it may run a shadow, as far as it has said."""


_KIND = (
    cast(DeviceRow.profile, String),
    cast(DeviceRow.runtimes, String),
    DeviceRow.greeted,
    DeviceRow.desired_form,
)
_OTHERS = (
    DeviceRow.state,
    DeviceRow.online,
    DeviceRow.lent,
    DeviceRow.boot_id,
    DeviceRow.profile_name,
    DeviceRow.allows_shadows,
)
_NAMES = " "
"""What stands between the names of devices, which have no such character."""

_TOLD = (
    select(
        DeviceModelRow.model,
        DeviceModelRow.release,
        func.aggregate_strings(DeviceModelRow.device, _NAMES),
    )
    .where(DeviceModelRow.release.is_not(None))
    .group_by(DeviceModelRow.model, DeviceModelRow.release)
)
_WANTED = select(
    DesiredModelRow.model,
    DesiredModelRow.removed,
    func.aggregate_strings(DesiredModelRow.device, _NAMES),
).group_by(DesiredModelRow.model, DesiredModelRow.removed)


def kinds_of_selector(session: Session, selector: Selector) -> dict[str, Kind]:
    """Return the kind of each device that matches a selector, whatever its state."""
    return _kinds(session, conditions(session, selector))


def kinds_of_devices(session: Session, devices: Sequence[str]) -> dict[str, Kind]:
    """Return the kind of each of some devices."""
    found: dict[str, Kind] = {}
    for batch in in_batches(devices):
        found |= _kinds(session, [DeviceRow.id.in_(batch)])
    return found


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
    kinds = _kinds(session, wanted)
    statement = select(DeviceRow.id, *_OTHERS).where(*wanted).order_by(DeviceRow.id)
    return [
        DeviceFacts._make((row[0], kinds[row[0]], *row[1:]))
        for row in session.connection().execute(statement)
        if row[0] in kinds  # else it enrolled between the two statements
    ]


def _kinds(session: Session, wanted: list[ColumnElement[bool]]) -> dict[str, Kind]:
    """Return the kind of each device: one object for all devices that are alike."""
    connection = session.connection()  # no objects are read, and a session takes twice as long
    told = _by_device(connection, _TOLD, DeviceModelRow.device, wanted)
    named = _by_device(connection, _WANTED, DesiredModelRow.device, wanted)
    made: dict[tuple[Any, ...], Kind] = {}
    kinds: dict[str, Kind] = {}
    rows = connection.execute(select(DeviceRow.id, *_KIND).where(*wanted)).all()
    for device, profile, runtimes, greeted, form in rows:
        alike = profile, runtimes, greeted, form, told.get(device, ()), named.get(device, ())
        kind = made.get(alike)
        if kind is None:
            kind = made[alike] = _kind(*alike)
        kinds[device] = kind
    return kinds


def _by_device(
    connection: Connection,
    statement: Select[str, Any, str],
    column: InstrumentedAttribute[str],
    wanted: list[ColumnElement[bool]],
) -> dict[str, tuple[tuple[str, Any], ...]]:
    """Return what rows that are alike say of each of their devices.

    The database puts their names together, as there are few that are not alike.
    """
    if wanted:
        statement = statement.where(column.in_(select(DeviceRow.id).where(*wanted)))
    found: dict[str, tuple[tuple[str, Any], ...]] = {}
    for model, said, devices in connection.execute(statement):
        one = ((model, said),)
        for device in devices.split(_NAMES):
            found[device] = found.get(device, ()) + one
    return found


def _kind(
    profile: str,
    runtimes: str | None,
    greeted: bool,
    form: int,
    told: Sequence[tuple[str, str]],
    named: Sequence[tuple[str, bool]],
) -> Kind:
    models = {model for model, _ in told}
    models.difference_update(model for model, is_removed in named if is_removed)
    models.update(model for model, is_removed in named if not is_removed)
    return Kind(
        profile=profile,
        runtimes=runtimes,
        greeted=greeted,
        desired_form=form,
        releases=frozenset(release for _, release in told),
        models=frozenset(models),
    )

"""What devices said of themselves, in few queries for a whole fleet: what a preflight needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, String, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import Session
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from controller.domain.selectors import Selector
from controller.store.database import MANY, in_batches
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.selector_conditions import conditions


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


_OTHERS = (
    DeviceRow.state,
    DeviceRow.online,
    DeviceRow.lent,
    DeviceRow.boot_id,
    DeviceRow.profile_name,
    DeviceRow.allows_shadows,
)
_BETWEEN = " "
"""What stands between the names of devices, which have no such character."""


class _AsText(FunctionElement[str]):
    """JSON as the text that it is: SQLite has it so, and a cast would copy each."""

    type = String()
    inherit_cache = True


@compiles(_AsText)
def _cast(element: _AsText, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    return f"CAST({compiler.process(element.clauses, **options)} AS TEXT)"


@compiles(_AsText, "sqlite")
def _as_it_is(element: _AsText, compiler: SQLCompiler, **options: Any) -> str:  # noqa: ANN401 - SQLAlchemy's
    return compiler.process(element.clauses, **options)


_PROFILE, _RUNTIMES = _AsText(DeviceRow.profile), _AsText(DeviceRow.runtimes)
_ITSELF = (_PROFILE, _RUNTIMES, DeviceRow.greeted, DeviceRow.desired_form)
_ALIKE = select(*_ITSELF, func.aggregate_strings(DeviceRow.id, _BETWEEN)).group_by(*_ITSELF)
_RUNS = DeviceModelRow.model, DeviceModelRow.release
_RUN_ALIKE = (
    select(*_RUNS, func.aggregate_strings(DeviceModelRow.device, _BETWEEN))
    .where(DeviceModelRow.release.is_not(None))
    .group_by(*_RUNS)
)
_NAMED = DesiredModelRow.model, DesiredModelRow.removed
_NAMED_ALIKE = select(*_NAMED, func.aggregate_strings(DesiredModelRow.device, _BETWEEN)).group_by(
    *_NAMED
)


def kinds_of_devices(session: Session, devices: Sequence[str]) -> dict[str, Kind]:
    """Return the kind of each of some devices."""
    if len(devices) > MANY:
        wanted = frozenset(devices)
        return {name: kind for name, kind in _kinds(session, []).items() if name in wanted}
    found: dict[str, Kind] = {}
    for batch in in_batches(devices):
        found |= _kinds(session, [DeviceRow.id.in_(batch)])
    return found


def of_selector(session: Session, selector: Selector) -> list[DeviceFacts]:
    """Return the devices that match a selector, by identifier, whatever their state."""
    return _facts(session, conditions(session, selector))


def of_devices(session: Session, devices: Sequence[str]) -> list[DeviceFacts]:
    """Return some devices."""
    if len(devices) > MANY:
        wanted = frozenset(devices)
        return [device for device in _facts(session, []) if device.id in wanted]
    found: list[DeviceFacts] = []
    for batch in in_batches(devices):
        found += _facts(session, [DeviceRow.id.in_(batch)])
    return found


def profile_names(session: Session, devices: Sequence[str]) -> dict[str, str]:
    """Return the profiles of some devices."""
    columns = select(DeviceRow.id, DeviceRow.profile_name)
    connection = session.connection()
    if len(devices) > MANY:
        wanted = frozenset(devices)
        rows = connection.execute(columns).all()
        return {device: profile for device, profile in rows if device in wanted}
    found: dict[str, str] = {}
    for batch in in_batches(devices):
        found |= dict(connection.execute(columns.where(DeviceRow.id.in_(batch))).all())
    return found


def _facts(session: Session, wanted: list[ColumnElement[bool]]) -> list[DeviceFacts]:
    kinds = _kinds(session, wanted)
    statement = select(DeviceRow.id, *_OTHERS).where(*wanted).order_by(DeviceRow.id)
    return [
        DeviceFacts._make((row[0], kinds[row[0]], *row[1:]))
        for row in session.connection().execute(statement)
        if row[0] in kinds  # else it enrolled between the two statements
    ]


class _Seen(NamedTuple):
    """What devices have in common in the tables that were read so far."""

    itself: tuple[Any, ...]
    """What the first columns of `Kind` are."""

    runs: tuple[tuple[str, str], ...] = ()
    """Models with the digests of what runs."""

    named: tuple[tuple[str, bool], ...] = ()
    """Models of the desired state, and whether each was removed."""


def _kinds(session: Session, wanted: list[ColumnElement[bool]]) -> dict[str, Kind]:
    """Return the kind of each device: one object for all devices that are alike.

    The database puts the names of devices together that are alike in a table, as it has few
    different rows. What each further table says parts those that were alike in the ones before.
    """
    alike, runs, named = _ALIKE.where(*wanted), _RUN_ALIKE, _NAMED_ALIKE
    if wanted:
        chosen = select(DeviceRow.id).where(*wanted)
        runs = runs.where(DeviceModelRow.device.in_(chosen))
        named = named.where(DesiredModelRow.device.in_(chosen))
    connection = session.connection()
    seen: list[_Seen] = []
    found: dict[str, int] = {}  # each device with its place in `seen`
    for *itself, names in connection.execute(alike):
        found |= dict.fromkeys(names.split(_BETWEEN), len(seen))
        seen.append(_Seen(itself=tuple(itself)))
    for model, release, names in connection.execute(runs):
        _part(found, seen, names, runs=(model, release))
    for model, is_removed, names in connection.execute(named):
        _part(found, seen, names, named=(model, is_removed))
    kinds = [_kind(each) for each in seen]
    return {device: kinds[number] for device, number in found.items()}


def _part(found: dict[str, int], seen: list[_Seen], names: str, **said: tuple[Any, ...]) -> None:
    """Part the devices of which a row tells from those that were like them so far."""
    after: dict[int, int] = {}
    for device in names.split(_BETWEEN):
        before = found.get(device, -1)
        if before not in after:
            if before < 0:  # it enrolled between two statements
                continue
            after[before] = len(seen)
            known = seen[before]
            more = {field: (*getattr(known, field), one) for field, one in said.items()}
            seen.append(known._replace(**more))
        found[device] = after[before]


def _kind(seen: _Seen) -> Kind:
    models = {model for model, _ in seen.runs}
    models.difference_update(model for model, is_removed in seen.named if is_removed)
    models.update(model for model, is_removed in seen.named if not is_removed)
    releases = frozenset(release for _, release in seen.runs)
    return Kind._make((*seen.itself, releases, frozenset(models)))

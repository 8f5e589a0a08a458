"""The models of the fleet: their releases, and which devices run and should run them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, exists, func, or_, select, union
from sqlalchemy.orm import InstrumentedAttribute, Session

from controller.domain.names import which_there_are
from controller.domain.selectors import Selector
from controller.domain.states import DeviceState
from controller.errors import UnknownModelError
from controller.store.database import MANY, in_batches
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.release_tables import ReleaseRow
from controller.store.selector_conditions import conditions

MAX_NAMES = 1000
_NONE = "publish one with `fleet release publish`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Having:
    """A device that runs a model or is to run it."""

    device: str
    form: int
    """The newest form of a desired state that it reads."""


def names(session: Session) -> list[str]:
    """Return the models of which there is a release, by name."""
    statement = select(ReleaseRow.name).distinct().order_by(ReleaseRow.name).limit(MAX_NAMES)
    return list(session.scalars(statement))


def known(session: Session) -> list[str]:
    """Return the models of which there is a release, or that a device has or should run."""
    columns = (ReleaseRow.name, DeviceModelRow.model, DesiredModelRow.model)
    found = union(*(select(column) for column in columns)).subquery()
    return [name for name in session.scalars(select(found.c[0]).order_by(found.c[0])) if name]


def check_known(session: Session, *wanted: str) -> None:
    """Refuse the name of a model that nobody has heard of, such as a misspelt one.

    Raises:
        UnknownModelError: No release has it, and no device.
    """
    there = known(session)
    for model in wanted:
        if model not in there:
            fault = unknown(model, there)
            raise fault


def check_released(session: Session, model: str) -> None:
    """Refuse the name of a model of which there is no release.

    Raises:
        UnknownModelError: There is none.
    """
    if session.scalar(select(ReleaseRow.name).where(ReleaseRow.name == model).limit(1)) is None:
        fault = unknown(model, names(session))
        raise fault


def unknown(model: str, known: Collection[str]) -> UnknownModelError:
    """Return the fault that a model is not known, with the names of those that are."""
    return UnknownModelError(
        f"there is no model {model[:64]!r}",
        remedy=which_there_are(model, sorted(known), what="models", none=_NONE),
    )


def having(session: Session, model: str, selector: Selector) -> list[Having]:
    """Return the devices that match a selector and run a model or are to run it.

    Those from which it was taken away already are not among them.

    Args:
        session: The transaction.
        model: The model.
        selector: Which devices.

    Returns:
        The devices, by identifier.
    """
    wanted = exists().where(DesiredModelRow.device == DeviceRow.id, DesiredModelRow.model == model)
    named = wanted.where(DesiredModelRow.removed.is_(False))
    told = exists().where(
        DeviceModelRow.device == DeviceRow.id,
        DeviceModelRow.model == model,
        DeviceModelRow.release.is_not(None),
    )
    rows = session.execute(
        select(DeviceRow.id, DeviceRow.desired_form)
        .where(
            DeviceRow.state != DeviceState.DECOMMISSIONED,
            or_(named, told & ~wanted),
            *conditions(session, selector),
        )
        .order_by(DeviceRow.id)
    )
    return [Having(device=device, form=form) for device, form in rows]


def served(session: Session, model: str, devices: Sequence[str]) -> dict[str, str | None]:
    """Return what some devices run of a model; those that have nothing of it are left out.

    Args:
        session: The transaction.
        model: The model.
        devices: The devices.

    Returns:
        Device to digest; None for one that runs nothing now.
    """
    columns = select(DeviceModelRow.device, DeviceModelRow.release).where(
        DeviceModelRow.model == model
    )
    connection = session.connection()
    if len(devices) > MANY:
        wanted = frozenset(devices)
        rows = connection.execute(columns).all()
        return {device: release for device, release in rows if device in wanted}
    found: dict[str, str | None] = {}
    for batch in in_batches(devices):
        found |= dict(connection.execute(columns.where(DeviceModelRow.device.in_(batch))).all())
    return found


def running(session: Session) -> dict[tuple[str, str | None], int]:
    """Return how many enrolled devices run each package of each model."""
    return _counts(session, DeviceModelRow.device, DeviceModelRow.model, DeviceModelRow.release)


def unloaded(session: Session) -> dict[tuple[str, str | None], int]:
    """Return how many of those that run a package let no variant of it serve.

    A device that has a package in service names the variant, unless a client has unloaded the model
    or it is parked.
    """
    return _counts(
        session,
        DeviceModelRow.device,
        DeviceModelRow.model,
        DeviceModelRow.release,
        DeviceModelRow.variant.is_(None),
    )


def wanted(session: Session) -> dict[tuple[str, str | None], int]:
    """Return how many enrolled devices should run each package of each model."""
    return _counts(session, DesiredModelRow.device, DesiredModelRow.model, DesiredModelRow.release)


def _counts(
    session: Session,
    device: InstrumentedAttribute[str],
    model: InstrumentedAttribute[str],
    release: InstrumentedAttribute[str | None],
    *conditions: ColumnElement[bool],
) -> dict[tuple[str, str | None], int]:
    rows = session.execute(
        select(model, release, func.count())
        .join(DeviceRow, DeviceRow.id == device)
        .where(DeviceRow.state == DeviceState.ENROLLED, release.is_not(None), *conditions)
        .group_by(model, release)
    )
    return {(name, digest): count for name, digest, count in rows}

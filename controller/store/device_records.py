"""Devices with what they should run and what they say that they run, to be shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from sqlalchemy import ColumnElement, ScalarSelect, select
from sqlalchemy.orm import Session, aliased, selectinload

from controller.domain.attributes import DeviceValues, Value
from controller.domain.paging import PageRequest
from controller.domain.selectors import Selector
from controller.domain.states import ORDERED_DEPLOYMENTS
from controller.errors import UnknownDeviceError
from controller.store import devices
from controller.store.database import in_batches
from controller.store.device_tables import DeviceRow
from controller.store.device_values import attributes, steady_attributes
from controller.store.model_tables import DesiredModelRow, DesiredStateRow, DeviceModelRow
from controller.store.paging import Column, known, paged
from controller.store.penalties import held_out_among
from controller.store.penalty_tables import DevicePenaltyRow
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import DeploymentRow
from controller.store.selector_conditions import conditions

ONE: Final = PageRequest(key="id", descends=False, limit=1)
_COLUMNS: Final[Mapping[str, Column]] = {
    "id": DeviceRow.id,
    "enrolled": DeviceRow.enrolled_at_s,
    "profile": DeviceRow.profile_name,
    "seen": known(DeviceRow.last_seen_at_s),
    "state": DeviceRow.state,
}
"""What a list of devices can be sorted by."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRecord:
    """What a device should run of a model, and what it runs."""

    name: str
    policy_generation: int
    """Generation of the policies from which that of the model was chosen; 0 if it has none."""

    desired: ReleaseRow | None
    told: DeviceModelRow | None
    reported: ReleaseRow | None
    waits_for: str
    """What the install of its rollout waits for, in its own words; empty if for nothing."""

    drifted: bool
    """Whether it runs another release than it should, and no rollout is bringing that one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRecord:
    """A device with what it should run."""

    row: DeviceRow
    revision: int
    models: tuple[ModelRecord, ...]
    """By name."""

    penalty: DevicePenaltyRow | None = None
    """Why it is held out of rollouts, if it is."""

    @property
    def labels(self) -> dict[str, str]:
        """What the operator calls it."""
        return {label.key: label.value for label in self.row.labels}

    @property
    def steady_values(self) -> DeviceValues:
        """What policies are chosen by."""
        return DeviceValues(labels=self.labels, attributes=steady_attributes(self.row))

    def attributes(self, *, now_s: float) -> dict[str, Value]:
        """Return what it reports of itself.

        Args:
            now_s: Wall time.
        """
        versions = {
            item.name: item.reported.version if item.reported is not None else item.told.release
            for item in self.models
            if item.told is not None and item.told.release is not None
        }
        return attributes(self.row, versions, now_s=now_s)


def record(session: Session, device: str) -> DeviceRecord:
    """Return a device with what it should run and what it runs.

    Args:
        session: The transaction.
        device: Its identifier.

    Returns:
        The device.

    Raises:
        UnknownDeviceError: No device has that identifier.
    """
    found = _records(session, [DeviceRow.id == device], ONE)
    if not found:
        raise UnknownDeviceError(f"no device {device[:64]!r} is enrolled", remedy=devices.KNOWN)
    return found[0]


def records(
    session: Session,
    selector: Selector,
    *,
    page: PageRequest,
    after: str = "",
    only_drifted: bool = False,
) -> list[DeviceRecord]:
    """Return a part of the devices that match a selector, and one more (`controller.store.paging`).

    Args:
        session: The transaction.
        selector: Which devices.
        page: Which part.
        after: Only identifiers after this one.
        only_drifted: Leave out the devices that run what they should.

    Returns:
        The devices with what they should run and what they run.
    """
    wanted = [DeviceRow.id > after, *conditions(session, selector)]
    if only_drifted:
        wanted.append(devices.drifted())
    return _records(session, wanted, page)


def _records(
    session: Session, wanted: Sequence[ColumnElement[bool]], page: PageRequest
) -> list[DeviceRecord]:
    whole = (
        select(DeviceRow, DesiredStateRow.revision)
        .options(selectinload(DeviceRow.labels))
        .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
        .where(*wanted)
    )
    rows = session.execute(paged(whole, page, _COLUMNS, DeviceRow.id)).all()
    models: dict[str, tuple[ModelRecord, ...]] = {}
    held_out: dict[str, DevicePenaltyRow] = {}
    for batch in in_batches([device.id for device, _revision in rows]):
        models |= _models(session, batch)
        held_out |= held_out_among(session, batch)
    return [
        DeviceRecord(
            row=device,
            revision=revision or 0,
            models=models.get(device.id, ()),
            penalty=held_out.get(device.id),
        )
        for device, revision in rows
    ]


def _models(session: Session, names: Sequence[str]) -> dict[str, tuple[ModelRecord, ...]]:
    """Return the models that devices should run, and those that they report, by name."""
    wanted = session.execute(
        select(DesiredModelRow, devices.differs(), _waits_for())
        .join(DeviceRow, devices.named_model())
        .outerjoin(DeviceModelRow, devices.told_of_model())
        .where(DeviceRow.id.in_(names))
    ).all()
    named = {(row.device, row.model): (row, drifts, waits) for row, drifts, waits in wanted}
    rows = session.scalars(select(DeviceModelRow).where(DeviceModelRow.device.in_(names)))
    told = {(row.device, row.model): row for row in rows}
    digests = {row.release for row, *_ in named.values()} | {row.release for row in told.values()}
    releases = _releases_by_digest(session, filter(None, digests))
    found: dict[str, list[ModelRecord]] = {}
    for device, model in sorted(named.keys() | told.keys()):
        row, drifts, waits = named.get((device, model), (None, False, None))
        said = told.get((device, model))
        item = ModelRecord(
            name=model,
            policy_generation=row.policy_generation if row else 0,
            desired=releases.get(row.release or "") if row else None,
            told=said,
            reported=releases.get(said.release or "") if said else None,
            drifted=bool(drifts),
            waits_for=waits or "",
        )
        found.setdefault(device, []).append(item)
    return {device: tuple(items) for device, items in found.items()}


def _waits_for() -> ScalarSelect[str]:
    """Return what a device said last of an install of a model that goes on: there is one at most.

    It is on `DesiredModelRow`.
    """
    part = aliased(DeploymentRow)
    return (
        select(part.detail)
        .where(
            part.device == DesiredModelRow.device,
            part.model == DesiredModelRow.model,
            part.state.in_(ORDERED_DEPLOYMENTS),
        )
        .limit(1)
        .scalar_subquery()
    )


def _releases_by_digest(session: Session, digests: Iterable[str]) -> dict[str, ReleaseRow]:
    """Return the known releases among some digests."""
    wanted = sorted(set(digests))
    if not wanted:
        return {}
    rows = session.scalars(select(ReleaseRow).where(ReleaseRow.digest.in_(wanted)))
    return {row.digest: row for row in rows}

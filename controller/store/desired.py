"""Desired states: one document per device, with all its models and a revision that only grows.

Rules:
- A revision always means the same document: all that is sent to the device is stored with it, also
  the policies. Only the start of the agent is added, by which a device sees that it is no
  recording. What changes the document otherwise, as when a release is revoked or the agent reads
  another form, raises the revision.
- A change of one model raises the revision of the device and that in which this model's release was
  given. The other models stay the same, and so do their deployments. A change of a policy raises
  only the revision of the device.
- A document names every model that the device has: one that nobody ordered stays until the operator
  removes it, and then it is named no more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import msgspec
from sqlalchemy import Select, and_, bindparam, exists, select, update
from sqlalchemy.orm import Session

from controller.domain.states import (
    DeviceState,
    ReleaseState,
)
from controller.store import devices as device_rows
from controller.store import policy_choices
from controller.store.database import in_batches
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DesiredStateRow, DeviceModelRow
from controller.store.release_tables import ReleaseRow
from wire.desired import MAX_REVISION, DesiredModels, ModelState
from wire.installs import ReleaseRef


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """What a device should run, and the form in which it reads that."""

    desired: DesiredModels
    form: int
    """The newest form that the device reads."""

    @property
    def device(self) -> str:
        """The device."""
        return self.desired.device


def issue(
    session: Session,
    model: str,
    releases: Mapping[str, str | None],
    *,
    rollout: str | None,
    now_s: float,
    without: Collection[str] = (),
    windows: Sequence[str] = (),
) -> dict[str, int]:
    """Give each device a new desired state, in which one model has another release.

    Args:
        session: The transaction.
        model: The model.
        releases: Device to digest, or to None for nothing: it keeps what it has of the model.
        rollout: For which rollout.
        now_s: Wall time.
        without: Those of the devices with None that are to have nothing of the model.
        windows: The hours of their local time in which they activate it; empty for all.

    Returns:
        Device to new revision.
    """
    revisions: dict[str, int] = {}
    for batch in in_batches(sorted(releases)):
        states = _locked(session, batch, make=True)
        for device in batch:
            revisions[device] = states[device].raise_revision(now_s)
        _adopt(session, states.values(), but=model)
        found = session.scalars(
            select(DesiredModelRow).where(
                DesiredModelRow.device.in_(batch), DesiredModelRow.model == model
            )
        )
        known = {row.device: row for row in found}
        rows = []
        for device in batch:
            row = known.get(device) or DesiredModelRow(device=device, model=model)
            row.release = releases[device]
            row.removed = device in without
            row.policy_generation = policy_choices.NEVER_STALE  # unless one is chosen below
            row.rollout = rollout
            row.windows = list(windows) or None
            row.release_revision = revisions[device]
            rows.append(row)
        policy_choices.choose(session, [row for row in rows if not row.removed])
        session.add_all(rows)
    session.flush()
    return revisions


def remove(session: Session, model: str, devices: Sequence[str], *, now_s: float) -> None:
    """Let devices have nothing of a model any more.

    Args:
        session: The transaction.
        model: The model.
        devices: Those that are to run it or say that they do (`controller.store.models.having`).
        now_s: Wall time.
    """
    for batch in in_batches(sorted(devices)):
        states = _locked(session, batch, make=True)
        for state in states.values():
            state.raise_revision(now_s)
        _adopt(session, states.values())
        rows = session.scalars(
            select(DesiredModelRow).where(
                DesiredModelRow.device.in_(batch), DesiredModelRow.model == model
            )
        )
        for row in rows:
            row.release, row.rollout, row.removed = None, None, True
            row.windows = None
            row.policy_generation = policy_choices.NEVER_STALE
            row.release_revision = states[row.device].row.revision
        session.execute(
            update(DeviceModelRow)
            .where(DeviceModelRow.device.in_(batch), DeviceModelRow.model == model)
            .values(last_error="")
            .execution_options(synchronize_session=False)
        )
    session.flush()


def renew(session: Session, devices: Sequence[str], *, now_s: float) -> None:
    """Raise the revisions of devices whose documents have changed though no model was ordered.

    Args:
        session: The transaction.
        devices: Which devices; those without a desired state get none.
        now_s: Wall time.
    """
    for batch in in_batches(sorted(devices)):
        states = _locked(session, batch)
        for state in states.values():
            state.raise_revision(now_s)
        _adopt(session, states.values())
    session.flush()


def renew_with(session: Session, release: str, *, now_s: float) -> list[str]:
    """Raise the revisions of devices that should run a release; it has just been revoked.

    Args:
        session: The transaction.
        release: The digest.
        now_s: Wall time.

    Returns:
        Those of them that are online.
    """
    found = session.scalars(
        select(DesiredModelRow.device).where(DesiredModelRow.release == release)
    ).all()
    renew(session, found, now_s=now_s)
    return _online(session, found)


def reissue(session: Session, device: str, *, above: int, now_s: float) -> int:
    """Give a device its desired state in a new revision, which all its models have from then on.

    Args:
        session: The transaction.
        device: A device with a desired state.
        above: The new revision is greater than this.
        now_s: Wall time.

    Returns:
        The revision.
    """
    state = _locked(session, [device])[device]
    revision = state.raise_revision(now_s, above=above)
    _adopt(session, [state])
    for row in session.scalars(select(DesiredModelRow).where(DesiredModelRow.device == device)):
        row.release_revision = revision
    session.flush()
    return revision


def choose_policies_again(session: Session, devices: Sequence[str], *, now_s: float) -> list[str]:
    """Give devices the policies that now apply to them; if one differs, in a new revision.

    Args:
        session: The transaction.
        devices: Which devices; a model gets its policy with its first desired state.
        now_s: Wall time.

    Returns:
        The devices that have a new revision and are online.
    """
    changed: list[str] = []
    for batch in in_batches(sorted(devices)):
        states = _locked(session, batch)
        rows = session.scalars(
            select(DesiredModelRow).where(
                DesiredModelRow.device.in_(batch), DesiredModelRow.removed.is_(False)
            )
        ).all()
        for device in sorted({row.device for row in policy_choices.choose(session, rows)}):
            states[device].raise_revision(now_s)
            changed.append(device)
        _adopt(session, [states[device] for device in changed if device in states])
    session.flush()
    return _online(session, changed)


# Built once: building a statement takes longer than SQLite takes to answer it.
_DOCUMENTS: Select[*tuple[Any, ...]] = (
    select(
        *(DesiredStateRow.device, DesiredStateRow.revision, DesiredStateRow.issued_at_s),
        *(DeviceRow.boot_id, DeviceRow.desired_form),
        *(DesiredModelRow.model, DesiredModelRow.release_revision, DesiredModelRow.rollout),
        *(DesiredModelRow.policy, DesiredModelRow.capture, DesiredModelRow.shadow),
        *(DesiredModelRow.windows, ReleaseRow.name, ReleaseRow.version, ReleaseRow.digest),
        *(ReleaseRow.envelope_sha256, ReleaseRow.envelope_size_bytes),
    )
    .join(DeviceRow, DeviceRow.id == DesiredStateRow.device)
    .outerjoin(
        DesiredModelRow,
        and_(DesiredModelRow.device == DesiredStateRow.device, DesiredModelRow.removed.is_(False)),
    )
    .outerjoin(
        ReleaseRow,
        and_(
            ReleaseRow.digest == DesiredModelRow.release,
            ReleaseRow.state == ReleaseState.PUBLISHED,
        ),
    )
    .where(
        DesiredStateRow.device.in_(bindparam("devices", expanding=True)),
        DeviceRow.state == DeviceState.ENROLLED,
    )
    .order_by(DesiredStateRow.device, DesiredModelRow.model)
)


def documents(session: Session, devices: Sequence[str]) -> list[Document]:
    """Return the desired states of some devices as the director sends them.

    Args:
        session: The transaction.
        devices: Which devices.

    Returns:
        Those of enrolled devices. A model whose release has been revoked has none.
    """
    session.flush()
    found: list[Document] = []
    for batch in in_batches(devices):
        rows = session.connection().execute(_DOCUMENTS, {"devices": batch})
        for device, group in groupby(rows, key=lambda row: row.device):
            models = list(group)
            first = models[0]
            wanted = DesiredModels(
                device=device,
                revision=first.revision,
                issued_at_s=first.issued_at_s,
                models=tuple(_model(row) for row in models if row.model is not None),
                keeps_others=not first.boot_id,
                boot_id=first.boot_id or msgspec.UNSET,
            )
            found.append(Document(desired=wanted, form=first.desired_form))
    return found


def _model(row: Any) -> ModelState:  # noqa: ANN401 - a row of `_DOCUMENTS`
    ref = None
    if row.digest is not None:
        ref = ReleaseRef(
            name=row.name,
            version=row.version,
            digest=row.digest,
            envelope_sha256=row.envelope_sha256,
            envelope_size_bytes=row.envelope_size_bytes,
        )
    return ModelState(
        name=row.model,
        revision=row.release_revision,
        release=ref,
        rollout=row.rollout,
        policy=policy_choices.issued(row),
        capture=policy_choices.issued_capture(row),
        windows=tuple(row.windows) if row.windows else msgspec.UNSET,
        shadow=policy_choices.issued_shadow(row),
    )


class _Locked:
    """A desired state that no other writer changes meanwhile, with the models of its device."""

    def __init__(self, row: DesiredStateRow, reported: int) -> None:
        self.row = row
        self._reported = reported

    def raise_revision(self, now_s: float, *, above: int = 0) -> int:
        """Begin the next revision and return it; the database may be older than the device."""
        row = self.row
        row.revision = min(max(row.revision, self._reported, above) + 1, MAX_REVISION)
        row.issued_at_s = now_s
        return row.revision


def _locked(session: Session, devices: Sequence[str], *, make: bool = False) -> dict[str, _Locked]:
    """Return desired states as they are now; every writer locks them in this order.

    Args:
        session: The transaction.
        devices: Which devices, sorted; at most as many as one statement may name.
        make: Begin one, with revision 0, for each device without.

    Returns:
        Device to desired state.
    """
    rows = session.scalars(
        select(DesiredStateRow)
        .where(DesiredStateRow.device.in_(devices))
        .order_by(DesiredStateRow.device)
        .with_for_update()
        .execution_options(populate_existing=True)
    )
    known = {row.device: row for row in rows}
    reported = session.execute(
        select(DeviceRow.id, DeviceRow.reported_revision).where(DeviceRow.id.in_(devices))
    )
    found = {}
    for device, revision in reported:
        row = known.get(device)
        if row is None and make:
            row = DesiredStateRow(device=device, revision=0)
            session.add(row)
        if row is not None:
            found[device] = _Locked(row, revision)
    return found


def _adopt(session: Session, states: Iterable[_Locked], *, but: str = "") -> None:
    """Name the models that devices say they have and that nobody ordered: these stay.

    Args:
        session: The transaction.
        states: Their desired states, whose revision has just been raised.
        but: A model of which the caller takes care.
    """
    revisions = {state.row.device: state.row.revision for state in states}
    session.flush()
    is_known = exists().where(device_rows.told_of_model())
    told = session.execute(
        select(DeviceModelRow.device, DeviceModelRow.model).where(
            DeviceModelRow.device.in_(revisions),
            DeviceModelRow.release.is_not(None),
            DeviceModelRow.model.not_in(("", but)),
            ~is_known,
        )
    )
    rows = [
        DesiredModelRow(
            device=device, model=model, release_revision=revisions[device], removed=False
        )
        for device, model in told
    ]
    policy_choices.choose(session, rows)
    session.add_all(rows)


def _online(session: Session, devices: Sequence[str]) -> list[str]:
    found: list[str] = []
    for batch in in_batches(devices):
        found += session.scalars(
            select(DeviceRow.id)
            .where(DeviceRow.id.in_(batch), DeviceRow.online.is_(True))
            .order_by(DeviceRow.id)
        )
    return found

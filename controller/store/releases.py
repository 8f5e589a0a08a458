"""Releases and the blobs that belong to them."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, Final

from sqlalchemy import (
    BindParameter,
    Connection,
    and_,
    bindparam,
    exists,
    select,
    union_all,
    update,
)
from sqlalchemy.orm import Session

from controller.domain.measuring import MeasurementState
from controller.domain.names import which_there_are
from controller.domain.paging import PageRequest
from controller.domain.states import DeltaState, DeviceState, ReleaseState
from controller.errors import IllegalTransitionError, UnknownReleaseError
from controller.store import acting
from controller.store.database import changed_rows, in_batches
from controller.store.device_tables import DeviceRow
from controller.store.measurement_tables import MeasurementRow
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.paging import Column, paged
from controller.store.release_tables import DeltaRow, ReleaseBlobRow, ReleaseRow
from controller.store.shadow_tables import ShadowRow
from wire.package.index import is_digest

MAX_NAMES = 10_000


def find(session: Session, ref: str) -> ReleaseRow | None:
    """Return a release by digest or `name:version`, or None."""
    name, colon, version = ref.partition(":")
    if not colon:
        return session.get(ReleaseRow, ref)
    return session.scalar(
        select(ReleaseRow).where(ReleaseRow.name == name, ReleaseRow.version == version)
    )


def get(session: Session, ref: str) -> ReleaseRow:
    """Return a release by digest or `name:version`.

    Args:
        session: The transaction.
        ref: The reference.

    Returns:
        The row.

    Raises:
        UnknownReleaseError: None of that name has been published.
    """
    row = find(session, ref)
    if row is None:
        raise UnknownReleaseError(
            f"no release {ref[:130]!r} has been published", remedy=_which_there_are(session, ref)
        )
    return row


def _which_there_are(session: Session, ref: str) -> str:
    """Return what to do about a reference that names no release: those near to it come first."""
    name, colon, version = ref.partition(":")
    if is_digest(name) and not colon:
        return "name it as name:version or by its digest"
    rows = session.execute(
        select(ReleaseRow.name, ReleaseRow.version)
        .where(ReleaseRow.state == ReleaseState.PUBLISHED)
        .order_by(ReleaseRow.published_at_s.desc(), ReleaseRow.digest)
        .limit(MAX_NAMES)
    ).all()
    same = [f"{row.name}:{row.version}" for row in rows if row.name == name]
    newest = {row.name: f"{row.name}:{row.version}" for row in reversed(rows)}
    alike = {f"{row.name}:{row.version}" for row in rows if row.version == version}
    known = same or sorted({*newest.values(), *alike})
    none = "publish one with `fleet release publish`"
    return which_there_are(ref, known, what="releases", none=none)


def get_published(session: Session, ref: str) -> ReleaseRow:
    """Return a release that may be handed out.

    Args:
        session: The transaction.
        ref: The reference.

    Returns:
        The row.

    Raises:
        IllegalTransitionError: It was revoked.
        UnknownReleaseError: None of that name has been published.
    """
    row = get(session, ref)
    if row.state != ReleaseState.PUBLISHED:
        raise IllegalTransitionError(
            f"release {row.name}:{row.version} has been revoked",
            remedy="choose another one: `fleet release list` shows which are published",
        )
    return row


def of_digests(session: Session, digests: Collection[str]) -> list[ReleaseRow]:
    """Return the known releases among some digests."""
    found: list[ReleaseRow] = []
    for batch in in_batches(sorted(digests)):
        found += session.scalars(select(ReleaseRow).where(ReleaseRow.digest.in_(batch)))
    return found


def all_releases(session: Session, *, limit: int) -> list[ReleaseRow]:
    """Return releases, the newest first."""
    statement = select(ReleaseRow).order_by(ReleaseRow.published_at_s.desc(), ReleaseRow.digest)
    return list(session.scalars(statement.limit(limit)))


def listed(
    session: Session, page: PageRequest, *, model: str, state: ReleaseState | None
) -> list[ReleaseRow]:
    """Return a part of the releases, and one more (`controller.store.paging`).

    Args:
        session: The transaction.
        page: Which part.
        model: Only those of this model; empty for all.
        state: Only those in this state; None for all.
    """
    whole = select(ReleaseRow)
    if model:
        whole = whole.where(ReleaseRow.name == model)
    if state is not None:
        whole = whole.where(ReleaseRow.state == state)
    columns: dict[str, Column] = {
        "published": ReleaseRow.published_at_s,
        "name": ReleaseRow.name,
        "size": ReleaseRow.size_bytes,
    }
    return list(session.scalars(paged(whole, page, columns, ReleaseRow.digest)))


def label_values(connection: Connection) -> dict[str, set[str]]:
    """Return what devices call the newest releases and their variants, by label of telemetry.

    Args:
        connection: In any transaction.
    """
    rows = connection.execute(
        select(ReleaseRow.name, ReleaseRow.version, ReleaseRow.variants)
        .order_by(ReleaseRow.published_at_s.desc(), ReleaseRow.digest)
        .limit(MAX_NAMES)
    )
    found: dict[str, set[str]] = {"release": set(), "variant": set()}
    for name, version, variants in rows:
        found["release"].add(f"{name}:{version}")
        found["variant"].update(str(variant["name"]) for variant in variants)
    return found


def published(session: Session, digests: Collection[str]) -> set[str]:
    """Return the digests that belong to published releases."""
    states = release_states(session, digests)
    return {digest for digest, state in states.items() if state == ReleaseState.PUBLISHED}


def release_states(session: Session, digests: Collection[str]) -> dict[str, str]:
    """Return the states of those of some digests that belong to releases."""
    if not digests:
        return {}
    columns = select(ReleaseRow.digest, ReleaseRow.state)
    return dict(session.execute(columns.where(ReleaseRow.digest.in_(sorted(digests)))).all())


def has_other(session: Session, model: str, digest: str) -> bool:
    """Tell whether a model has a published release other than one.

    Args:
        session: The transaction.
        model: The model.
        digest: The one.
    """
    is_other = exists().where(
        ReleaseRow.name == model,
        ReleaseRow.digest != digest,
        ReleaseRow.state == ReleaseState.PUBLISHED,
    )
    return bool(session.scalar(select(is_other)))


def add(session: Session, row: ReleaseRow, blobs: Iterable[tuple[str, int]]) -> None:
    """Save a new release and the list of its blobs."""
    session.add(row)
    acting.about(f"{row.name}:{row.version}")
    session.flush()
    session.add_all(
        ReleaseBlobRow(release=row.digest, sha256=sha256, size_bytes=size_bytes)
        for sha256, size_bytes in sorted(set(blobs))
    )


def revoke(session: Session, row: ReleaseRow) -> bool:
    """Revoke a release; False when it was revoked before."""
    changed = changed_rows(
        session,
        update(ReleaseRow)
        .where(ReleaseRow.digest == row.digest, ReleaseRow.state == ReleaseState.PUBLISHED)
        .values(state=ReleaseState.REVOKED),
    )
    session.refresh(row)
    return changed == 1


_DEVICES: Final[BindParameter[Any]] = bindparam("devices", expanding=True)
_BLOBS: Final[BindParameter[Any]] = bindparam("blobs", expanding=True)
_WANTED: Final = union_all(
    select(DesiredModelRow.device, DesiredModelRow.release).where(
        DesiredModelRow.device.in_(_DEVICES)
    ),
    select(MeasurementRow.device, MeasurementRow.release).where(
        MeasurementRow.device.in_(_DEVICES), MeasurementRow.state == MeasurementState.ASKED
    ),
    select(DesiredModelRow.device, ShadowRow.release)
    .join(ShadowRow, DesiredModelRow.model == ShadowRow.model)
    .where(DesiredModelRow.device.in_(_DEVICES), DesiredModelRow.shadow.is_not(None)),
).subquery("wanted")
"""The digests of what devices have to run, also as a shadow, and to measure."""

_MAY_READ: Final = and_(
    DeviceRow.id == _WANTED.c.device,
    DeviceRow.state == DeviceState.ENROLLED,
    ReleaseRow.digest == _WANTED.c.release,
    ReleaseRow.state == ReleaseState.PUBLISHED,
    ReleaseBlobRow.release == ReleaseRow.digest,
)
# Built once: building them takes longer than SQLite takes to answer.
_READABLE_FILES: Final = select(
    _WANTED.c.device, ReleaseBlobRow.sha256, ReleaseBlobRow.size_bytes
).where(_MAY_READ, ReleaseBlobRow.sha256.in_(_BLOBS))
_READABLE_DELTAS: Final = select(_WANTED.c.device, DeltaRow.sha256, DeltaRow.size_bytes).where(
    _MAY_READ,
    DeltaRow.target == ReleaseBlobRow.sha256,
    DeltaRow.sha256.in_(_BLOBS),
    DeltaRow.state == DeltaState.READY,
)


def is_first(session: Session, release: ReleaseRow) -> bool:
    """Tell whether no device has, or is to have, another release of the model.

    Args:
        session: The transaction.
        release: The release.
    """
    return not any(
        session.scalar(
            select(exists().where(row.model == release.name, row.release != release.digest))
        )
        for row in (DesiredModelRow, DeviceModelRow)
    )


def readable_blobs(
    session: Session, asked: Collection[tuple[str, str]]
) -> dict[tuple[str, str], int]:
    """Return those of some blobs that devices may read.

    Args:
        session: The transaction.
        asked: Devices, each with the digest of a blob that it asks for; no more than a statement
            names.

    Returns:
        The sizes in bytes, by device and digest: of what belongs to a published release that the
        device has to run, also as a shadow, or that it was asked to measure, or is a delta to a
        file of one.
    """
    found: dict[tuple[str, str], int] = {}
    for statement in (_READABLE_FILES, _READABLE_DELTAS):
        if left := [each for each in asked if each not in found]:
            devices, blobs = zip(*left, strict=True)
            some = {"devices": sorted(set(devices)), "blobs": sorted(set(blobs))}
            rows = session.connection().execute(statement, some)
            found |= {(device, sha256): size_bytes for device, sha256, size_bytes in rows}
    return {each: found[each] for each in asked if each in found}

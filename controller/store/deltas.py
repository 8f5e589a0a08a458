"""Which deltas there are, which do not pay, and for which devices they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, Text, case, cast, delete, exists, func, select, tuple_, update
from sqlalchemy.orm import Session

from controller.domain.deltas import Kept
from controller.domain.states import (
    UNFINISHED_DEPLOYMENTS,
    DeltaState,
    DeviceState,
    ReleaseState,
)
from controller.store.database import BATCH
from controller.store.deployments import target as release_of_deployment
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.release_tables import DeltaRow, ReleaseBlobRow, ReleaseRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow

MAX_GIVEN: Final = 16
"""Releases of a device's past that deltas may begin from."""

MAX_MOVES: Final = 64
"""Kinds of devices of a rollout for which deltas are made ahead."""

MAX_SHOWN: Final = 1000

Pair = tuple[str, str]


class Kind(NamedTuple):
    """What a device can run."""

    profile: dict[str, Any]
    runtimes: list[str] | None
    """As in `DeviceRow`."""


class Named(NamedTuple):
    """A release, as far as it takes to read its package."""

    digest: str
    envelope_sha256: str


class Wanted(NamedTuple):
    """What a device has to run, and what it was given before."""

    release: Named
    kind: Kind
    given: tuple[Named, ...]
    """Those of the same model first, and of these the newest."""

    key: str
    """The device's public key."""


class Move(NamedTuple):
    """Some devices of a rollout that go the same way."""

    release: str
    runs: str | None
    """Digest of what they say that they run."""

    kind: Kind
    """Of one of them."""


class Shown(NamedTuple):
    """A delta to a file of a release."""

    base: str
    base_release: str | None
    """A release that has the base, as `name:version`."""

    size_bytes: int
    full_bytes: int


def find(session: Session, pairs: Iterable[Pair]) -> dict[Pair, DeltaRow]:
    """Return what is known of some pairs of files."""
    rows = session.scalars(select(DeltaRow).where(_is_one_of(pairs)))
    return {(row.base, row.target): row for row in rows}


def begin(session: Session, pair: Pair, *, full_bytes: int, now_s: float) -> bool:
    """Note that a delta is being made; False if that has been settled meanwhile.

    Args:
        session: The transaction.
        pair: Digests of the base and the target.
        full_bytes: Size of the target.
        now_s: Wall time.
    """
    known = session.get(DeltaRow, pair)
    if known is not None and (known.state == DeltaState.READY or does_not_pay(known)):
        return False
    row = known or DeltaRow(base=pair[0], target=pair[1], chunks=[])
    row.state = DeltaState.MAKING
    row.full_bytes, row.size_bytes = full_bytes, None
    row.made_at_s = row.used_at_s = now_s
    session.add(row)
    return True


def does_not_pay(row: DeltaRow) -> bool:
    """Tell whether it is known that a delta saves too little, whatever is kept.

    One that only was too large to be kept has a size.
    """
    return row.state == DeltaState.NONE and row.size_bytes is None


def settle(session: Session, pair: Pair, state: DeltaState, *, now_s: float, **made: Any) -> None:  # noqa: ANN401 - columns
    """Save what came of making a delta.

    Args:
        session: The transaction.
        pair: Digests of the base and the target.
        state: What it is now.
        now_s: Wall time.
        made: Columns of a delta that is ready.
    """
    values = {"state": state, "made_at_s": now_s, "used_at_s": now_s, **made}
    session.execute(update(DeltaRow).where(_is_one_of([pair])).values(values))


def remove(session: Session, pairs: Sequence[Pair]) -> None:
    """Forget what is known of some pairs of files."""
    for start in range(0, len(pairs), BATCH):
        session.execute(delete(DeltaRow).where(_is_one_of(pairs[start : start + BATCH])))


def fail_interrupted(session: Session, *, now_s: float) -> None:
    """Note that a controller ended while it made deltas: one of them may be why."""
    session.execute(
        update(DeltaRow)
        .where(DeltaRow.state == DeltaState.MAKING)
        .values(state=DeltaState.FAILED, made_at_s=now_s)
    )


def note_use(session: Session, pair: Pair, *, now_s: float) -> None:
    """Note that a delta was offered."""
    session.execute(update(DeltaRow).where(_is_one_of([pair])).values(used_at_s=now_s))


def kept(session: Session) -> list[Kept]:
    """Return all deltas that are ready."""
    rows = session.execute(
        select(
            DeltaRow.base, DeltaRow.target, DeltaRow.sha256, DeltaRow.size_bytes, DeltaRow.used_at_s
        ).where(DeltaRow.state == DeltaState.READY)
    )
    return [
        Kept((base, to), sha256 or "", size_bytes or 0, used_at_s)
        for base, to, sha256, size_bytes, used_at_s in rows
    ]


def kept_in(row: DeltaRow) -> Kept:
    """Return a delta that is ready."""
    return Kept((row.base, row.target), row.sha256 or "", row.size_bytes or 0, row.used_at_s)


def unwanted(session: Session) -> list[Pair]:
    """Return the pairs whose target is in no published release; not those that are being made."""
    published = exists().where(
        ReleaseBlobRow.sha256 == DeltaRow.target,
        ReleaseRow.digest == ReleaseBlobRow.release,
        ReleaseRow.state == ReleaseState.PUBLISHED,
    )
    rows = session.execute(
        select(DeltaRow.base, DeltaRow.target).where(
            ~published, DeltaRow.state != DeltaState.MAKING
        )
    )
    return [(base, to) for base, to in rows]


def wanted_by(session: Session, device: str, blob_sha256: str) -> Wanted | None:
    """Return the release with a file that a device has to run, and what it was given before.

    A release counts as given when a rollout ordered it for this device since it enrolled: before,
    the name may have been another device's. What a device says that it has does not count: with a
    delta and its target one could work out the base.

    Args:
        session: The transaction.
        device: The device.
        blob_sha256: The file.

    Returns:
        None for a device that has to run no release with that file.
    """
    row = session.execute(
        select(
            ReleaseRow.digest,
            ReleaseRow.envelope_sha256,
            ReleaseRow.name,
            DeviceRow.profile,
            DeviceRow.runtimes,
            DeviceRow.enrolled_at_s,
            DeviceRow.public_key,
        )
        .join(DesiredModelRow, DesiredModelRow.release == ReleaseRow.digest)
        .join(DeviceRow, DeviceRow.id == DesiredModelRow.device)
        .join(ReleaseBlobRow, ReleaseBlobRow.release == ReleaseRow.digest)
        .where(
            DeviceRow.id == device,
            ReleaseBlobRow.sha256 == blob_sha256,
            DeviceRow.state == DeviceState.ENROLLED,
            ReleaseRow.state == ReleaseState.PUBLISHED,
        )
        .order_by(ReleaseRow.name)
    ).first()
    if row is None:
        return None
    digest, envelope_sha256, name, profile, runtimes, enrolled_at_s, key = row
    ordered = (
        select(release_of_deployment())
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .where(
            DeploymentRow.device == device,
            DeploymentRow.revision.is_not(None),
            DeploymentRow.started_at_s >= enrolled_at_s,
        )
    )
    given = session.execute(
        select(ReleaseRow.digest, ReleaseRow.envelope_sha256)
        .where(ReleaseRow.digest.in_(ordered), ReleaseRow.digest != digest)
        .order_by(
            case((ReleaseRow.name == name, 0), else_=1),
            ReleaseRow.published_at_s.desc(),
            ReleaseRow.digest,
        )
        .limit(MAX_GIVEN)
    )
    return Wanted(
        Named(digest, envelope_sha256),
        Kind(profile, runtimes),
        tuple(Named(*each) for each in given),
        key,
    )


def key_of(session: Session, device: str) -> str | None:
    """Return the public key of the device that has a name now; None if none is enrolled."""
    return session.scalar(
        select(DeviceRow.public_key).where(
            DeviceRow.id == device, DeviceRow.state == DeviceState.ENROLLED
        )
    )


def named(session: Session, digests: Iterable[str]) -> dict[str, Named]:
    """Return those of some releases that were published, by digest."""
    rows = session.execute(
        select(ReleaseRow.digest, ReleaseRow.envelope_sha256).where(
            ReleaseRow.digest.in_(sorted(digests))
        )
    )
    return {digest: Named(digest, envelope) for digest, envelope in rows}


def moves(session: Session, rollout: str) -> list[Move]:
    """Return which ways the devices of a rollout go that have not finished, most of them first."""
    count = func.count()
    # JSON cannot be compared in every database, its text can. Devices that can run the same give it
    # in the same words; where they do not, they are looked at apart.
    kind = (cast(DeviceRow.profile, Text), cast(DeviceRow.runtimes, Text))
    groups = session.execute(
        select(release_of_deployment(), DeviceModelRow.release, func.min(DeviceRow.id))
        .join(RolloutRow, RolloutRow.id == DeploymentRow.rollout)
        .join(DeviceRow, DeviceRow.id == DeploymentRow.device)
        .outerjoin(
            DeviceModelRow,
            (DeviceModelRow.device == DeploymentRow.device)
            & (DeviceModelRow.model == DeploymentRow.model),
        )
        .where(
            DeploymentRow.rollout == rollout,
            DeploymentRow.state.in_(UNFINISHED_DEPLOYMENTS),
        )
        .group_by(release_of_deployment(), DeviceModelRow.release, *kind)
        .order_by(count.desc(), func.min(DeviceRow.id))
        .limit(MAX_MOVES)
    ).all()
    names = [device for _, _, device in groups]
    rows = session.execute(
        select(DeviceRow.id, DeviceRow.profile, DeviceRow.runtimes).where(DeviceRow.id.in_(names))
    )
    kinds = {device: Kind(profile, runtimes) for device, profile, runtimes in rows}
    return [Move(release, runs, kinds[device]) for release, runs, device in groups]


def shown(session: Session, release: str) -> list[Shown]:
    """Return the deltas that are ready to the files of a release, the largest files first."""
    rows = session.execute(
        select(DeltaRow.base, DeltaRow.size_bytes, DeltaRow.full_bytes)
        .join(ReleaseBlobRow, ReleaseBlobRow.sha256 == DeltaRow.target)
        .where(ReleaseBlobRow.release == release, DeltaRow.state == DeltaState.READY)
        .order_by(DeltaRow.full_bytes.desc(), DeltaRow.target, DeltaRow.size_bytes, DeltaRow.base)
        .limit(MAX_SHOWN)
    ).all()
    bases = sorted({base for base, _, _ in rows})
    names: dict[str, str] = {}
    for start in range(0, len(bases), BATCH):
        found = session.execute(
            select(ReleaseBlobRow.sha256, ReleaseRow.name, ReleaseRow.version)
            .join(ReleaseRow, ReleaseRow.digest == ReleaseBlobRow.release)
            .where(ReleaseBlobRow.sha256.in_(bases[start : start + BATCH]))
            .order_by(ReleaseRow.published_at_s, ReleaseRow.digest)
        )
        names |= {sha256: f"{name}:{version}" for sha256, name, version in found}
    return [Shown(base, names.get(base), size or 0, full) for base, size, full in rows]


def _is_one_of(pairs: Iterable[Pair]) -> ColumnElement[bool]:
    return tuple_(DeltaRow.base, DeltaRow.target).in_(list(pairs))

"""Which devices of a site can serve a device that asks: two statements for each request."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from sqlalchemy import String, and_, bindparam, case, cast, func, or_, select
from sqlalchemy.orm import Session, aliased

from controller.domain.states import DeviceState, ReleaseState
from controller.store.deltas import Named
from controller.store.tables import (
    DesiredStateRow,
    DeviceLabelRow,
    DeviceRow,
    ReleaseBlobRow,
    ReleaseRow,
)

MAX_NEIGHBOURS: Final = 128
"""Devices of a site that are looked at for one request."""


class KindText(NamedTuple):
    """What a device can run, as JSON. It is not read here: thousands of devices have the same."""

    profile: str
    runtimes: str | None


class Asking(NamedTuple):
    """A device that asks."""

    site: str
    peer_url: str | None
    kind: KindText
    wanted: Named
    """The published release that it has to run."""

    runs: Named | None
    """The release that it says is active, if it is one of ours and all of it is there."""


class Neighbour(NamedTuple):
    """A device of the same site that serves others, and is online."""

    id: str
    peer_url: str
    kind: KindText
    runs: Named | None
    """The release that it says is active, if that has what is asked for and all of it is there."""


_IS_WHOLE = or_(
    DeviceRow.phase.in_(("", "idle")),
    DesiredStateRow.release.is_distinct_from(DeviceRow.reported_release),
)
"""Whether all of what serves on a device is there: a variant may serve while the others come."""

_KIND = (cast(DeviceRow.profile, String), cast(DeviceRow.runtimes, String))
_RUNS = aliased(ReleaseRow)

# Built once: building a statement takes longer than SQLite takes to answer it.
_ASKING = (
    select(
        DeviceLabelRow.value,
        DeviceRow.peer_url,
        *_KIND,
        ReleaseRow.digest,
        ReleaseRow.envelope_sha256,
        _RUNS.digest,
        _RUNS.envelope_sha256,
    )
    .join(DeviceLabelRow, DeviceLabelRow.device == DeviceRow.id)
    .join(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
    .join(ReleaseRow, ReleaseRow.digest == DesiredStateRow.release)
    .outerjoin(_RUNS, and_(_RUNS.digest == DeviceRow.reported_release, _IS_WHOLE))
    .where(
        DeviceRow.id == bindparam("device"),
        DeviceRow.state == DeviceState.ENROLLED,
        DeviceLabelRow.key == bindparam("label"),
        ReleaseRow.state == ReleaseState.PUBLISHED,
    )
)
_WITH_BLOBS = (
    select(ReleaseBlobRow.release, func.count().label("blobs"))
    .where(ReleaseBlobRow.sha256.in_(bindparam("blobs", expanding=True)))
    .group_by(ReleaseBlobRow.release)
    .subquery()
)
_FETCHES = DeviceRow.id.in_(bindparam("fetching", expanding=True))
_NEIGHBOURS = (
    select(DeviceRow.id, DeviceRow.peer_url, *_KIND, ReleaseRow.digest, ReleaseRow.envelope_sha256)
    .join(DeviceLabelRow, DeviceLabelRow.device == DeviceRow.id)
    .outerjoin(DesiredStateRow, DesiredStateRow.device == DeviceRow.id)
    .outerjoin(_WITH_BLOBS, and_(_WITH_BLOBS.c.release == DeviceRow.reported_release, _IS_WHOLE))
    .outerjoin(ReleaseRow, ReleaseRow.digest == _WITH_BLOBS.c.release)
    .where(
        DeviceLabelRow.key == bindparam("label"),
        DeviceLabelRow.value == bindparam("site"),
        DeviceRow.id != bindparam("device"),
        DeviceRow.state == DeviceState.ENROLLED,
        DeviceRow.online.is_(True),
        DeviceRow.peer_url.is_not(None),
        or_(_WITH_BLOBS.c.release.is_not(None), _FETCHES),
    )
    .order_by(
        case((_FETCHES, 0), else_=1),
        func.coalesce(_WITH_BLOBS.c.blobs, 0).desc(),
        case((DeviceRow.id > bindparam("device"), 0), else_=1),
        DeviceRow.id,
    )
    .limit(MAX_NEIGHBOURS)
)


def asking(session: Session, device: str, label: str) -> Asking | None:
    """Return a device that asks for the blobs of its release.

    Args:
        session: The transaction.
        device: Its identifier.
        label: The key of the label whose value is the site.

    Returns:
        The device; None if it has no site, or may read nothing.
    """
    row = session.execute(_ASKING, {"device": device, "label": label}).first()
    if row is None:
        return None
    site, peer_url, profile, runtimes, *releases = row
    wanted, active = Named(*releases[:2]), releases[2:]
    return Asking(
        site, peer_url, KindText(profile, runtimes), wanted, Named(*active) if active[0] else None
    )


def neighbours(
    session: Session,
    device: str,
    *,
    label: str,
    site: str,
    blobs: Collection[str],
    fetching: Collection[str],
) -> list[Neighbour]:
    """Return who of a site can serve a device now: who runs a release with a blob, or fetches one.

    Those that fetch come first, then those whose release has most of the blobs. Among equals each
    device begins with those whose names follow its own, so that a large site serves itself evenly.

    Args:
        session: The transaction.
        device: Who asks.
        label: The key of the label whose value is the site.
        site: Its value.
        blobs: What is asked for, not more than a request names.
        fetching: Devices that fetch some of that, of any site.

    Returns:
        At most `MAX_NEIGHBOURS` devices.
    """
    asked = {"device": device, "label": label, "site": site}
    lists = {"blobs": sorted(blobs), "fetching": sorted(fetching)}
    rows = session.execute(_NEIGHBOURS, asked | lists)
    return [
        Neighbour(
            name,
            peer_url or "",
            KindText(profile, runtimes),
            Named(digest, envelope_sha256) if digest else None,
        )
        for name, peer_url, profile, runtimes, digest, envelope_sha256 in rows
    ]

"""Which devices of a site can serve a device that asks: two statements for each request."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, NamedTuple

from sqlalchemy import String, and_, bindparam, case, cast, exists, func, or_, select
from sqlalchemy.orm import Session, aliased

from controller.domain.states import DeviceState, ReleaseState
from controller.store import devices
from controller.store.deltas import Named
from controller.store.device_tables import DeviceLabelRow, DeviceRow
from controller.store.model_tables import DesiredModelRow, DeviceModelRow
from controller.store.release_tables import ReleaseBlobRow, ReleaseRow

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
    wanted: tuple[Named, ...]
    """The published releases that it has to run."""

    runs: tuple[Named, ...]
    """The releases that it says are active, those of ours of which all is there."""


class Neighbour(NamedTuple):
    """A device of the same site that serves others, and is online."""

    id: str
    peer_url: str
    kind: KindText
    runs: tuple[Named, ...]
    """The releases that it says are active and have what is asked for, if all of it is there."""


_IS_WHOLE = or_(
    DeviceModelRow.phase.in_(("", "idle")),
    DesiredModelRow.release.is_distinct_from(DeviceModelRow.release),
)
"""Whether all of a model that serves is there: a variant may serve while the others come."""

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
    .join(DesiredModelRow, DesiredModelRow.device == DeviceRow.id)
    .join(ReleaseRow, ReleaseRow.digest == DesiredModelRow.release)
    .outerjoin(DeviceModelRow, devices.told_of_model())
    .outerjoin(_RUNS, and_(_RUNS.digest == DeviceModelRow.release, _IS_WHOLE))
    .where(
        DeviceRow.id == bindparam("device"),
        DeviceRow.state == DeviceState.ENROLLED,
        DeviceLabelRow.key == bindparam("label"),
        ReleaseRow.state == ReleaseState.PUBLISHED,
    )
    .order_by(DesiredModelRow.model)
)
_WITH_BLOBS = (
    select(ReleaseBlobRow.release, func.count().label("blobs"))
    .where(ReleaseBlobRow.sha256.in_(bindparam("blobs", expanding=True)))
    .group_by(ReleaseBlobRow.release)
    .subquery()
)
_OTHER = aliased(DeviceModelRow)
_IS_FIRST = ~exists().where(
    _OTHER.device == DeviceModelRow.device, _OTHER.model < DeviceModelRow.model
)
"""A device that only fetches needs one row, however many models it has."""

_FETCHES = DeviceRow.id.in_(bindparam("fetching", expanding=True))
_NEIGHBOURS = (
    select(DeviceRow.id, DeviceRow.peer_url, *_KIND, ReleaseRow.digest, ReleaseRow.envelope_sha256)
    .join(DeviceLabelRow, DeviceLabelRow.device == DeviceRow.id)
    .outerjoin(DeviceModelRow, DeviceModelRow.device == DeviceRow.id)
    .outerjoin(DesiredModelRow, devices.told_of_model())
    .outerjoin(_WITH_BLOBS, and_(_WITH_BLOBS.c.release == DeviceModelRow.release, _IS_WHOLE))
    .outerjoin(ReleaseRow, ReleaseRow.digest == _WITH_BLOBS.c.release)
    .where(
        DeviceLabelRow.key == bindparam("label"),
        DeviceLabelRow.value == bindparam("site"),
        DeviceRow.id != bindparam("device"),
        DeviceRow.state == DeviceState.ENROLLED,
        DeviceRow.online.is_(True),
        DeviceRow.peer_url.is_not(None),
        or_(_WITH_BLOBS.c.release.is_not(None), and_(_FETCHES, _IS_FIRST)),
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
    """Return a device that asks for the blobs of its releases.

    Args:
        session: The transaction.
        device: Its identifier.
        label: The key of the label whose value is the site.

    Returns:
        The device; None if it has no site, or may read nothing.
    """
    rows = session.execute(_ASKING, {"device": device, "label": label}).all()
    if not rows:
        return None
    site, peer_url, profile, runtimes, *_releases = rows[0]
    wanted = tuple(Named(*row[4:6]) for row in rows)
    runs = tuple(Named(*row[6:8]) for row in rows if row[6])
    return Asking(site, peer_url, KindText(profile, runtimes), wanted, runs)


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
    found: dict[str, Neighbour] = {}
    for name, peer_url, profile, runtimes, digest, envelope_sha256 in rows:
        known = found.get(name) or Neighbour(name, peer_url or "", KindText(profile, runtimes), ())
        runs = (Named(digest, envelope_sha256),) if digest else ()
        found[name] = known._replace(runs=known.runs + runs)
    return list(found.values())

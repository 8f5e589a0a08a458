"""When devices measured anything, and when they did not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import sqlalchemy as sa

from telemetry.server import tables


class Measured(NamedTuple):
    """The minutes of the first and the last measurement of a device in a time."""

    device: str
    first: int
    last: int


class Gap(NamedTuple):
    """The minutes of two measurements of a device between which there is none."""

    device: str
    before: int
    after: int


def measured(connection: sa.Connection, since_minute: int, until_minute: int) -> list[Measured]:
    """Return the devices that measured anything in a time.

    Args:
        connection: To the database.
        since_minute: The first minute, inclusive.
        until_minute: The last minute, exclusive.
    """
    minute = tables.minute.c.minute
    query = (
        sa.select(tables.minute.c.device, sa.func.min(minute), sa.func.max(minute))
        .where(minute >= since_minute, minute < until_minute)
        .group_by(tables.minute.c.device)
    )
    return [Measured(*row) for row in connection.execute(query)]


def gaps(
    connection: sa.Connection, since_minute: int, until_minute: int, *, longer_than: int
) -> list[Gap]:
    """Return where devices measured nothing for long, between two of their measurements.

    Args:
        connection: To the database.
        since_minute: The first minute, inclusive.
        until_minute: The last minute, exclusive.
        longer_than: Only where the two are further apart than so many minutes.

    Returns:
        By time.
    """
    table = tables.minute.c
    minutes = (
        sa.select(table.device, table.minute)
        .where(table.minute >= since_minute, table.minute < until_minute)
        .distinct()
        .subquery()
        .c
    )
    before = sa.func.lag(minutes.minute).over(partition_by=minutes.device, order_by=minutes.minute)
    pairs = sa.select(minutes.device, before.label("before"), minutes.minute).subquery().c
    query = (
        sa.select(pairs.device, pairs.before, pairs.minute)
        .where(pairs.minute - pairs.before > longer_than)
        .order_by(pairs.before)
    )
    return [Gap(*row) for row in connection.execute(query)]


def since(connection: sa.Connection, since_minute: int) -> frozenset[str]:
    """Return the devices of which anything is stored that was measured lately.

    Args:
        connection: To the database.
        since_minute: Since which minute.
    """
    device = tables.device.c
    query = sa.select(device.device).where(device.newest_minute >= since_minute)
    return frozenset(connection.scalars(query))


def within(
    found: Iterable[Measured], apart: Iterable[Gap], since_minute: int, until_minute: int
) -> frozenset[str]:
    """Return the devices that measured anything in a part of a time. Pure.

    Args:
        found: The devices that measured anything in all of it.
        apart: Their gaps, at least those that are longer than the part.
        since_minute: The first minute of the part, inclusive.
        until_minute: Its last minute, exclusive.
    """
    here = {
        each.device for each in found if each.first < until_minute and each.last >= since_minute
    }
    away = {gap.device for gap in apart if gap.before < since_minute and gap.after >= until_minute}
    return frozenset(here - away)

"""The tables of the telemetry store.

Rules:
- Time comes before the device in the key of `telemetry_minute`, so rows that arrive together are
  stored together: inserts append, and a query over the last hour reads neighbouring rows.
- PostgreSQL keeps the measurements of devices in partitions by time
  (`telemetry.server.partitions`), so that what is old is dropped and not deleted.
- No row refers to its series by a foreign key, which would cost a lookup for each: who writes rows
  locks their series first.
- Release and variant are columns of the series; every other attribute is in its JSON text.
- `controller/store/migrations` makes these tables in production; both must be the same.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from telemetry.limits import MAX_TEXT
from wire.reporting import MAX_REQUEST_ID

FLEET = "fleet"
LEVEL_ROWS = ("minute", "hour", "day", FLEET)
"""The rows of `telemetry_level`, which always exist."""

MAX_DEVICE = 63
MAX_BOOT = 128
MAX_SERIES_BYTES = 2048
"""Limit for all names of a series together, in UTF-8; PostgreSQL's indexes take 2,704."""

metadata = MetaData()

series = Table(
    "telemetry_series",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("metric", String(MAX_TEXT), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("release", String(MAX_TEXT), nullable=False),
    Column("variant", String(MAX_TEXT), nullable=False),
    Column("attributes", String(MAX_SERIES_BYTES), nullable=False),
    Column("brought_by", String(MAX_DEVICE), nullable=True),
    UniqueConstraint(
        "metric", "kind", "release", "variant", "attributes", name="uq_telemetry_series"
    ),
    CheckConstraint("kind IN ('histogram', 'sum', 'gauge')", name="ck_telemetry_series_kind"),
    Index("ix_telemetry_series_brought_by", "brought_by"),
)


def _measures(name: str, *further: Column[Any], partitioned: bool) -> Table:
    """Return a table of what was measured, by series, time and device."""
    return Table(
        name,
        metadata,
        Column("series_id", Integer, primary_key=True, autoincrement=False),
        Column("minute", Integer, primary_key=True, autoincrement=False),
        Column("device", String(MAX_DEVICE), primary_key=True),
        Column("value_count", BigInteger, nullable=False),
        Column("total", Double, nullable=False),
        Column("least", Double, nullable=False),
        Column("greatest", Double, nullable=False),
        Column("sketch", LargeBinary, nullable=True),
        *further,
        CheckConstraint("value_count > 0", name=f"ck_{name}_count"),
        sqlite_with_rowid=False,
        postgresql_partition_by="RANGE (minute)" if partitioned else None,
    )


def _span() -> tuple[Column[Any], Column[Any]]:
    """Return columns with the first and the last minute of which there are values."""
    return (
        Column("first_minute", Integer, nullable=False),
        Column("last_minute", Integer, nullable=False),
    )


minute = _measures("telemetry_minute", partitioned=True)
hour = _measures("telemetry_hour", *_span(), partitioned=True)
day = _measures("telemetry_day", *_span(), partitioned=True)
"""What one device measured in a minute, an hour or a day; `minute` is the first one of it, counted
from the epoch."""

fleet_minute = _measures("telemetry_fleet_minute", partitioned=False)
fleet_hour = _measures("telemetry_fleet_hour", *_span(), partitioned=False)
fleet_day = _measures("telemetry_fleet_day", *_span(), partitioned=False)
"""The same of all devices together; the name of the device is empty."""

DEVICES = {"minute": minute, "hour": hour, "day": day}
"""What each device measured, by the name of the level (`telemetry.server.levels`)."""

FLEETS = {"minute": fleet_minute, "hour": fleet_hour, "day": fleet_day}
"""What all devices measured together."""

level = Table(
    "telemetry_level",
    metadata,
    Column("name", String(16), primary_key=True),
    Column("closed_minute", Integer, nullable=False),
    Column("done_minute", Integer, nullable=False),
    Column("pruned_minute", Integer, nullable=False, server_default="0"),
    CheckConstraint("done_minute <= closed_minute", name="ck_telemetry_level_done"),
)
"""How far hours and days are made of what is finer: up to `done_minute`. What comes for a time
before `closed_minute` is late, and is noted in `telemetry_late`. The row `fleet` says since which
minute the tables of the fleet are complete; ingests of several controllers take turns with it. Rows
of a level before `pruned_minute` were deleted; it never falls, whatever clocks and settings say."""

late = Table(
    "telemetry_late",
    metadata,
    Column("level", String(16), primary_key=True),
    Column("minute", Integer, primary_key=True, autoincrement=False),
    Column("device", String(MAX_DEVICE), primary_key=True),
    Column("mark", BigInteger, nullable=False),
)
"""Which hours and days of a device are to be made anew, because something came late; the mark is
another one each time."""

dead_letter = Table(
    "telemetry_dead_letter",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("at_s", Double, nullable=False),
    Column("device", String(MAX_DEVICE), nullable=False),
    Column("reason", Text, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("payload", LargeBinary, nullable=False),
    Index("ix_telemetry_dead_letter_device", "device"),
)
"""Batches that could not be read or stored, each with the reason and its first bytes."""

device = Table(
    "telemetry_device",
    metadata,
    Column("device", String(MAX_DEVICE), primary_key=True),
    Column("batches", BigInteger, nullable=False),
    Column("dropped", BigInteger, nullable=False),
    Column("refused", BigInteger, nullable=False),
    Column("newest_minute", Integer, nullable=False),
    Column("clock_ahead_s", Double, nullable=True),
    Column("answered", String(MAX_REQUEST_ID), nullable=True),
)
"""One row per device that ever reported: its losses; the newest minute of which anything was
stored, so that rows of later minutes are written without a look for older ones; how far its clock
is ahead if that is wrong; and the last request to report whose answer is stored. An ingest locks
this row."""

batch = Table(
    "telemetry_batch",
    metadata,
    Column("device", String(MAX_DEVICE), primary_key=True),
    Column("boot", String(MAX_BOOT), primary_key=True),
    Column("newest", BigInteger, nullable=False),
    Column("seen", LargeBinary(32), nullable=False),
    Column("minute", Integer, nullable=False),
)
"""Which sequence numbers of a boot are counted: the newest, and one bit for each of the 256 numbers
up to it. One row per batch would be 8,640 rows per device and day."""

event = Table(
    "telemetry_event",
    metadata,
    Column("id", BigInteger().with_variant(Integer, "sqlite"), primary_key=True),
    Column("device", String(MAX_DEVICE), nullable=False),
    Column("at_s", Double, nullable=False),
    Column("kind", String(64), nullable=False),
    Column("reason", Text, nullable=False),
    Column("data", Text, nullable=False),
    Index("ix_telemetry_event_device", "device", "at_s"),
    Index("ix_telemetry_event_at", "at_s"),
)

export_place = Table(
    "telemetry_export_place",
    metadata,
    Column("sink", String(32), primary_key=True),
    Column("device", String(MAX_DEVICE), primary_key=True),
    Column("place", BigInteger, nullable=False),
)
"""How far the telemetry of a device was handed on to another system: the first minute that was not.
Without a device: where a new one begins. Of a sink of events: the number of the last one."""

export_counter = Table(
    "telemetry_export_counter",
    metadata,
    Column("sink", String(32), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("series", Text, nullable=False),
    Column("value_count", BigInteger, nullable=False),
    Column("total", Double, nullable=False),
    Column("sketch", LargeBinary, nullable=True),
    Column("created_at_s", Double, nullable=False),
    Column("minute", Integer, nullable=False),
)
"""What was counted of a series since `created_at_s`: never less than before. `minute` is the newest
that was added, so that a series which nobody reports any more can go."""

"""What tests find in a database and in a controller's directory.

Rows of today's tables; a fleet as an earlier version stored it; and a directory for backups.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import sqlalchemy as sa
from sqlalchemy.orm import Session

from controller.app.new_home import HomeOptions, create_home
from controller.config import load_config
from controller.domain.rollout_view import Limits, StageSpec
from controller.domain.starting_order import StartingOrder, places
from controller.domain.states import DeviceState, ReleaseState
from controller.services.blobs import BlobStore
from controller.store import devices, new_rollouts, releases, rollouts
from controller.store.all_tables import CONTROL_METADATA
from controller.store.database import Database, migrate
from controller.store.device_tables import DeviceRow
from controller.store.model_tables import DeviceModelRow
from controller.store.new_deployments import intake
from controller.store.new_rollouts import NewRollout
from controller.store.release_tables import ReleaseRow
from controller.store.rollout_tables import RolloutRow
from telemetry.server import tables
from telemetry.server.partitions import Partitions
from telemetry.server.tables import metadata as telemetry_metadata
from tests.simulators.clock import FakeClock

CLOCK: Final = FakeClock()
NOW_S: Final = 1_750_000_000.0
DIGEST: Final = "a" * 64
OTHER: Final = "b" * 64
THIRD: Final = "c" * 64

OLD_FLEET: Final = """
INSERT INTO device VALUES ('cam-1', 'enrolled', 'k', 'rpi4', 'aarch64', '{}', '1', '', FALSE, 7,
    NULL, NULL, '', '', 1.0, NULL);
INSERT INTO release VALUES ('d', 'digits', '1', 'published', 'e', 1, 1, 1.0, '[]');
INSERT INTO rollout VALUES ('r1', 'd', NULL, '', 'running', '', 1, 0, 60, 0, NULL, 1, FALSE, 1,
    1, 1, NULL, 1.0, NULL);
INSERT INTO deployment VALUES ('r1', 'cam-1', 'assigned', 0, 1, 7, NULL, '', 0, 0, '', '', 1.0,
    NULL, NULL);
INSERT INTO desired_state VALUES ('cam-1', 7, 'd', 'r1', 1.0)
"""
"""A fleet at work, in the tables of revision 0002."""

_ROWS: Final = """
INSERT INTO telemetry_series VALUES (7, 'm_ms', 'histogram', 'd', 'best', '{}', 'cam-1');
INSERT INTO telemetry_minute VALUES (7, 28000000, 'cam-1', 3, 1.5, 0.25, 0.75, :blob);
INSERT INTO telemetry_event VALUES (41, 'cam-1', 1.5, 'switch', 'zu heiß', '{}');
INSERT INTO rollout (id, release, origin, selector, state, reason, max_in_flight, soak_s,
    device_deadline_s, max_failures, max_failure_percent, min_finished, approval, initial_devices,
    stage, approved_stage, stage_complete_at_s, created_at_s, finished_at_s) VALUES
    ('r0', 'd', 'r1', '', 'halted', '', 1, 0, 60, 0, NULL, 1, FALSE, 1, 1, 1, NULL, 1.0, NULL);
INSERT INTO rollout_event (id, rollout, at_s, action, reason)
    VALUES (12, 'r1', 1.0, 'start', 'because');
INSERT INTO api_token VALUES ('kim', 'viewer', 'd1', NULL, NULL, 100, 'home', 1.0, 2.0, NULL, NULL);
INSERT INTO audit VALUES (1, 1000, 'home', 'admin', 'POST /v1/access', 'kim', 'committed', 'h')
"""


def add_device(session: Session, name: str, **labels: str) -> DeviceRow:
    row = DeviceRow(
        id=name,
        state=DeviceState.ENROLLED,
        public_key="k",
        profile_name=labels.pop("profile", "rpi4"),
        architecture=labels.pop("arch", "aarch64"),
        profile={},
        agent_version="1",
        boot_id="",
        online=False,
        reported_revision=0,
        last_error="",
        enrolled_at_s=NOW_S,
        labels=[],
    )
    session.add(row)
    devices.set_labels(session, row, labels)
    session.flush()  # before rows that name the device
    return row


def add_told(session: Session, device: DeviceRow, release: str, model: str = "digits") -> None:
    """Let a device say that it runs a release."""
    session.add(
        DeviceModelRow(
            device=device.id,
            model=model,
            revision=0,
            release=release,
            variant="best",
            phase="",
            last_error="",
        )
    )
    session.flush()


def add_release(
    session: Session, digest: str = DIGEST, version: str = "1", name: str = "digits"
) -> ReleaseRow:
    row = ReleaseRow(
        digest=digest,
        name=name,
        version=version,
        state=ReleaseState.PUBLISHED,
        envelope_sha256="e" * 64,
        envelope_size_bytes=10,
        size_bytes=100,
        published_at_s=NOW_S,
        variants=[],
    )
    releases.add(session, row, [("c" * 64, 100)])
    return row


def add_rollout(
    session: Session,
    name: str,
    members: tuple[str, ...],
    release: str = DIGEST,
    model: str = "digits",
) -> RolloutRow:
    limits = Limits(
        max_in_flight=10,
        soak_s=0.0,
        device_deadline_s=60.0,
        offline_limit_s=600.0,
        max_failures=0,
        max_failure_percent=None,
        min_finished=1,
        approval=False,
    )
    new = NewRollout(
        id=name,
        release=release,
        model=model,
        selector="",
        limits=limits,
        stages=(StageSpec(percent=100.0),),
        created_at_s=NOW_S,
    )
    new_rollouts.begin(session, new, intake(places(StartingOrder(), name, members)))
    return rollouts.get(session, name)


def stored_home(home: Path, database_url: str = "") -> str:
    """Make a directory with a database, a device at work and a blob; return the database's URL."""
    create_home(home, HomeOptions(database_url=database_url))
    url = load_config(home / "controller.toml").database_url
    migrate(url, "0002")
    run(url, OLD_FLEET)
    migrate(url)
    database = Database(url)
    Partitions(database.engine).cover(tables.minute, [28_000_000])
    database.close()
    run(url, _ROWS)
    BlobStore(home / "blobs").put(b"a blob")
    return url


def run(url: str, statements: str) -> None:
    database = Database(url)
    with database.transaction() as session:
        for statement in statements.split(";"):
            values = {"blob": b"\x00\xff"} if ":blob" in statement else {}
            session.execute(sa.text(statement), values)
    database.close()


def content(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Return all rows of a database."""
    database = Database(url)
    with database.engine.connect() as connection:
        rows = {
            table.name: sorted(
                (tuple(row) for row in connection.execute(sa.select(table))), key=str
            )
            for metadata in (CONTROL_METADATA, telemetry_metadata)
            for table in metadata.sorted_tables
        }
    database.close()
    return rows

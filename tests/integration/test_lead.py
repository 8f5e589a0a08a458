"""Of controllers that share a fleet one leads; the others stand by until they do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from sqlalchemy import text

from controller.app.lead import Lead
from controller.errors import DatabaseError
from controller.store import device_status
from controller.store.database import Database
from controller.store.sole import Sole, Work
from tests.integration.conftest import PostgresServer
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.parametrize("database_url", ["postgresql"], indirect=True),
]
ONE = two_variants("1", best="one")


def test_members_of_a_group_have_one_database(
    database: Database, postgres_server: PostgresServer
) -> None:
    name = postgres_server.create_database()
    another = Database(postgres_server.url(name))
    assert Lead(database, "both").group == Lead(database, "both").group
    assert Lead(database, "both").group != Lead(another, "both").group
    another.close()
    postgres_server.drop_database(name)


def test_messages_of_one_device_wait_for_each_other(database: Database) -> None:
    with database.transaction() as first:
        device_status.take_turns(first, ["cam-1"])
        with database.transaction() as second:
            device_status.take_turns(second, ["cam-2"])
        with pytest.raises(DatabaseError), database.transaction() as third:
            third.execute(text("SET LOCAL lock_timeout = '50ms'"))
            device_status.take_turns(third, ["cam-1"])


def test_the_time_of_a_rollout_counts_where_a_controller_leads(
    database_url: str, tmp_path: Path
) -> None:
    fleet = Fleet(database_url, tmp_path)
    fleet.publish(ONE)
    fleet.enrol(*names("cam", 3))
    stages = [{"count": 1}, {"percent": 100}]
    rollout = fleet.roll_out("digits:1", stages=stages, soak_s=60.0)
    for _ in range(10):
        fleet.step()
    assert [stage["state"] for stage in fleet.show(rollout)["stages"]] == ["soaking", "waiting"]

    database = Database(database_url)
    other = Sole(database, Work.LEAD)
    assert other.is_ours()
    broker = msgspec.structs.replace(fleet.config.broker, share="both")
    fleet.config = msgspec.structs.replace(fleet.config, broker=broker)
    fleet.kill()
    for _ in range(10):
        fleet.step(10.0)
    assert len(fleet.running(ONE.digest)) == 1, "it stands by"

    other.close()
    for _ in range(8):
        fleet.step(5.0)
    assert len(fleet.running(ONE.digest)) == 1, "the time before does not count"
    for _ in range(5):
        fleet.step(5.0)
    assert len(fleet.running(ONE.digest)) == len(fleet.devices), "it leads"
    fleet.close()
    database.close()

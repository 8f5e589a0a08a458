"""Of controllers that share a fleet one leads; the others stand by until they do."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from controller.store.database import Database
from controller.store.sole import Sole, Work
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants

ONE = two_variants("1", best="one")


@pytest.mark.postgresql
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
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

"""A controller that was restored from a backup, while its devices went on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.app.backup import back_up
from controller.app.restore import restore
from controller.config import load_config
from tests.simulators.controller_fleet import API_TOKEN, Fleet, names
from tests.simulators.packages import package, two_variants, variant
from wire.desired import MAX_REVISION_STEP

ONE, TWO = two_variants("1", best="one"), two_variants("2", best="two")
SETTINGS = 'access = "open"\ntick_interval_s = 0.05\n[api]\nport = 0\n'


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "controller.toml").write_text(f"database_url = {json.dumps(database_url)}\n{SETTINGS}")
    made = Fleet(database_url, home)
    made.publish(ONE)
    made.publish(TWO)
    yield made
    made.close()


def back(fleet: Fleet, tmp_path: Path, database_url: str) -> None:
    """Let a restored controller take the place of the one that runs."""
    restore(tmp_path / "fleet.tar", tmp_path / "again", fleet.clock, database_url=database_url)
    fleet.config = load_config(tmp_path / "again" / "controller.toml")
    fleet.kill()


@pytest.mark.few(2)
def test_a_restored_controller_finishes_its_rollout(
    fleet: Fleet, tmp_path: Path, target_database_url: str
) -> None:
    fleet.enrol(*names("cam", 4))
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    rollout = fleet.roll_out("digits:2", stages=[{"count": 1}, {"percent": 100}], soak_s=10.0)
    fleet.step()
    fleet.step()
    assert len(fleet.running(TWO.digest)) == 1
    back_up(tmp_path / "home", tmp_path / "fleet.tar", fleet.clock)
    # All that follows is lost: the devices go on, to higher revisions.
    assert fleet.run(rollout)["state"] == "succeeded"
    for release in ("digits:1", "digits:2", "digits:1"):
        assert fleet.run(fleet.roll_out(release))["state"] == "succeeded"
    highest = max(device.revision for device in fleet.devices.values())
    for device in fleet.devices.values():
        device.boot_id = "since the backup"
    fleet.clock.advance(3600)

    back(fleet, tmp_path, target_database_url)
    assert API_TOKEN in (tmp_path / "again" / "api.token").read_text()
    assert fleet.state(rollout) == "running"
    shown = fleet.run(rollout)
    assert (shown["state"], shown["counts"]) == ("succeeded", {"succeeded": 4})
    assert fleet.running(TWO.digest) == set(fleet.devices)
    for device in fleet.devices.values():
        assert highest < device.revision < highest + MAX_REVISION_STEP
        device.connect()
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    assert fleet.running(ONE.digest) == set(fleet.devices)


def test_neither_an_old_report_nor_an_old_deadline_ends_what_was_under_way(
    fleet: Fleet, tmp_path: Path, target_database_url: str
) -> None:
    fleet.enrol("cam-1")
    device = fleet.devices["cam-1"]
    device.outcome = "silent"
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    back_up(tmp_path / "home", tmp_path / "fleet.tar", fleet.clock)
    fleet.clock.advance(7 * 86400)
    back(fleet, tmp_path, target_database_url)
    device.report(1, ONE.digest, "failed")
    fleet.step()
    assert fleet.state(rollout) == "running", "and its deadline began again"
    device.outcome = "succeeded"
    device.connect()
    assert fleet.run(rollout)["state"] == "succeeded"


@pytest.mark.few(2)
def test_a_restored_controller_leads_each_of_several_models(
    fleet: Fleet, tmp_path: Path, target_database_url: str
) -> None:
    faces = package("1", [(variant("best"), b"faces")], name="faces")
    fleet.publish(faces)
    fleet.enrol(*names("cam", 3))
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    rollouts = [
        fleet.roll_out(release, stages=[{"count": 1}, {"percent": 100}], soak_s=10.0)
        for release in ("digits:2", "faces:1")
    ]
    fleet.step()
    fleet.step()
    back_up(tmp_path / "home", tmp_path / "fleet.tar", fleet.clock)
    for rollout in rollouts:  # lost with what follows
        assert fleet.run(rollout)["state"] == "succeeded"
    for device in fleet.devices.values():
        device.boot_id = "since the backup"
    back(fleet, tmp_path, target_database_url)
    for rollout in rollouts:
        assert fleet.run(rollout)["counts"] == {"succeeded": 3}
    for device in fleet.devices.values():
        assert device.actives == {"digits": TWO.digest, "faces": faces.digest}
        assert not device.documents[-1].faults()


@pytest.mark.few(2)
def test_a_model_that_came_after_the_backup_stays_on_its_devices(
    fleet: Fleet, tmp_path: Path, target_database_url: str
) -> None:
    faces = package("1", [(variant("best"), b"faces")], name="faces")
    fleet.publish(faces)
    fleet.enrol("cam-1")
    assert fleet.run(fleet.roll_out("digits:1"))["state"] == "succeeded"
    back_up(tmp_path / "home", tmp_path / "fleet.tar", fleet.clock)
    assert fleet.run(fleet.roll_out("faces:1"))["state"] == "succeeded"
    device = fleet.devices["cam-1"]
    before = len(device.documents)
    back(fleet, tmp_path, target_database_url)
    fleet.step()
    device.connect()
    for _ in range(3):
        fleet.step()
    told = device.documents[before:]
    assert told
    for document in told:
        names_it = document.model("faces") is not None
        assert names_it or document.keeps_others, "nothing takes it away"
    assert device.documents[-1].model("faces") is not None

"""The order of what is told of alerts, through refusals, kills and clocks that are set."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.alert_settings import AlertsConfig
from controller.store import alert_deliveries
from controller.store.alert_tables import AlertRow
from controller.store.database import Database, migrate
from controller.store.sole import Sole, Work
from tests.simulators.alert_rig import URL, Rig
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.receiver import Receiver, running_receiver

HOT: dict[str, Any] = {
    "name": "hot", "kind": "threshold", "metric": "temperature_c", "stat": "max", "window": "1m",
    "by": ["device"], "above": 85, "clear": 80,
}  # fmt: skip
QUIET = {"name": "silent-device", "kind": "absence", "enabled": False}
DAY_S = 86_400.0


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as made:
        yield made


@pytest.fixture
def rig(database_url: str, tmp_path: Path, receiver: Receiver) -> Iterator[Rig]:
    made = Rig(database_url, tmp_path, receiver)
    made.fleet.enrol("cam1", "cam2")
    made.apply(HOT, QUIET)
    yield made
    made.fleet.close()
    made.database.close()


def judge(rig: Rig, after_s: float = 120.0, **heats: float) -> None:
    """Let time pass and the controller judge, and post nothing yet."""
    rig.fleet.clock.advance(after_s)
    for device, celsius in heats.items():
        rig.heat(device, celsius)
    rig.fleet.controller.alerting.judging.evaluate()


def test_what_is_told_of_one_group_stays_in_order_after_a_kill_in_the_middle(rig: Rig) -> None:
    judge(rig, cam1=90)
    judge(rig, cam1=70)
    judge(rig, cam2=90)
    now_s = rig.fleet.clock.now_s()
    with rig.database.transaction() as session:  # as it does before it posts
        assert alert_deliveries.claim(session, "pager", now_s=now_s, wait_s=lambda _: 10.0)
    rig.fleet.kill()
    rig.post()
    assert rig.told() == [("hot", "device=cam2", "firing")]  # of another group
    rig.fleet.clock.advance(11.0)
    rig.post()
    assert rig.told()[1:] == [("hot", "device=cam1", "firing"), ("hot", "device=cam1", "resolved")]
    assert [(row.state, row.body) for row in rig.deliveries()] == [("delivered", "")] * 3


def test_what_is_refused_is_not_overtaken_by_what_happened_later(rig: Rig) -> None:
    rig.receiver.answers = [400, 400]
    rig.look(cam1=90)
    rig.look(cam1=70, after_s=5.0)
    rig.look(cam1=70, after_s=115.0)
    rig.fleet.clock.advance(60.0)
    rig.post()
    assert [state for _, _, state in rig.told()] == ["firing", "firing", "firing", "resolved"]


@pytest.mark.flow
def test_a_clock_that_is_set_back_changes_no_identifier_and_holds_up_no_post(rig: Rig) -> None:
    rig.look(cam1=90)
    rig.fleet.clock.correct(-600.0)
    rig.look(cam1=91)
    rig.receiver.answers = [503]
    rig.look(cam1=70)
    rig.fleet.clock.correct(-30 * DAY_S)
    judge(rig, 0.0, cam2=90)
    rig.post()
    said = [each for post in rig.receiver.posts for each in post.content["alerts"]]
    assert [(each["group"], each["state"]) for each in said] == [
        ("device=cam1", "firing"), ("device=cam1", "resolved"), ("device=cam1", "resolved"),
        ("device=cam2", "firing"),
    ]  # fmt: skip
    assert len({each["id"] for each in said[:3]}) == 1
    assert said[0]["id"] != said[3]["id"]


@pytest.mark.flow
def test_a_clock_that_is_set_back_prolongs_nothing(rig: Rig) -> None:
    rig.fleet.clock.correct(365 * DAY_S)
    rig.look(cam1=90, cam2=90)
    body = {"group": "cam1", "for_s": 7200}
    rig.fleet.api.post(f"{URL}/rules/hot/ack", json=body).raise_for_status()
    rig.fleet.clock.correct(-365 * DAY_S)
    rig.look(cam1=90, cam2=90)
    assert rig.fleet.api.get(URL).json()[0]["acked"] is True
    rig.look(cam1=90, cam2=90, after_s=7200.0)
    assert rig.fleet.api.get(URL).json()[0]["acked"] is False
    rig.look(cam1=90, cam2=90, after_s=3600.0 * 2)
    assert rig.told()[2:] == [  # after four hours again
        ("hot", "device=cam1", "firing"), ("hot", "device=cam2", "firing"),
    ]  # fmt: skip


def test_time_in_which_nobody_listened_ends_no_alert_and_fires_none(rig: Rig) -> None:
    rig.apply(HOT, HOT | {"name": "long-hot", "for": "30m"}, QUIET)
    rig.look(cam1=90)
    open_alerts = [("long-hot", "device=cam1", "pending"), ("hot", "device=cam1", "firing")]
    assert sorted(rig.look(after_s=2 * DAY_S)) == sorted(open_alerts)  # it was held up
    rig.fleet.clock.advance(2 * DAY_S)
    rig.fleet.kill()
    assert sorted(rig.look(after_s=0.0)) == sorted(open_alerts)
    rig.fleet.clock.correct(3600.0)
    assert sorted(rig.look(cam1=90)) == sorted(open_alerts)
    said = [each for post in rig.receiver.posts for each in post.content["alerts"]]
    assert {each["state"] for each in said} == {"firing"}
    assert len({each["id"] for each in said}) == 1


def test_what_fires_and_waits_comes_through_an_upgrade(rig: Rig, database_url: str) -> None:
    rig.receiver.answers = [503]
    rig.look(cam1=90)
    migrate(database_url, "0021")
    migrate(database_url)
    with rig.database.reading() as session:
        row = session.query(AlertRow).one()
    known = hashlib.sha256(f"hot\ndevice=cam1\n{row.since_s:.3f}".encode()).hexdigest()
    assert row.incident == known[:16]  # as receivers knew it before
    judge(rig, 0.0, cam1=70)
    rig.receiver.answers = [400]
    rig.fleet.clock.advance(60.0)
    rig.post()
    assert [state for _, _, state in rig.told()] == ["firing", "firing"]


@pytest.mark.flow
def test_a_device_that_is_let_in_again_is_not_silent_yet(rig: Rig) -> None:
    rig.apply()
    rig.look(cam1=50, cam2=50)
    rig.fleet.api.patch("/v1/devices/cam1", json={"state": "quarantined"}).raise_for_status()
    for _ in range(4):
        rig.look(cam2=50, after_s=600.0)
    rig.fleet.api.patch("/v1/devices/cam1", json={"state": "enrolled"}).raise_for_status()
    rig.fleet.api.patch("/v1/devices/cam1", json={"state": "enrolled"}).raise_for_status()
    assert rig.look(cam2=50, after_s=600.0) == []
    rig.fleet.api.patch("/v1/devices/cam1", json={"state": "enrolled"}).raise_for_status()
    assert rig.look(cam2=50, after_s=400.0) == [("silent-device", "device=cam1", "firing")]


@pytest.mark.flow
def test_a_clock_that_is_set_makes_no_device_silent_and_hides_no_silence(rig: Rig) -> None:
    rig.apply()
    for _ in range(8):
        rig.look(cam1=50, cam2=50)
    rig.fleet.clock.correct(3600.0)
    assert rig.look(after_s=31.0) == []
    assert rig.look(cam1=50, cam2=50) == []
    rig.fleet.clock.correct(-DAY_S)
    assert rig.look(cam1=50) == []
    assert rig.look(cam1=50, after_s=600.0) == []
    assert rig.look(cam1=50, after_s=301.0) == [("silent-device", "device=cam2", "firing")]


@pytest.mark.flow
def test_a_receiver_that_never_answers_holds_up_no_other(rig: Rig, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:  # takes connections and reads nothing
        slow = Receiver(port=mute.getsockname()[1]).config(tmp_path, "a-slow-one")
        webhooks = (slow, *rig.fleet.config.alerts.webhooks)
        config = msgspec.structs.replace(rig.fleet.config, alerts=AlertsConfig(webhooks=webhooks))
        rig.fleet.config = config
        rig.fleet.kill()
        judge(rig, cam1=90)
        rig.fleet.controller.alerting.start()
        until(lambda: rig.receiver.posts, "a post", step_s=0.02)
        assert {row.webhook: row.fault for row in rig.deliveries()}["a-slow-one"] == ""
    rig.fleet.controller.alerting.stop(PATIENCE_S)


@pytest.mark.flow
def test_alerts_of_a_device_that_has_left_end_at_once(rig: Rig) -> None:
    away = {"kind": "absence", "metric": "temperature_c", "window": "5m"}
    device, site = ({"name": f"no-{name}", "by": [name], **away} for name in ("device", "site"))
    rig.apply(HOT, device, site, QUIET)
    for name in ("cam1", "cam2"):
        body = {"labels": {"site": f"of-{name}"}}
        rig.fleet.api.patch(f"/v1/devices/{name}", json=body).raise_for_status()
    rig.look(cam1=90, cam2=90)
    gone = [("no-device", "device=cam2", "firing"), ("no-site", "site=of-cam2", "firing")]
    hot = [("hot", "device=cam1", "firing"), ("hot", "device=cam2", "firing")]
    assert sorted(rig.look(cam1=90, after_s=600.0)) == hot + gone
    rig.fleet.api.patch("/v1/devices/cam2", json={"state": "decommissioned"}).raise_for_status()
    assert rig.look(cam1=90) == hot[:1]
    assert rig.look(cam1=90) == hot[:1]
    assert sorted(rig.told()[-3:]) == [(rule, of, "resolved") for rule, of, _ in (hot[1], *gone)]


def test_of_two_controllers_of_a_database_one_judges(rig: Rig, database_url: str) -> None:
    database = Database(database_url)
    other = Sole(database, Work.ALERTS)
    assert other.is_ours()
    is_shared = database_url.startswith("postgresql")  # SQLite: the directory is locked
    firing = [("hot", "device=cam1", "firing")]
    assert rig.look(cam1=90) == ([] if is_shared else firing)
    needs = rig.fleet.api.get("/v1/health").json()["needs"]
    assert any("another one with the same database" in line for line in needs) is is_shared
    other.close()
    assert rig.look(cam1=90) == firing
    assert other.is_ours() is not is_shared
    rig.fleet.kill()
    assert other.is_ours()
    other.close()
    database.close()

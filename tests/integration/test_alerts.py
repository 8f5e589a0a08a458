"""Alerts from end to end: real controller, API and database, and a receiver that is one."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.alert_settings import AlertsConfig
from controller.domain.alert_posts import MAX_TRIES, DeliveryState
from controller.services.alerts import RESOLVED_KEPT_S
from controller.store import alert_deliveries
from controller.store.alert_tables import AlertHistoryRow, AlertRow, AlertRuleRow
from telemetry.server.alerts.judging import MAX_ALERTS
from tests.simulators.alert_rig import URL, Rig
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.receiver import Receiver, running_receiver

HOT: dict[str, Any] = {
    "name": "hot", "kind": "threshold", "metric": "temperature_c", "stat": "max", "window": "1m",
    "by": ["device"], "above": 85, "clear": 80, "summary": "a board is near its limit",
    "severity": "critical",
}  # fmt: skip
QUIET = {"name": "silent-device", "kind": "absence", "enabled": False}


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with running_receiver() as made:
        yield made


@pytest.fixture
def rig(database_url: str, tmp_path: Path, receiver: Receiver) -> Iterator[Rig]:
    made = Rig(database_url, tmp_path, receiver)
    made.fleet.enrol("cam1", "cam2", site="berlin")
    yield made
    made.fleet.close()
    made.database.close()


def test_an_alert_fires_is_told_and_is_resolved(rig: Rig) -> None:
    assert rig.apply(HOT | {"for": "2m"}, QUIET)["added"] == ["hot"]
    assert rig.look(cam1=90, cam2=50) == [("hot", "device=cam1", "pending")]
    assert rig.receiver.posts == []
    assert rig.look(cam1=91, cam2=95) == [
        ("hot", "device=cam1", "firing"), ("hot", "device=cam2", "pending"),
    ]  # fmt: skip
    rig.look(cam1=82, cam2=60)  # between the bounds the one goes on, and the other was short
    assert rig.alerts() == [("hot", "device=cam1", "firing")]
    assert rig.look(cam1=79) == []
    assert rig.alerts(resolved="true") == [("hot", "device=cam1", "resolved")]
    assert rig.told() == [("hot", "device=cam1", "firing"), ("hot", "device=cam1", "resolved")]
    first, last = (post.content["alerts"][0] for post in rig.receiver.posts)
    assert first["id"] == last["id"]
    assert (first["value"], first["severity"], first["labels"]) == (
        91.0, "critical", {"device": "cam1"},
    )  # fmt: skip
    assert last["at_s"] - last["fired_at_s"] == 240.0
    assert rig.history("hot") == [
        ("rule-added", ""), ("firing", "device=cam1"), ("resolved", "device=cam1"),
    ]  # fmt: skip


def test_an_amount_that_stops_is_resolved_while_its_device_reports(rig: Rig) -> None:
    busy = {"metric": "inference_latency_ms", "stat": "count", "window": "2m", "above": 5}
    rig.apply({"name": "busy", "kind": "threshold", "by": ["device"], **busy}, QUIET)
    for device in ("cam1", "cam2"):
        rig.answered(device, *[4.0] * 9)
    firing = [("busy", "device=cam1", "firing"), ("busy", "device=cam2", "firing")]
    assert rig.look(cam1=50, cam2=50) == firing
    assert rig.look(after_s=180.0, cam1=50) == firing[1:]
    assert rig.look(after_s=60.0, cam2=50) == []


def test_what_happens_at_one_time_is_in_one_post(rig: Rig) -> None:
    rig.apply(HOT, HOT | {"name": "warm", "above": 40, "clear": None})
    rig.look(cam1=90, cam2=50)
    (post,) = rig.receiver.posts
    assert sorted(post.alerts) == [
        ("hot", "device=cam1", "firing"), ("warm", "device=cam1", "firing"),
        ("warm", "device=cam2", "firing"),
    ]  # fmt: skip


def test_a_receiver_that_fails_first_gets_all_in_order_later(rig: Rig) -> None:
    rig.apply(HOT)
    rig.receiver.answers = [503, 503]
    rig.look(cam1=90)
    rig.look(cam1=70, after_s=2.0 * 60)
    assert [post.alerts for post in rig.receiver.posts] == [[("hot", "device=cam1", "firing")]] * 2
    rig.post()
    assert len(rig.receiver.posts) == 2  # nothing else goes there before the next try
    rig.fleet.clock.advance(60.0)
    rig.post()
    assert [post.alerts[0][2] for post in rig.receiver.posts[2:]] == ["firing", "resolved"]
    tries = rig.receiver.posts[:3]
    assert len({post.delivery for post in tries}) == len({post.body for post in tries}) == 1
    assert len({post.timestamp for post in tries}) == 3
    assert [row.state for row in rig.deliveries()] == [DeliveryState.DELIVERED] * 2
    assert [row.tries for row in rig.deliveries()] == [3, 1]


def test_a_post_that_is_refused_holds_up_no_other(rig: Rig) -> None:
    rig.apply(HOT, QUIET)
    rig.receiver.answers = [400]
    rig.look(cam1=90)
    rig.receiver.answers = [400]
    rig.look(cam2=90, after_s=1200.0)
    assert [post.alerts for post in rig.receiver.posts][-1] == [("hot", "device=cam2", "firing")]
    assert [row.state for row in rig.deliveries()] == ["waiting", "delivered"]
    assert "it refuses with 400" in rig.deliveries()[0].fault


def test_a_controller_that_was_killed_goes_on(rig: Rig) -> None:
    rig.apply(HOT | {"for": "2m"}, QUIET)
    rig.look(cam1=90)
    rig.fleet.kill()
    rig.receiver.answers = [503]
    assert rig.look(cam1=90) == [("hot", "device=cam1", "firing")]
    rig.fleet.kill()
    assert rig.look(cam1=90, after_s=60.0) == [("hot", "device=cam1", "firing")]
    assert rig.told() == [("hot", "device=cam1", "firing")] * 2
    assert len({post.delivery for post in rig.receiver.posts}) == 1


def test_a_controller_that_was_killed_while_it_posted_repeats_itself(rig: Rig) -> None:
    rig.apply(HOT)
    rig.fleet.clock.advance(60.0)
    rig.heat("cam1", 90)
    rig.fleet.controller.alerting.judging.tick()
    now_s = rig.fleet.clock.now_s()
    with rig.database.transaction() as session:  # as it does before it posts
        assert alert_deliveries.claim(session, "pager", now_s=now_s, wait_s=lambda _: 10.0)
    rig.fleet.kill()
    rig.post()
    assert rig.receiver.posts == []  # not at once: it may be why the controller ended
    rig.fleet.clock.advance(11.0)
    rig.post()
    assert rig.told() == [("hot", "device=cam1", "firing")]
    (row,) = rig.deliveries()
    assert (row.tries, row.state) == (2, "delivered")


def test_a_post_is_given_up_after_many_tries_and_the_health_says_so(rig: Rig) -> None:
    rig.apply(HOT)
    rig.receiver.answers = [500] * (MAX_TRIES + 5)
    rig.look(cam1=90)
    for _ in range(MAX_TRIES + 3):
        rig.fleet.clock.advance(4500.0)
        rig.post()
    (row,) = rig.deliveries()
    assert (row.state, row.tries, row.fault) == ("given-up", MAX_TRIES, "it answers 500")
    assert len(rig.receiver.posts) == MAX_TRIES
    needs = rig.fleet.api.get("/v1/health").json()["needs"]
    assert "a receiver of alerts that works: webhook pager: it answers 500" in needs
    assert any(line.startswith("1 posts of alerts were given up") for line in needs)
    assert not any(str(rig.receiver.port) in line for line in needs)


def test_too_much_that_waits_is_given_up_the_oldest_first(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controller.store.alert_deliveries.MAX_WAITING", 2)
    rig.apply(HOT, QUIET)
    rig.receiver.answers = [500] * 9
    for celsius in (90, 70, 90, 70):
        rig.look(cam1=celsius)
    assert [row.state for row in rig.deliveries()] == [
        "given-up", "given-up", "waiting", "waiting",
    ]  # fmt: skip


def test_a_receiver_that_the_settings_no_longer_name_gets_nothing(rig: Rig) -> None:
    rig.apply(HOT)
    rig.receiver.answers = [500]
    rig.look(cam1=90)
    rig.fleet.config = msgspec.structs.replace(rig.fleet.config, alerts=AlertsConfig())
    rig.fleet.kill()
    rig.look(after_s=3700.0)
    (row,) = rig.deliveries()
    assert (row.state, row.fault) == ("given-up", "the settings name no such webhook")


def test_one_rule_that_cannot_be_evaluated_stops_no_other(rig: Rig) -> None:
    broken = HOT | {"name": "broken", "metric": "own_metric"}
    rig.apply(broken, HOT | {"name": "wrong", "by": ["network"]}, HOT)
    assert rig.look(cam1=90) == [
        ("broken", "", "error"), ("wrong", "", "error"), ("hot", "device=cam1", "firing"),
    ]  # fmt: skip
    rules = {each["name"]: each for each in rig.fleet.api.get(f"{URL}/rules").json()}
    assert rules["broken"]["state"] == "error"
    assert "no device has reported a metric 'own_metric'" in rules["broken"]["error"]
    assert "has no attribute 'network'" in rules["wrong"]["error"]
    assert (rules["hot"]["state"], rules["hot"]["firing"]) == ("evaluated", 1)
    (need,) = (n for n in rig.fleet.api.get("/v1/health").json()["needs"] if "alerts" in n)
    assert need.startswith("rules of alerts that can be evaluated: 2 cannot")


def test_a_silent_device_is_an_alert_without_any_rule(rig: Rig) -> None:
    assert rig.look(cam1=50, cam2=50) == []
    assert rig.look(cam1=50, after_s=800.0) == []
    assert rig.look(cam1=50) == [("silent-device", "device=cam2", "firing")]
    assert rig.look(cam1=50, cam2=50) == []
    assert rig.told() == [
        ("silent-device", "device=cam2", "firing"), ("silent-device", "device=cam2", "resolved"),
    ]  # fmt: skip
    assert rig.look(cam1=50, after_s=1000.0) == [("silent-device", "device=cam2", "firing")]
    rig.fleet.api.patch("/v1/devices/cam2", json={"state": "quarantined"}).raise_for_status()
    assert rig.look(cam1=50) == []
    assert "or it is gone" in rig.receiver.posts[-1].content["alerts"][0]["reason"]


def test_a_controller_that_hears_nobody_calls_nobody_silent(rig: Rig) -> None:
    rig.look(cam1=50, cam2=50)
    rig.fleet.stay_down(3600.0)
    assert rig.look(after_s=60.0) == []
    assert rig.look(after_s=800.0, cam1=50) == []
    assert rig.look(cam1=50) == [("silent-device", "device=cam2", "firing")]
    rig.fleet.stay_down(3600.0)
    assert rig.look(after_s=60.0) == [("silent-device", "device=cam2", "firing")]


def test_the_rule_about_silent_devices_can_be_switched_off_and_replaced(rig: Rig) -> None:
    assert rig.apply(QUIET)["changed"] == {"silent-device": ["summary", "enabled"]}
    assert rig.look(after_s=2000.0) == []
    assert rig.fleet.api.get(f"{URL}/rules").json()[0]["state"] == "off"
    rig.apply(QUIET | {"enabled": True, "window": "1h"})
    assert rig.look() == []
    rig.apply()
    assert len(rig.look()) == 2


def test_an_acknowledged_alert_is_not_told_again(rig: Rig) -> None:
    rig.apply(HOT, QUIET)
    rig.look(cam1=90, cam2=90)
    body = {"group": "cam1", "comment": "a fan is on its way", "by": "kim"}
    answer = rig.fleet.api.post(f"{URL}/rules/hot/ack", json=body).json()
    assert [(each["group"], each["acked_by"]) for each in answer] == [("device=cam1", "kim")]
    rig.look(cam1=90, cam2=90, after_s=4 * 3600.0)
    assert rig.told()[2:] == [("hot", "device=cam2", "firing")]  # every four hours again
    assert rig.receiver.posts[-1].content["alerts"][0]["repeated"] is True
    rig.look(cam1=70, cam2=90)
    assert rig.told()[3:] == [("hot", "device=cam1", "resolved")]
    rig.look(cam1=90, cam2=90)  # with its end the acknowledgement has ended
    assert rig.told()[4:] == [("hot", "device=cam1", "firing")]
    assert ("acknowledged", "device=cam1") in rig.history("hot")


def test_an_acknowledgement_for_a_time_holds_for_what_fires_anew(rig: Rig) -> None:
    rig.apply(HOT, QUIET)
    rig.look(cam1=90)
    rig.fleet.api.post(f"{URL}/rules/hot/ack", json={"for_s": 3600}).raise_for_status()
    for celsius in (70, 90, 70, 90):
        rig.look(cam1=celsius)
    assert [state for _, _, state in rig.told()] == ["firing", "resolved"]
    rig.look(cam1=90, after_s=3600.0)
    assert [state for _, _, state in rig.told()] == ["firing", "resolved", "firing"]
    rig.fleet.api.post(f"{URL}/rules/hot/ack", json={}).raise_for_status()
    rig.fleet.api.post(f"{URL}/rules/hot/ack", json={"for_s": 0}).raise_for_status()
    assert rig.fleet.api.get(URL).json()[0]["acked"] is False
    assert [what for what, _ in rig.history("hot")][-2:] == ["acknowledged", "ack-ended"]


def test_other_rules_take_the_place_of_all(rig: Rig) -> None:
    cold = HOT | {"name": "cold", "above": None, "clear": None, "below": 5}
    rig.apply(HOT, cold)
    rig.look(cam1=90, cam2=0)
    louder = HOT | {"severity": "info", "summary": "x"}
    change = rig.apply(louder, cold, dry_run=True)
    assert change["changed"] == {"hot": ["summary", "severity"]}
    assert (change["unchanged"], change["ended"]) == (["cold", "silent-device"], [])
    assert rig.fleet.api.get(f"{URL}/rules").json()[0]["severity"] == "critical"
    rig.apply(louder, cold)
    assert len(rig.alerts()) == 2  # a new summary ends nothing
    change = rig.apply(louder | {"above": 88})
    assert (change["removed"], change["ended"]) == (["cold"], ["cold", "hot"])
    rig.post()
    assert sorted(rig.told()[2:]) == [
        ("cold", "device=cam2", "resolved"), ("hot", "device=cam1", "resolved"),
    ]  # fmt: skip
    assert "its rule was changed" in rig.receiver.posts[-1].content["alerts"][0]["reason"]
    assert sorted(rig.alerts(resolved="true")) == [
        ("cold", "device=cam2", "resolved"), ("hot", "device=cam1", "resolved"),
    ]  # fmt: skip
    assert rig.look(cam1=90) == [("hot", "device=cam1", "firing")]
    assert rig.apply(louder | {"above": 88})["changed"] == {}


def test_what_was_resolved_stays_listed_when_its_rule_is_gone_or_changed(rig: Rig) -> None:
    rig.apply(HOT, HOT | {"name": "warm"}, QUIET)
    rig.look(cam1=90)
    rig.look(cam1=50)
    by_site = HOT | {"by": ["site"], "above": 70, "clear": None}
    rig.apply(by_site, QUIET)

    def listed() -> dict[tuple[str, str, str], str]:
        found = rig.fleet.api.get(URL, params={"resolved": "true"}).json()
        return {(each["alert"], each["group"], each["state"]): each["note"] for each in found}

    notes = {
        ("hot", "device=cam1", "resolved"): "its rule has been changed since",
        ("warm", "device=cam1", "resolved"): "no rule of this name is in force any more",
    }
    assert listed() == notes
    assert rig.look(cam1=90) == [("hot", "site=berlin", "firing")]
    assert listed() == {("hot", "site=berlin", "firing"): "", **notes}
    gone = rig.fleet.api.get(f"{URL}/rules/warm").raise_for_status().json()
    assert (gone["rule"]["state"], gone["alerts"][0]["value"]) == ("gone", 50.0)
    assert [what for what, _ in rig.history("warm")] == [
        "rule-added", "firing", "resolved", "rule-removed",
    ]  # fmt: skip
    rig.look(after_s=RESOLVED_KEPT_S + 3600.0)
    assert {key[2] for key in listed()} == {"firing"}


def test_a_rule_that_another_version_wrote_is_told(rig: Rig) -> None:
    rig.apply(HOT)
    with rig.database.transaction() as session:
        row = session.get_one(AlertRuleRow, "hot")
        row.spec = {**row.spec, "kind": "forecast"}
    assert rig.look(cam1=90) == [("hot", "", "error")]
    assert rig.apply(HOT)["changed"] == {"hot": ["kind"]}
    assert rig.look(cam1=90) == [("hot", "device=cam1", "firing")]


def test_the_database_keeps_alerts_bounded(rig: Rig) -> None:
    rig.apply(HOT, QUIET)
    rig.look(cam1=90)
    rig.look(cam1=70)
    rig.look(after_s=RESOLVED_KEPT_S + 3600.0)
    with rig.database.reading() as session:
        assert session.query(AlertRow).count() == 0
        assert session.query(AlertHistoryRow).count() > 0
    assert rig.deliveries() == []
    rig.look(after_s=91 * 86_400.0)
    with rig.database.reading() as session:
        assert session.query(AlertHistoryRow).count() == 0


def test_more_alerts_than_there_may_be_are_told_with_the_rule(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("telemetry.server.alerts.judging.MAX_ALERTS", 1)
    rig.apply(HOT, QUIET)
    assert rig.look(cam1=90, cam2=90) == [
        ("hot", "", "error"), ("hot", "device=cam1", "firing"),
    ]  # fmt: skip
    error = rig.fleet.api.get(URL).json()[0]["error"]
    assert error.startswith(f"1 more groups are beyond the bound than the {MAX_ALERTS}")


def test_the_past_is_judged_without_changing_anything(rig: Rig) -> None:
    for celsius in (50, 90, 90, 50):
        rig.fleet.clock.advance(60.0)
        rig.heat("cam1", celsius)
    rig.fleet.clock.advance(300.0)
    body = {"rules": {"alert": [HOT]}, "since": "1h"}
    (result,) = rig.fleet.api.post(f"{URL}/test", json=body).raise_for_status().json()
    ((span),) = result["spans"]
    assert (span["group"], span["furthest"], result["step_s"]) == ("device=cam1", 90.0, 60)
    assert span["resolved_at_s"] - span["fired_at_s"] == 120.0
    silent = {"rules": {"alert": [{"name": "s", "kind": "absence", "window": "2m"}]}}
    (result,) = rig.fleet.api.post(f"{URL}/test", json=silent).raise_for_status().json()
    assert {each["group"] for each in result["spans"]} == {"device=cam1", "device=cam2"}
    assert [each["name"] for each in rig.fleet.api.get(f"{URL}/rules").json()] == ["silent-device"]
    assert rig.alerts() == []


def test_threads_judge_and_tell_by_themselves(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controller.app.alerting.LOOK_S", 0.02)
    rig.apply(HOT)
    rig.fleet.clock.advance(60.0)
    rig.heat("cam1", 90)
    rig.fleet.controller.alerting.start()
    until(lambda: rig.receiver.posts, "a post", step_s=0.02)
    assert rig.told() == [("hot", "device=cam1", "firing")]
    rig.fleet.controller.alerting.stop(PATIENCE_S)
    rig.fleet.clock.advance(3600.0)
    assert not [t for t in threading.enumerate() if t.name in {"alerts", "webhook-pager"}]


def test_webhooks_are_tried_at_once(rig: Rig) -> None:
    assert rig.fleet.api.post(f"{URL}/test-webhooks").json() == [
        {"webhook": "pager", "accepted": True, "fault": "", "waiting": 0}
    ]
    (post,) = rig.receiver.posts
    assert (post.content["test"], post.alerts) == (True, [])
    rig.receiver.answers = [404]
    (result,) = rig.fleet.api.post(f"{URL}/test-webhooks").json()
    assert (result["accepted"], result["fault"]) == (False, "it refuses with 404")
    assert rig.deliveries() == []


WEEKLY = {**HOT, "kind": "change", "window": "5m", "offset": "7d"}  # minutes are kept for 7 days
SENSELESS: tuple[tuple[str, str, Any, int, str], ...] = (
    ("GET", "/rules/hott", None, 404, "controller.unknown.alert"),
    ("POST", "/rules/none/ack", {}, 404, "controller.unknown.alert"),
    ("POST", "/rules/silent-device/ack", {}, 409, "controller.conflict"),
    ("POST", "/rules/silent-device/ack", {"for_s": -1}, 422, "controller.invalid"),
    ("POST", "/rules/silent-device/ack", {"comment": "x" * 501}, 422, "controller.invalid"),
    ("PUT", "/rules", {"rules": {}}, 422, "telemetry.alert_rule"),
    ("PUT", "/rules", {"rules": {"alert": [WEEKLY]}}, 422, "telemetry.alert_rule"),
    ("PUT", "/rules", {"rules": {"alert": [{"name": "\ud800", "\ud800": 1}]}}, 422, ""),
    ("PUT", "/rules", {"rules": {"\ud800": []}}, 422, ""),
    ("PUT", "/rules", {"rules": {"alert": [{**HOT, "selector": "a=(b"}]}}, 422, ""),
    ("PUT", "/rules", {"rules": {"alert": [{**HOT, "summary": "\0"}]}}, 422, ""),
    ("PUT", "/rules", {"rules": {"alert": []}, "by": "\ud800"}, 422, "controller.invalid"),
    ("POST", "/test", {"rules": {"alert": [HOT]}, "since": "soon"}, 422, "telemetry.query"),
    ("POST", "/test", {"rules": {"alert": [HOT]}, "step": "90s"}, 422, "telemetry.query"),
    ("POST", "/test", {"rules": {"alert": [HOT]}, "since": "2200-01-01"}, 422, "telemetry.query"),
)


def test_what_makes_no_sense_is_a_fault(rig: Rig) -> None:
    for method, path, body, status, code in SENSELESS:
        answer = rig.fleet.api.request(
            method, f"{URL}{path}",
            content=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
        assert answer.status_code == status, (path, body, answer.text)
        assert code in answer.json()["code"]


def test_judging_holds_up_no_writer(rig: Rig) -> None:
    """On SQLite what only reads must not take the lock of a writer."""
    change = {"name": "change", "kind": "change", "compare": "difference", "clear": None}
    rig.apply(HOT, HOT | change, QUIET)
    rig.look(cam1=50)
    rig.fleet.clock.advance(60.0)
    with rig.database.transaction():  # holds the lock
        rig.fleet.controller.alerting.judging.evaluate()
    rules = rig.fleet.api.get(f"{URL}/rules").json()
    assert [each["error"] for each in rules] == ["", "", ""]
    assert rules[0]["evaluated_at_s"] == rig.fleet.clock.now_s()

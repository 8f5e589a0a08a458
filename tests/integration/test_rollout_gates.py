"""Gates: a release that devices install without a fault is stopped by what they measure of it."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.server import HttpServer
from telemetry.histogram import ExponentialHistogram
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.packages import two_variants
from tests.simulators.stack import fleet_here
from wire import topics
from wire.codec import to_msgpack
from wire.telemetry import HistogramPoint, Point, SumPoint, TelemetryBatch
from wire.transport import Received

pytestmark = pytest.mark.flow

ONE = two_variants("1", best="one")
TWO = two_variants("2", best="two")
DEVICES = 20
LATENCY = "p95(inference_latency_ms) <= +40%"
"""Who is held out is chance: so few devices can always tell that, and not always less."""

FAILURES = "inference_failures_total/inference_requests_total <= +2pp"
MINUTE_S = 60.0


class MeasuredFleet(Fleet):
    """A fleet whose devices report every minute how fast they answered."""

    slower = 1.0
    """By what factor the second release is."""

    failing = 0.0
    """What share of its requests fails."""

    reports = True
    times = 1
    """How many requests stand for each that is drawn."""

    def measure(self) -> None:
        """Let each device report the minute that ends."""
        for device in self.devices.values() if self.reports else ():
            minute = int(self.clock.now_s() // MINUTE_S)
            chance = random.Random(f"{device.name} {minute}")
            level = 20.0 + 5.0 * (int(device.name[-3:]) % 4)
            is_new = device.active == TWO.digest
            level *= self.slower if is_new else 1.0
            histogram = ExponentialHistogram()
            for _ in range(120):
                histogram.add(level * chance.lognormvariate(0.0, 0.1), self.times)
            attributes = {"release": f"digits:{2 if is_new else 1}", "variant": "best"}
            points: tuple[Point, ...] = (
                HistogramPoint(
                    metric="inference_latency_ms",
                    minute=minute,
                    attributes=attributes,
                    blob=histogram.to_bytes(),
                ),
                SumPoint(
                    metric="inference_requests_total",
                    minute=minute,
                    attributes=attributes,
                    value=120.0 * self.times,
                ),
            )
            if is_new and self.failing:
                points += (
                    SumPoint(
                        metric="inference_failures_total",
                        minute=minute,
                        attributes=attributes | {"code": "serve.worker"},
                        value=120.0 * self.failing,
                    ),
                )
            batch = TelemetryBatch(
                device=device.name, boot_id="boot-1", sequence=minute, points=points
            )
            topic = topics.up(device.name, "telemetry")
            self.hub.deliver(Received(topic, to_msgpack(batch)))

    def step(self, seconds: float = MINUTE_S) -> None:
        self.measure()
        super().step(seconds)

    def until(self, rollout: str, *states: str, steps: int = 120) -> dict[str, Any]:
        """Step until a rollout is in one of some states."""
        shown = self.show(rollout)
        for _ in range(steps):
            self.step()
            shown = self.show(rollout)
            if shown["state"] in states:
                return shown
        raise AssertionError(f"{shown['state']}: {shown['reason']}")

    def looks(self, rollout: str) -> list[dict[str, Any]]:
        path = f"/v1/rollouts/{rollout}/gates"
        gates: list[dict[str, Any]] = self.api.get(path).raise_for_status().json()["gates"]
        return gates


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[MeasuredFleet]:
    made = MeasuredFleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    made.enrol(*names("cam", DEVICES))
    first = made.roll_out("digits:1")
    for _ in range(5):
        Fleet.step(made, 1.0)
    assert made.state(first) == "succeeded"
    for _ in range(2):
        made.step()
    yield made
    made.close()


def roll_out(fleet: MeasuredFleet, *gates: str, **settings: object) -> str:
    usual: dict[str, object] = {
        "stages": [{"count": 8}, {"percent": 100}],
        "soak_s": 120.0,
        "control_percent": 25,
    }
    return fleet.roll_out("digits:2", gates=list(gates), **(usual | settings))


def test_a_slower_release_is_halted_while_most_devices_keep_the_old_one(
    fleet: MeasuredFleet,
) -> None:
    fleet.slower = 2.0
    rollout = roll_out(fleet, LATENCY)
    shown = fleet.until(rollout, "halted", "succeeded")
    assert shown["state"] == "halted"
    assert shown["reason"].startswith(f"gate {LATENCY} failed: +")
    assert len(fleet.running(TWO.digest)) == 8
    (gate,) = fleet.looks(rollout)
    last = gate["looks"][-1]
    assert (gate["text"], gate["limit"], gate["unit"]) == (LATENCY, 0.4, "%")
    assert (last["state"], last["treated"], last["control"]) == ("fail", 8, 12)
    again = fleet.api.post(f"/v1/rollouts/{rollout}/retry", json={})
    assert (again.status_code, "a retry has no gates" in again.json()["message"]) == (409, True)
    assert "rollout resume" in again.json()["remedy"]
    assert 0.4 < last["low"] < last["estimate"] < last["high"]
    assert last["low"] < 1.0 < last["high"]
    fleet.api.post(f"/v1/rollouts/{rollout}/rollback", json={}).raise_for_status()
    again = fleet.api.post(f"/v1/rollouts/{rollout}/retry", json={})
    assert again.json()["remedy"] == "make a new rollout with gates"


def test_a_harmless_release_reaches_all_and_the_control_group_last(fleet: MeasuredFleet) -> None:
    rollout = roll_out(fleet, LATENCY, FAILURES)
    control = fleet.show(rollout)["control"]
    assert control == 5
    assert fleet.show(rollout)["next_look_in_s"] > 0
    most = 0
    for _ in range(120):
        if not fleet.show(rollout)["control"]:
            break
        fleet.step()
        most = max(most, len(fleet.running(TWO.digest)))
        assert fleet.state(rollout) == "running", fleet.show(rollout)["reason"]
    assert most == DEVICES - control
    assert fleet.until(rollout, "succeeded", "halted")["state"] == "succeeded"
    assert len(fleet.running(TWO.digest)) == DEVICES
    assert {gate["looks"][-1]["state"] for gate in fleet.looks(rollout)} == {"pass"}
    assert {look["stage"] for gate in fleet.looks(rollout) for look in gate["looks"]} == {1, 2}


def test_a_counter_that_stands_still_is_0_on_devices_that_answer(fleet: MeasuredFleet) -> None:
    fleet.failing = 0.2
    rollout = roll_out(fleet, "rate(inference_failures_total) <= +0.1")
    assert fleet.until(rollout, "halted", "succeeded")["state"] == "halted"
    last = fleet.looks(rollout)[0]["looks"][-1]
    assert (last["treated"], last["control"]) == (8, 12)
    assert last["estimate"] == pytest.approx(0.2 * 120 / 60, rel=0.2)


def test_a_controller_that_is_killed_all_the_time_decides_the_same(fleet: MeasuredFleet) -> None:
    fleet.failing, fleet.kill_every_step = 0.2, True
    rollout = roll_out(fleet, FAILURES)
    assert fleet.until(rollout, "halted", "succeeded")["state"] == "halted"
    assert len(fleet.running(TWO.digest)) == 8
    numbers = [look["at_s"] for look in fleet.looks(rollout)[0]["looks"]]
    assert numbers == sorted(set(numbers))


def test_after_a_halt_the_operator_may_go_on_without_the_gate(fleet: MeasuredFleet) -> None:
    fleet.slower = 2.0
    rollout = roll_out(fleet, LATENCY, FAILURES)
    fleet.until(rollout, "halted")
    fleet.api.post(f"/v1/rollouts/{rollout}/resume").raise_for_status()
    assert [gate["waived"] for gate in fleet.looks(rollout)] == [True, False]
    assert fleet.until(rollout, "succeeded", "halted")["state"] == "succeeded"
    assert len(fleet.running(TWO.digest)) == DEVICES


def test_a_gate_holds_while_nobody_tells_and_the_operator_may_go_on(fleet: MeasuredFleet) -> None:
    fleet.reports = False
    rollout = roll_out(fleet, LATENCY, stages=[{"percent": 100}])
    for _ in range(6):
        fleet.step()
    shown = fleet.show(rollout)
    assert shown["state"] == "running"
    assert shown["stages"][0]["state"] == "waiting_for_gates"
    assert f"waits for gates: {LATENCY}: 0 devices" in shown["reason"]
    fleet.api.post(f"/v1/rollouts/{rollout}/approve").raise_for_status()
    Fleet.step(fleet)
    assert fleet.show(rollout)["control"] == 0
    fleet.reports = True
    assert fleet.until(rollout, "succeeded", "halted")["state"] == "succeeded"


def test_gates_that_were_passed_by_hand_hold_again_after_a_halt(fleet: MeasuredFleet) -> None:
    """Another person passed them for another standing."""
    fleet.reports = False
    stages = [{"percent": 60}, {"percent": 100}]
    rollout = roll_out(fleet, LATENCY, stages=stages, approval=True)
    for _ in range(6):
        fleet.step()
    assert fleet.show(rollout)["stages"][0]["state"] == "waiting_for_gates"
    fleet.approve(rollout).raise_for_status()
    fleet.step()
    assert fleet.show(rollout)["stages"][0]["state"] == "awaiting_approval"
    device = next(device for device in fleet.devices.values() if device.active == TWO.digest)
    device.active = ONE.digest
    device.report(device.revision, TWO.digest, "failed")
    fleet.step()
    assert fleet.state(rollout) == "halted"
    fleet.api.post(f"/v1/rollouts/{rollout}/resume").raise_for_status()
    for _ in range(3):
        fleet.step()
    assert fleet.show(rollout)["stages"][0]["state"] == "waiting_for_gates"


def test_without_a_control_group_devices_are_compared_with_the_same_hours_before(
    fleet: MeasuredFleet,
) -> None:
    for _ in range(10):
        fleet.step()
    fleet.clock.advance(86_400 - 9 * MINUTE_S)
    fleet.step()
    fleet.slower = 2.0
    stages = [{"percent": 100}]
    rollout = roll_out(fleet, LATENCY, stages=stages, control_percent=0)
    assert fleet.until(rollout, "halted", "succeeded")["state"] == "halted"
    assert fleet.looks(rollout)[0]["looks"][-1]["control"] == 0


def test_a_stage_of_too_few_devices_to_tell_does_not_wait(fleet: MeasuredFleet) -> None:
    rollout = roll_out(fleet, LATENCY, stages=[{"count": 1}, {"percent": 100}])
    while fleet.show(rollout)["stages"][0]["state"] != "done":
        fleet.step()
        assert fleet.state(rollout) == "running"
        assert fleet.show(rollout)["stages"][0]["state"] != "waiting_for_gates"


def test_a_stage_keeps_its_gates_when_devices_are_excluded(fleet: MeasuredFleet) -> None:
    fleet.reports = False
    for device in fleet.devices.values():
        device.outcome = "busy"
    stages = [{"percent": 100}]
    rollout = roll_out(fleet, LATENCY, stages=stages, control_percent=25, max_in_flight=1)
    Fleet.step(fleet)
    began = {name for name, device in fleet.devices.items() if device.documents[-1].revision > 1}
    parts = {
        name: fleet.api.get(f"/v1/rollouts/{rollout}/devices/{name}") for name in fleet.devices
    }
    treated = [name for name, part in parts.items() if not part.json()["is_control"]]
    leaving = {"devices": [name for name in treated if name not in began][:12]}
    fleet.api.post(f"/v1/rollouts/{rollout}/exclude", json=leaving).raise_for_status()
    for device in fleet.devices.values():
        device.outcome = "succeeded"
        if device.name in began:
            device.active = TWO.digest
            device.report(device.revision, TWO.digest, "succeeded", "digits")
    for _ in range(6):
        fleet.step()
    shown = fleet.show(rollout)
    assert len(fleet.running(TWO.digest)) == DEVICES - 5 - 12
    assert (shown["state"], shown["stages"][0]["state"]) == ("running", "waiting_for_gates")
    fleet.approve(rollout).raise_for_status()
    fleet.reports = True
    assert fleet.until(rollout, "succeeded", "halted")["state"] == "succeeded"


def test_a_gate_of_one_stage_is_asked_there_alone_and_shares_what_may_err(
    fleet: MeasuredFleet,
) -> None:
    stages = [{"count": 6}, {"count": 9, "gates": [FAILURES], "soak_s": 240.0}, {"percent": 100}]
    # Each further look is stricter, and this rollout looks often.
    rollout = roll_out(fleet, "p95(inference_latency_ms) <= +100%", stages=stages)
    shown = fleet.until(rollout, "succeeded", "halted")
    assert shown["state"] == "succeeded", shown["reason"]
    always, once = fleet.looks(rollout)
    assert (always["stage"], once["stage"]) == (None, 2)
    assert {look["stage"] for look in always["looks"]} == {1, 2, 3}
    assert {look["stage"] for look in once["looks"]} == {2}


def test_who_takes_too_many_out_of_the_control_group_is_told_at_once(fleet: MeasuredFleet) -> None:
    rollout = roll_out(fleet, LATENCY)
    fleet.step()
    path = f"/v1/rollouts/{rollout}"
    is_held = {
        name: fleet.api.get(f"{path}/devices/{name}").json()["is_control"] for name in fleet.devices
    }
    held = [name for name, is_control in is_held.items() if is_control]
    idle = [d["device"] for d in fleet.show(rollout)["deployments"] if d["state"] == "pending"]
    other = next(name for name in idle if name not in held)
    assert len(held) == 5
    told = fleet.api.post(f"{path}/exclude", json={"devices": [other]}).json()
    assert (told["changed"], told["warnings"]) == ([other], [])
    told = fleet.api.post(f"{path}/exclude", json={"devices": held[:2]}).json()
    (warning,) = told["warnings"]
    assert warning.startswith("2 devices are taken out of the control group, and 3 remain: gates")
    assert warning.endswith(f"until somebody approves (`fleet rollout approve {rollout}`)")
    assert fleet.show(rollout)["control"] == 3


REFUSED = [
    (["p95(inference_latency_ms) <= 10%"], "how far the value may grow"),
    (["p95(inference_latency_ms) <= +0%"], "0 can never be shown"),
    (["p95(inference_latency_ms) >= +10%"], "how far the value may fall"),
    (["p95(inference_latency_ms)"], "cannot read the gate"),
    (["p95(inference_latenci_ms) <= +10%"], "did you mean inference_latency_ms"),
    (["p95(temperature_c) <= +10%"], "has no statistic 'p95'"),
    (["total(inference_requests_total) <= +10%"], "cannot compare the total of devices"),
    ([FAILURES.replace("+2pp", "+10%")], "give points, such as +0.5pp"),
    (["p95(inference_latency_ms{colour=red}) <= +10%"], "has no attribute 'colour'"),
    (["p95(inference_latency_ms{variant}) <= +10%"], "cannot read {variant}"),
    ([LATENCY, LATENCY.replace(" ", "")], "a gate is given twice"),
]


def test_gates_that_make_no_sense_are_refused_and_nothing_begins(fleet: MeasuredFleet) -> None:
    before = fleet.api.get("/v1/rollouts").json()
    for gates, said in REFUSED:
        answer = fleet.api.post("/v1/rollouts", json={"release": "digits:2", "gates": gates})
        assert answer.status_code == 422
        told = answer.json()
        assert said in f"{told['message']}; {told['remedy']}"
    few = {"release": "digits:2", "gates": [LATENCY], "selector": "id in (cam-001,cam-002)"}
    answer = fleet.api.post("/v1/rollouts", json=few)
    assert answer.status_code == 422
    assert "2 devices cannot show what a gate asks: it takes 10" in answer.json()["message"]
    assert fleet.api.get("/v1/rollouts").json() == before


def test_people_see_what_gates_say(fleet: MeasuredFleet, tmp_path: Path) -> None:
    fleet.slower = 2.0
    server = HttpServer("127.0.0.1", 0)
    server.start(fleet.controller.app)
    url, token = f"http://{server.host}:{server.port}", str(tmp_path / "api.token")
    where = ("--url", url, "--token-file", token)
    try:
        words = ("--stage", "8", "--stage", "100%", "--soak", "2m", "--control", "25%")
        made = fleet_here("rollout", "create", "digits:2", *words, "--gate", LATENCY, *where)
        assert made.code == 0, made.err
        rollout = made.out.strip()
        asked = fleet_here("rollout", "gates", rollout, *where).out
        assert "not looked at yet" in asked
        assert re.search(r"(?m)^the next look comes in .+ at the earliest$", asked)
        fleet.until(rollout, "halted")
        assert "the next look" not in fleet_here("rollout", "gates", rollout, *where).out
        page = fleet_here("rollout", "show", rollout, *where).out
        assert re.search(r"(?m)^control group +5 devices kept the old release$", page)
        assert re.search(r"(?m)^1 +8 +soaks 2m +halted$", page)
        told = fleet_here("rollout", "explain", rollout, "--json", *where).json
        assert (told["state"], told["gates"][0]["text"]) == ("halted", LATENCY)
        assert "rollout rollback" in told["can_be_done"]
        shown = fleet_here("rollout", "gates", rollout, "--looks", *where).out
        assert re.search(r"fail +\+[\d.]+ % +\+[\d.]+ % to \+[\d.]+ % +8 new, 12 old", shown)
        assert re.search(r"\[ +\| +! +-+o-+ *\] ", shown), shown
        assert LATENCY in fleet_here("rollout", "show", rollout, *where).out
        refused = fleet_here("rollout", "create", "digits:2", "--gate", "p95(x) <= 1%", *where)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
    finally:
        server.stop()

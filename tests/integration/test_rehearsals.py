"""What a rehearsal says is what the real engine then does with the same fleet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.api.server import HttpServer
from tests.integration.test_rollout_gates import ONE, TWO, MeasuredFleet, roll_out
from tests.simulators.controller_fleet import Fleet, names
from tests.simulators.stack import fleet_here

pytestmark = pytest.mark.flow

DEVICES = 20
LATENCY = "p95(inference_latency_ms) <= +40%"
"""Who is held out is chance: so few devices can always tell that, and not always less."""

HOURS = 3
SPEC: dict[str, Any] = {
    "release": "digits:2",
    "stages": [{"count": 8}, {"percent": 100}],
    "soak_s": 120.0,
    "control_percent": 25,
    "gates": [LATENCY],
}


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[MeasuredFleet]:
    made = MeasuredFleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    made.enrol(*names("cam", DEVICES))
    yield made
    made.close()


def lived(fleet: MeasuredFleet) -> None:
    """Let devices install the first release, and measure for some hours."""
    first = fleet.roll_out("digits:1")
    for _ in range(5):
        Fleet.step(fleet, 1.0)
    assert fleet.state(first) == "succeeded"
    fleet.clock.advance(3600.0 - fleet.clock.now_s() % 3600.0)
    fleet.times = 60
    for _ in range(HOURS):
        fleet.step(3600.0)
    fleet.times = 1


def rehearse(fleet: Fleet, rollout: dict[str, Any] = SPEC, **more: Any) -> dict[str, Any]:
    body = {"rollout": rollout, "runs": 5, **more}
    answer = fleet.api.post("/v1/rollouts/rehearse", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_the_engine_does_what_the_rehearsal_said(fleet: MeasuredFleet) -> None:
    lived(fleet)
    before = fleet.api.get("/v1/rollouts").json()
    said = rehearse(fleet)
    assert said == rehearse(fleet)
    assert fleet.api.get("/v1/rollouts").json() == before
    history = said["history"]
    assert (history["heard"], history["borrowed"], history["installs"]) == (DEVICES, 0, DEVICES)
    assert said["harmed"] is None
    plain = said["plain"]
    assert (plain["succeeded"], plain["halts"]) == (5, [])

    began_s = fleet.clock.now_s()
    good = fleet.until(roll_out(fleet, LATENCY), "succeeded", "halted")
    took_s = fleet.clock.now_s() - began_s
    assert good["state"] == "succeeded"
    # The simulated fleet is looked at each minute only, in each of two stages and four rounds.
    assert plain["takes_s"]["median"] <= took_s <= plain["takes_s"]["slow"] + 8 * 60


def test_the_engine_halts_a_harmful_release_where_the_rehearsal_did(fleet: MeasuredFleet) -> None:
    lived(fleet)
    said = rehearse(fleet, harm=["p95(inference_latency_ms) +100%"])
    assert (said["plain"]["succeeded"], said["harmed"]["halted"]) == (5, 5)
    (halt,) = said["harmed"]["halts"]
    assert (halt["started"]["median"], halt["left"]["slow"]) == (8, DEVICES - 8)
    fleet.slower = 2.0
    shown = fleet.until(roll_out(fleet, LATENCY), "succeeded", "halted")
    assert shown["reason"].startswith(f"gate {halt['rule']} failed: ")
    assert len(fleet.running(TWO.digest)) == halt["with_release"]["median"] == 8


def test_without_history_it_is_refused(fleet: MeasuredFleet) -> None:
    def refused(**more: Any) -> str:
        answer = fleet.api.post("/v1/rollouts/rehearse", json={"rollout": SPEC, **more})
        assert answer.status_code in {409, 422}, answer.text
        message: str = answer.json()["message"]
        return message

    assert refused().startswith("0 devices installed digits in earlier rollouts: too few")
    assert refused(harm=["p99(inference_latency_ms) +10%"]).startswith("no gate of the rollout")
    shift = "shift(model_samples_total) <= +5pp"
    assert "cannot ask for shifts" in refused(rollout=SPEC | {"gates": [shift]})
    few = SPEC | {"selector": "id in (cam-001,cam-002)", "stages": [{"percent": 100}]}
    assert "it takes 10" in refused(rollout=few)
    first = fleet.roll_out("digits:1")
    for _ in range(5):
        Fleet.step(fleet, 1.0)
    assert fleet.state(first) == "succeeded"
    fleet.clock.advance(3600.0 - fleet.clock.now_s() % 3600.0 + 57 * 60.0)
    answer = fleet.api.post("/v1/rollouts/rehearse", json={"rollout": SPEC}).json()
    assert answer["message"].startswith("none of the devices told anything in the hours")
    assert answer["remedy"].startswith("rehearse in 3m, when the hour is over")


def test_a_device_that_is_tried_again_counts_once_for_each_release(fleet: MeasuredFleet) -> None:
    failing = [fleet.devices[name] for name in names("cam", 5)]
    for device in failing:
        device.outcome = "failed"
    tried = fleet.roll_out("digits:1", max_failures=DEVICES)
    assert fleet.run(tried)["state"] == "succeeded"
    for _ in range(2):
        made = fleet.api.post(f"/v1/rollouts/{tried}/retry", json={"only_failed": True})
        tried = made.raise_for_status().json()["id"]
        for _ in range(5):
            Fleet.step(fleet, 1.0)
    for device in failing:
        device.outcome = "succeeded"
    lived(fleet)
    history = rehearse(fleet)["history"]
    assert (history["outcomes"], history["failed_percent"]) == (DEVICES, 25.0)


def test_people_see_what_the_rollout_would_have_done(fleet: MeasuredFleet, tmp_path: Path) -> None:
    lived(fleet)
    fleet.enrol("cam-new")
    file = tmp_path / "rollout.toml"
    file.write_text(
        'release = "digits:2"\nstages = [8, "100%"]\nsoak = "2m"\ncontrol = "25%"\n'
        f'gates = ["{LATENCY}"]\napproval = true\n'
    )
    server = HttpServer("127.0.0.1", 0)
    server.start(fleet.controller.app)
    url, token = f"http://{server.host}:{server.port}", str(tmp_path / "api.token")
    where = ("--url", url, "--token-file", token)
    try:
        words = ("rollout", "rehearse", "-f", str(file), "--runs", "3", "--failing", "50%")
        shown = fleet_here(*words, *where)
        assert shown.code == 0, shown.err
        assert "a release like the one that serves: 3 of 3 runs succeeded, 0 halted" in shown.out
        assert "with the planted harm: 0 of 3 runs succeeded, 3 halted" in shown.out
        assert "borrowed          1 device without history" in shown.out
        assert "max_failures" in shown.out
        assert "approvals are given at once" in shown.err
    finally:
        server.stop()

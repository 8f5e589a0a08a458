"""What a device refuses: the operator sees it in the rollout and with the device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.services.director import RESEND_EVERY_S
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import STRANGER_KEY, desired, two_variants
from wire import topics
from wire.codec import sha256_hex, to_json
from wire.installs import Refusal
from wire.transport import Received

pytestmark = pytest.mark.flow

ONE, TWO = two_variants("1", best="one"), two_variants("2", best="two")
NO = "0 of 1 needed signatures are valid"


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    """Return a fleet of one silent device, to which a release is being rolled out."""
    made = Fleet(database_url, tmp_path)
    made.publish(ONE)
    made.publish(TWO)
    made.enrol("cam-1")
    yield made
    made.close()


class Refuser:
    """A device that says nothing of its desired states, or that it refuses each."""

    def __init__(self, fleet: Fleet, code: str = "wire.signature", *, each: bool = True) -> None:
        self.fleet = fleet
        self.code = code
        self.each = each
        self.received: list[bytes] = []
        fleet.devices["cam-1"].outcome = "silent"
        fleet.hub.on(topics.down("cam-1", "desired"), self._hear)

    def _hear(self, received: Received) -> None:
        self.received.append(received.payload)
        if self.each:
            self.refuse(received.payload)

    def refuse(self, envelope: bytes, detail: str = NO) -> None:
        refusal = Refusal(
            device="cam-1", sha256=sha256_hex(envelope), error_code=self.code, detail=detail
        )
        topic = topics.up("cam-1", "refusal")
        self.fleet.controller.receive(Received(topic, to_json(refusal)))


def last_error(fleet: Fleet) -> str:
    shown: str = fleet.api.get("/v1/devices/cam-1").json()["last_error"]
    return shown


def test_a_refused_desired_state_fails_at_once_and_halts_the_rollout(fleet: Fleet) -> None:
    Refuser(fleet)
    rollout = fleet.roll_out("digits:1", max_failures=0)
    fleet.step()
    (part,) = fleet.show(rollout)["deployments"]
    assert (part["state"], part["error_code"]) == ("failed", "wire.signature")
    assert NO in part["detail"]
    assert last_error(fleet) == f"wire.signature: {NO}"
    fleet.step()
    assert fleet.state(rollout) == "halted"


@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
def test_a_device_that_waited_and_refuses_has_failed_at_once(fleet: Fleet, ended: bool) -> None:
    fleet.enrol("cam-2")
    device = fleet.devices["cam-1"]
    device.outcome = "busy"
    if ended:
        device.leave()
    rollout = fleet.roll_out("digits:1", offline_limit_s=5 if ended else 3600)
    fleet.step()
    device.leave()
    for _ in range(10):
        fleet.step()
    assert fleet.state(rollout) == ("succeeded" if ended else "running")
    assert fleet.show(rollout)["counts"] == {"succeeded": 1, "waiting": 1}
    Refuser(fleet)
    device.connect()
    assert fleet.show(rollout)["counts"] == {"succeeded": 1, "failed": 1}
    part = fleet.show(rollout)["deployments"][0]
    assert (part["device"], part["error_code"]) == ("cam-1", "wire.signature")


def test_what_repeats_is_logged_once(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    refuser = Refuser(fleet)
    fleet.roll_out("digits:1", max_failures=1)
    for _ in range(5):
        fleet.step(RESEND_EVERY_S + 1)
    assert len(refuser.received) > 2
    told = [record for record in caplog.records if "refuses a desired state" in record.message]
    assert len(told) == 1


def test_the_error_goes_when_the_device_accepts(fleet: Fleet) -> None:
    refuser = Refuser(fleet)
    fleet.roll_out("digits:1", max_failures=1)
    fleet.step()
    assert last_error(fleet)
    device = fleet.devices["cam-1"]
    device.outcome = "succeeded"
    refuser.each = False
    device.connect()
    assert (device.active, last_error(fleet)) == (ONE.digest, "")


def test_a_desired_state_that_somebody_else_sent_is_shown_but_fails_nothing(
    fleet: Fleet,
) -> None:
    refuser = Refuser(fleet, each=False)
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    refuser.refuse(desired(9, TWO, device="cam-1", key=STRANGER_KEY)[1])
    assert fleet.show(rollout)["counts"] == {"assigned": 1}
    assert last_error(fleet).startswith("wire.signature: it is not what this controller sent last")


def test_an_older_one_that_comes_late_says_nothing(fleet: Fleet) -> None:
    refuser = Refuser(fleet, code="agent.refused.older", each=False)
    rollout = fleet.roll_out("digits:1")
    fleet.step()
    refuser.refuse(desired(1, TWO, device="cam-1")[1], "revision 1 is older than the accepted 5")
    assert last_error(fleet) == ""
    assert fleet.show(rollout)["counts"] == {"assigned": 1}


def test_a_refused_change_of_the_policy_does_not_fail_what_succeeded(fleet: Fleet) -> None:
    rollout = fleet.roll_out("digits:1", soak_s=100)
    fleet.step()
    assert fleet.show(rollout)["counts"] == {"succeeded": 1}
    Refuser(fleet)
    body = {"policy": {"kind": "rules"}}
    fleet.api.put("/v1/policies/everyone", json=body).raise_for_status()
    for _ in range(3):
        fleet.step()
    assert NO in last_error(fleet)
    assert fleet.show(rollout)["counts"] == {"succeeded": 1}


@pytest.mark.parametrize(
    "payload",
    [
        b"{}",
        to_json(Refusal(device="cam-2", sha256="0" * 64, error_code="x")),
        to_json(Refusal(device="cam-1", sha256="", error_code="", detail="\x1b[2J" + "x" * 10**5)),
        to_json(Refusal(device="cam-1", sha256="é" * 10**4, error_code="e" * 10**4)),
    ],
    ids=["empty", "of another device", "a long text", "long codes"],
)
def test_no_refusal_breaks_the_controller(
    fleet: Fleet, payload: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    fleet.controller.receive(Received(topics.up("cam-1", "refusal"), payload))
    assert not [record for record in caplog.records if record.exc_info]
    shown = last_error(fleet)
    assert shown.isprintable()
    assert len(shown) < 600
    stranger = to_json(Refusal(device="cam-9", sha256="0" * 64, error_code="x"))
    fleet.controller.receive(Received(topics.up("cam-9", "refusal"), stranger))

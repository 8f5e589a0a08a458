"""Devices that wait to be let in, on both databases; and a real agent that waits and goes on."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.domain import acceptance
from controller.services import admission
from tests.simulators.controller_fleet import Fleet, FleetDevice
from tests.simulators.packages import STRANGER_KEY
from tests.simulators.patience import until
from tests.simulators.stack import running_stack
from tests.simulators.stack_devices import StackDevice
from wire.codec import to_json
from wire.enrolling import EnrolAnswer
from wire.trust.envelope import SigningKey


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def token(fleet: Fleet, accept: str = "by-hand", **settings: object) -> str:
    made = fleet.api.post("/v1/tokens", json={"accept": accept, **settings}).raise_for_status()
    secret: str = made.json()["token"]
    return secret


def ask(
    device: FleetDevice, secret: str, serial: str = "", key: SigningKey | None = None
) -> EnrolAnswer:
    """Ask with a serial number, and answer a challenge."""
    said = serial or msgspec.UNSET
    request = msgspec.structs.replace(device.enrol_request(secret, key=key), serial=said)
    answer = device.ask(to_json(request))
    if isinstance(answer.challenge, str):
        answer = device.ask(to_json(device.challenged(request, answer.challenge, key=key)))
    return answer


def waits(answer: EnrolAnswer) -> bool:
    return not answer.accepted and isinstance(answer.ask_again_s, float)


def queue(fleet: Fleet) -> dict[str, dict[str, Any]]:
    return {each["id"]: each for each in fleet.api.get("/v1/waiting").json()}


def decide(fleet: Fleet, device: str, order: str) -> int:
    status: int = fleet.api.post(f"/v1/waiting/{device}/{order}").status_code
    return status


def test_a_device_waits_until_it_is_accepted_and_needs_no_token_then(fleet: Fleet) -> None:
    secret, device = token(fleet, labels={"site": "berlin"}), fleet.device("cam-1", rack="7")
    assert waits(ask(device, secret, "a1"))
    assert waits(ask(device, secret, "a1"))
    (entry,) = queue(fleet).values()
    assert (entry["state"], entry["serial"]) == ("waiting", "a1")
    assert entry["why"] == "its token lets nobody in by itself"
    assert entry["labels"] == {"site": "berlin", "rack": "7"}
    assert fleet.api.get("/v1/devices").json() == []
    assert fleet.access.passwords == {}, "it has nothing at the broker"
    fleet.step(86_400)
    assert waits(ask(device, "")), "its token has expired, and it waits on"
    assert decide(fleet, "cam-1", "accept") == 200
    assert not device.ask(to_json(device.enrol_request(""))).accepted, "a recorded request"
    assert ask(device, "").accepted
    assert queue(fleet) == {}
    assert fleet.api.get("/v1/devices/cam-1").json()["labels"] == {"site": "berlin", "rack": "7"}


def test_a_refusal_is_about_a_key_and_frees_the_identifier(fleet: Fleet) -> None:
    secret, device = token(fleet, uses=3), fleet.device("cam-1")
    assert waits(ask(device, secret, key=STRANGER_KEY))
    assert ask(device, secret).reason == admission.OTHER_WAITS
    assert decide(fleet, "cam-1", "refuse") == 200
    assert ask(device, secret, key=STRANGER_KEY).reason == admission.REFUSED
    assert waits(ask(device, secret))
    assert decide(fleet, "cam-1", "refuse") == 200
    for _ in range(2):
        assert ask(device, secret, key=STRANGER_KEY).reason == admission.REFUSED_BEFORE
        assert ask(device, secret).reason == admission.REFUSED
    assert decide(fleet, "cam-1", "accept") == 200
    assert ask(device, secret).accepted
    assert not ask(device, secret, key=STRANGER_KEY).accepted
    assert decide(fleet, "cam-1", "accept") == 404


def test_the_queue_is_bounded_by_uses_length_and_age(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, many = token(fleet), token(fleet, uses=9, expires_in_s=300 * 86_400)
    assert waits(ask(fleet.device("cam-1"), one))
    assert ask(fleet.device("cam-2"), one).reason == admission.USED_UP
    monkeypatch.setattr(admission, "MAX_WAITING", 2)
    assert waits(ask(fleet.device("cam-2"), many))
    assert ask(fleet.device("cam-3"), many).reason == admission.FULL
    fleet.step(acceptance.FORGOTTEN_AFTER_S - 10)
    assert waits(ask(fleet.device("cam-2"), many))
    fleet.step(20)
    assert list(queue(fleet)) == ["cam-2"]


def test_one_label_is_a_rule(fleet: Fleet) -> None:
    secret = token(fleet, "label:canary", labels={"canary": "yes"})
    assert ask(fleet.device("cam-1"), secret).accepted


def test_a_rule_lets_in_whom_it_means(fleet: Fleet) -> None:
    secret = token(fleet, "profile=bench and serial in (a1,a2)", uses=3)
    assert ask(fleet.device("cam-1"), secret, "a1").accepted
    assert waits(ask(fleet.device("cam-2"), secret, "b7"))
    assert queue(fleet)["cam-2"]["why"].endswith("only profile=bench and serial in (a1,a2)")
    assert waits(ask(fleet.device("cam-3", serial="a2"), secret)), "a label is no serial number"
    assert fleet.api.get("/v1/tokens").json()[0]["accepts"] == "profile=bench and serial in (a1,a2)"


@pytest.mark.parametrize(
    "rule", ["", "byhand", "canary", "profile=", "group:cameras", "online=true", "model.x=1"]
)
def test_a_rule_that_cannot_mean_a_new_device_is_refused(fleet: Fleet, rule: str) -> None:
    assert fleet.api.post("/v1/tokens", json={"accept": rule}).status_code == 422


def test_a_readmitted_device_waits_too(fleet: Fleet) -> None:
    device = fleet.device("cam-1")
    assert ask(device, token(fleet, "auto")).accepted
    fleet.api.patch("/v1/devices/cam-1", json={"state": "decommissioned"}).raise_for_status()
    assert ask(device, token(fleet)).reason == admission.BLOCKED
    fleet.api.patch("/v1/devices/cam-1", json={"may_enrol_again": True}).raise_for_status()
    assert waits(ask(device, token(fleet)))
    assert decide(fleet, "cam-1", "accept") == 200
    assert ask(device, "").accepted
    assert fleet.api.get("/v1/devices/cam-1").json()["state"] == "enrolled"


@pytest.mark.broker
@pytest.mark.xdist_group("waiting")
def test_a_real_agent_waits_says_so_and_goes_on_by_itself() -> None:
    with running_stack() as stack:
        made = stack.ok("token", "create", "--accept", "by-hand", "--json").json["token"]
        agent = StackDevice(stack, "cam-1", made)
        (agent.procfs / "device-tree").mkdir()
        (agent.procfs / "device-tree" / "serial-number").write_bytes(b"10000000a1\0")
        try:
            agent.start()
            waiting = until(lambda: stack.ok("device", "waiting", "--json").json, "a device waits")
            assert [(each["id"], each["serial"]) for each in waiting] == [("cam-1", "10000000a1")]
            said = until(lambda: agent.ask("status")["outage"], "the agent says it")
            assert "it waits to be let in" in said
            stack.ok("device", "accept", "cam-1")
            agent.until_online()
            assert stack.ok("device", "drift", "--json").json == []
            listed = stack.home.parent / "devices.csv"
            listed.write_text("id,serial,site\ncam-2,a2,berlin\ncam-3\n")
            wrong = stack.fleet("device", "register", str(listed))
            assert wrong.code == 2
            assert "devices.csv: line 3: it has 1 cells" in wrong.err
            listed.write_text("\ufeffid,serial,site\r\ncam-2,a2,berlin\r\n")
            stack.ok("device", "register", str(listed))
            assert "cam-2" in stack.ok("device", "registered").out
            listed.write_text("id,serial\ncam-2,a3\n")
            assert (
                "devices.csv: line 2: cam-2 is"
                in stack.fleet("device", "register", str(listed)).err
            )
            stack.ok("device", "unregister", "a2")
        finally:
            agent.end(signal.SIGKILL)

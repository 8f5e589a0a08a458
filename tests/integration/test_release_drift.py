"""Desired against reported releases: who differs, since when, and why."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.domain.release_drift import Cause, Known, cause
from controller.domain.states import DeploymentState
from tests.simulators.controller_fleet import Fleet
from tests.simulators.packages import two_variants


@pytest.fixture
def fleet(database_url: str, tmp_path: Path) -> Iterator[Fleet]:
    made = Fleet(database_url, tmp_path)
    yield made
    made.close()


def causes(fleet: Fleet, **params: str) -> dict[str, str]:
    found = fleet.api.get("/v1/release-drift", params=params).raise_for_status().json()
    return {each["device"]: each["cause"] for each in found}


def test_it_says_who_differs_and_why(fleet: Fleet) -> None:
    fleet.enrol("cam-1", "cam-2", "cam-3", "cam-4")
    fleet.publish(two_variants("1"))
    fleet.publish(two_variants("2"))
    fleet.run(fleet.roll_out("digits:1"))
    assert causes(fleet) == {}
    fleet.devices["cam-1"].outcome = "failed"
    fleet.devices["cam-2"].outcome = "busy"
    fleet.devices["cam-3"].leave()
    failed_at_s = fleet.clock.now_s()
    rollout = fleet.roll_out("digits:2", max_failures=9)
    fleet.step()
    fleet.step()
    expected = {"cam-1": "failed", "cam-2": "in-flight"}
    assert causes(fleet) == expected, "who is offline has no order yet"
    (first,) = fleet.api.get("/v1/release-drift", params={"limit": 1}).json()
    assert (first["release"], first["desired_release"]) == ("digits:1", "digits:2")
    assert first["rollout"] == rollout
    assert first["since_s"] == pytest.approx(failed_at_s, abs=3.0)
    assert "the golden test failed" in first["detail"]
    assert list(causes(fleet, after="cam-1", after_model="digits")) == ["cam-2"]

    liar = fleet.devices["cam-4"]
    liar.active = None
    liar.outcome = "silent"
    liar.connect()
    assert causes(fleet) == {**expected, "cam-4": "contradicts"}
    liar.outcome = "succeeded"
    fleet.step(20)
    assert causes(fleet) == expected, "it was told again, and has the release back"


def test_an_install_that_fails_after_its_rollout_has_let_the_device_go_has_failed(
    fleet: Fleet,
) -> None:
    fleet.enrol("cam-1", "cam-2")
    for version in ("1", "2", "3"):
        fleet.publish(two_variants(version))
    fleet.run(fleet.roll_out("digits:1"))
    device = fleet.devices["cam-1"]
    device.leave()
    rollout = fleet.roll_out("digits:2", offline_limit_s=0)
    assert fleet.run(rollout)["state"] == "succeeded"
    taken = fleet.roll_out("digits:3", selector="id=cam-1")
    fleet.api.post(f"/v1/rollouts/{taken}/abort").raise_for_status()
    assert causes(fleet) == {"cam-1": "offline"}
    device.outcome = "busy"
    device.connect()
    fleet.step()
    assert causes(fleet) == {"cam-1": "in-flight"}
    device.report(device.revision, device.active, "failed", "digits")
    (found,) = fleet.api.get("/v1/release-drift").json()
    assert (found["cause"], found["desired_release"]) == ("failed", "digits:2")
    assert "the golden test failed" in found["detail"]


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"part": DeploymentState.FAILED, "error": "no", "order_accepted": False}, Cause.REFUSES),
        ({"part": DeploymentState.FAILED, "online": False}, Cause.FAILED),
        ({"part": DeploymentState.WAITING, "online": False}, Cause.OFFLINE),
        ({"has_accepted": False, "error": "no"}, Cause.REFUSES),
        ({"has_accepted": False}, Cause.IN_FLIGHT),
        ({"model_error": "no"}, Cause.FAILED),
        ({"model_error": "no", "installs": True}, Cause.IN_FLIGHT),
        ({"model_error": "no", "part": DeploymentState.SUCCEEDED}, Cause.CONTRADICTS),
        ({"part": DeploymentState.CANCELLED}, Cause.LOST),
        ({}, Cause.LOST),
    ],
)
def test_the_cause_follows_from_what_is_known(known: dict[str, object], expected: Cause) -> None:
    usual: dict[str, object] = {
        "online": True, "has_accepted": True, "error": "", "part": None, "order_accepted": True,
    }  # fmt: skip
    assert cause(Known(**(usual | known))) is expected  # type: ignore[arg-type]

"""A real controller, broker and agent with two models: rolled out, changed, killed and removed."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from agent.errors import ControlError
from packager.package.keys import load_key
from tests.simulators.agent_process import null_package
from tests.simulators.endpoint_client import Client
from tests.simulators.patience import until
from tests.simulators.stack import Stack, running_stack
from tests.simulators.stack_devices import StackDevice, publish

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.broker,
    pytest.mark.xdist_group("cli"),
    pytest.mark.timeout(1200),
]


@pytest.fixture
def stack() -> Iterator[Stack]:
    """Run a controller with two releases of each of two models; one of them is bad."""
    with running_stack() as made:
        key = load_key(made.release_key)
        for release in (
            null_package("1.0.0", key=key),
            null_package("2.0.0", key=key),
            null_package("4.0.0", name="speech", key=key),
            null_package("5.0.0", name="speech", wrong=True, key=key),
        ):
            publish(made, release)
        yield made


@pytest.fixture
def device(stack: Stack) -> Iterator[StackDevice]:
    """Run an agent that is enrolled and has nothing yet."""
    token = stack.ok("token", "create", "--json").json["token"]
    made = StackDevice(stack, "cam-1", token)
    try:
        made.start()
        made.until_online()
        yield made
    finally:
        if made.process is not None:
            made.end(signal.SIGKILL)


def releases(device: StackDevice) -> dict[str, str | None]:
    """Return the release of each model, as the controller knows it."""
    return {model["name"]: model["release"] for model in device.shown.get("models", ())}


def served(device: StackDevice) -> tuple[str | None, str | None]:
    """Return which release of each model answers; None while the agent starts, too."""
    try:
        client = Client(device)
        return client.serves("digits"), client.serves("speech")
    except (ControlError, OSError):
        return None, None


def test_two_models_are_led_by_themselves_and_serve_beside_each_other(
    stack: Stack, device: StackDevice
) -> None:
    # Two rollouts run on the device at the same time.
    for release in ("digits:1.0.0", "speech:4.0.0"):
        stack.ok("rollout", "create", release)
    until(
        lambda: (
            {each["state"] for each in stack.ok("rollout", "list", "--json").json} == {"succeeded"}
        ),
        "the end of both rollouts",
    )
    assert releases(device) == {"digits": "digits:1.0.0", "speech": "speech:4.0.0"}
    assert served(device) == ("digits:1.0.0", "speech:4.0.0")

    # A bad release of one goes back, and the other never notices.
    failed = stack.fleet("rollout", "create", "speech:5.0.0", "--watch")
    assert failed.code == 1
    assert served(device) == ("digits:1.0.0", "speech:4.0.0")
    stack.ok("rollout", "create", "digits:2.0.0", "--watch")
    until(lambda: served(device) == ("digits:2.0.0", "speech:4.0.0"), "the second release")

    # A policy is for one model.
    stack.ok("policy", "set", "quick", "--model", "speech", "--deadline-ms", "50")

    def deadline_ms(model: str) -> object:
        policy = device.ask("status", model=model)["policy"]
        return (policy.get("objective") or {}).get("deadline_ms")

    until(lambda: deadline_ms("speech") == 50, "the policy")
    assert deadline_ms("digits") is None

    # Both come back after a kill, and the controller sees no drift.
    device.end(signal.SIGKILL)
    device.start()
    until(lambda: served(device) == ("digits:2.0.0", "speech:4.0.0"), "both after a restart")
    until(lambda: device.shown.get("drifted") is False, lambda: f"no drift: {device.shown}")

    # One is removed.
    stack.ok("model", "remove", "speech")
    until(lambda: Client(device).infer("speech")[0] == 404, "the removal")
    until(lambda: releases(device) == {"digits": "digits:2.0.0"}, lambda: str(device.shown))
    assert served(device) == ("digits:2.0.0", None)
    typo = stack.fleet("rollout", "create", "digit:2.0.0")
    assert typo.code != 0
    assert "digits" in typo.err, "it says which exist"

"""A shadow from `fleet shadow start` to its figures: an agent, a broker and a controller."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.simulators.agent_process import null_package
from tests.simulators.patience import until
from tests.simulators.stack import Stack, running_stack
from tests.simulators.stack_devices import StackDevice, publish
from wire.trust.envelope import SigningKey

pytestmark = pytest.mark.broker


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    with running_stack() as made:
        yield made


@pytest.fixture(scope="module")
def device(stack: Stack) -> Iterator[StackDevice]:
    """An agent that serves a release, beside two more that it may run as shadows."""
    token = stack.ok("token", "create", "--json").json["token"]
    agent = StackDevice(stack, "cam-1", token)
    agent.start()
    agent.until_online()
    key = SigningKey(stack.release_key.read_bytes())
    publish(stack, null_package("1.0.0", key=key))
    publish(stack, null_package("2.0.0", key=key))
    publish(stack, null_package("3.0.0", key=key, names=("small",)))
    stack.ok("rollout", "create", "digits:1.0.0", "--watch")
    yield agent
    if agent.process is not None:
        agent.end(signal.SIGKILL)


def shadow_of(device: StackDevice) -> str:
    return str(device.ask("status")["shadow"])


def figures(stack: Stack, device: StackDevice, least: int) -> dict[str, Any]:
    """Ask the device until the controller knows of so many requests that were compared."""

    def find() -> dict[str, Any] | None:
        device.infer()
        profiles = stack.ok("shadow", "show", "digits", "--json").json["profiles"]
        return dict(profiles[0]) if profiles and profiles[0]["requests"] >= least else None

    return until(find, "figures of the shadow", step_s=0.2)


def test_a_shadow_is_started_compared_and_stopped(
    stack: Stack, device: StackDevice, tmp_path: Path
) -> None:
    assert stack.fleet("shadow", "show", "digits").code == 2
    rollout = ("rollout", "create", "digits:2.0.0", "--shadow-agreement", "99%")
    assert "digits:2.0.0 is not the shadow of model digits" in stack.fleet(*rollout).err
    started = stack.ok("shadow", "start", "digits:2.0.0", "--share", "100%")
    assert "digits:2.0.0 is the shadow, all devices: 100 % of the requests" in started.out
    until(lambda: shadow_of(device) == "digits:2.0.0 runs", "the shadow", step_s=0.1)
    found = figures(stack, device, 3)
    assert found["agreements"] == found["requests"]
    assert (found["failures"], found["devices"]) == (0, 1)
    assert found["latency_p50_ms"] > 0
    assert found["live_latency_p50_ms"] > 0
    assert found["difference_max"] == 0.0
    assert "0 devices have compared 20 requests or more" in stack.fleet(*rollout).err
    planned = stack.fleet(*rollout, "--dry-run", "--json").json
    assert planned["refused"][0].startswith("digits:2.0.0 as a shadow should agree in 99 %")
    file = tmp_path / "rollout.toml"
    file.write_text('stages = [{size = "100%", shadow = {agreement = "99%"}}]')
    waits = stack.fleet("rollout", "create", "digits:2.0.0", "-f", str(file))
    assert (waits.code, waits.err.count("\n")) == (2, 1)
    can = "stage 1 would wait for its shadow for ever: 1 device of the rollout can run one"
    assert can in waits.err
    shown = stack.ok("shadow", "show", "digits").out
    assert "100%" in shown
    (listed,) = stack.ok("shadow", "list", "--json").json
    assert (listed["release"], listed["devices"], listed["accepted"]) == ("digits:2.0.0", 1, 1)

    stack.ok("shadow", "start", "digits:3.0.0", "--share", "100%")
    until(lambda: shadow_of(device) == "digits:3.0.0 runs", "the other shadow", step_s=0.1)
    assert figures(stack, device, 2)["agreements"] == 0
    parameters, _ = device.infer()
    assert parameters["release"] == "digits:1.0.0"

    stack.ok("release", "revoke", "digits:3.0.0")
    until(lambda: shadow_of(device) == "None", "the shadow to end", step_s=0.1)
    assert stack.ok("shadow", "list", "--json").json == []
    assert stack.fleet("shadow", "stop", "digits").code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("digits:9.0.0",), "no release 'digits:9.0.0'"),
        (("digits:2.0.0", "--share", "0"), "--share: a shadow sees more than nothing"),
        (("digits:2.0.0", "--selector", "online=true"), "online"),
    ],
)
def test_what_cannot_be_is_refused(
    stack: Stack, device: StackDevice, arguments: tuple[str, ...], said: str
) -> None:
    done = stack.fleet("shadow", "start", *arguments)
    assert done.code != 0
    assert said in done.err
    assert device.process is not None

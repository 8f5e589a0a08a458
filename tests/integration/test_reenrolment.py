"""Real agents with passwords: what was lost or forged beside the controller is found and mended."""

from __future__ import annotations

import json
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.link.identity import CREDENTIALS_FILE, KEY_FILE
from tests.simulators.agent_process import DEVICE, At, Device
from tests.simulators.packages import TRUST, package, variant
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import Stack, running_stack
from wire.trust.envelope import SigningKey

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("reenrolment")]


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Run a broker and a controller."""
    with running_stack(only_passwords=True) as running:
        yield running


@pytest.fixture
def device(stack: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Device]:
    """Return a device that is enrolled and connected, and whose token is gone."""
    made = Device(tmp_path, At(stack.broker_port))
    name = f"cam-{request.node.name.encode().hex()[-16:]}"
    config = made.config_path.read_text().replace(f'device = "{DEVICE}"', f'device = "{name}"')
    ca_file = f'ca_file = "{stack.broker.ca_file}"'
    config = config.replace(f"port = {stack.broker_port}", f"port = {stack.broker_port}\n{ca_file}")
    made.config_path.write_text(config)
    shutil.copy(stack.home / "trust.json", tmp_path / "trust.json")
    token = stack.ok("token", "create", "--json").json["token"]
    (tmp_path / "token").write_text(token)
    made.start()
    until(lambda: is_online(stack, made), lambda: f"a device: {made.log} {stack.log}")
    (tmp_path / "token").unlink()
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)


def is_online(stack: Stack, device: Device) -> bool:
    shown = stack.fleet("device", "show", device.config.device, "--json")
    return shown.code == 0 and bool(shown.json["online"])


def is_connected(device: Device) -> bool:
    return bool(device.ask("status")["connected"])


def forget(stack: Stack) -> None:
    """Kill the broker, remove all accounts but the controller's, and start it again."""
    path = stack.home / "broker" / "dynamic-security.json"
    broker = stack.processes.pop(0)
    broker.send_signal(signal.SIGKILL)
    broker.wait(PATIENCE_S)
    accounts = json.loads(path.read_text())
    kept = [client for client in accounts["clients"] if client["username"] == "_controller"]
    assert len(kept) < len(accounts["clients"])
    roles = [role for role in accounts["roles"] if not role["rolename"].startswith("device-")]
    accounts |= {"clients": kept, "roles": roles}
    path.write_text(json.dumps(accounts))
    stack.run("broker", "run")
    stack.processes.insert(0, stack.processes.pop())


def test_a_device_whose_account_the_broker_lost_comes_back_by_its_key(
    stack: Stack, device: Device
) -> None:
    forget(stack)
    until(
        lambda: [reason for reason in device.reasons("refused") if "refuses the account" in reason],
        lambda: f"the refusal: {device.log}",
    )
    until(lambda: is_connected(device), lambda: f"a connection: {device.log} {stack.log}")
    until(lambda: is_online(stack, device), "the device at the controller")
    assert len([r for r in device.reasons("refused") if "refuses the account" in r]) == 1
    log = (device.directory / "log").read_text()
    assert "password" not in log


def test_a_flipped_character_in_an_older_agents_password_stops_nothing(
    stack: Stack, device: Device
) -> None:
    device.end(signal.SIGTERM)
    until(lambda: not is_online(stack, device), "the end")
    older = {"device": device.config.device, "password": "not what it was", "enrolled": True}
    (device.config.state_dir / CREDENTIALS_FILE).write_text(json.dumps(older))
    device.start()
    until(lambda: is_online(stack, device), lambda: f"the device: {device.log}")
    assert "not what it was" not in (device.config.state_dir / CREDENTIALS_FILE).read_text()


def test_a_device_enrols_again_by_its_key_when_its_credentials_are_removed(
    stack: Stack, device: Device
) -> None:
    device.end(signal.SIGTERM)
    until(lambda: not is_online(stack, device), "the end")
    (device.config.state_dir / CREDENTIALS_FILE).unlink()
    device.start()
    until(lambda: is_online(stack, device), lambda: f"the device: {device.log}")
    assert json.loads((device.config.state_dir / CREDENTIALS_FILE).read_text())["enrolled"]


def test_a_device_whose_password_was_read_comes_back_with_another_key(
    stack: Stack, device: Device, tmp_path: Path
) -> None:
    device.end(signal.SIGTERM)
    name = device.config.device
    for order in ("decommission", "readmit"):
        stack.ok("device", order, name)
    before = (device.config.state_dir / KEY_FILE).read_bytes()
    for file in (KEY_FILE, CREDENTIALS_FILE):
        (device.config.state_dir / file).unlink()
    (tmp_path / "token").write_text(stack.ok("token", "create", "--json").json["token"])
    device.start()
    until(lambda: is_online(stack, device), lambda: f"the device: {device.log}")
    assert (device.config.state_dir / KEY_FILE).read_bytes() != before


def test_a_decommissioned_device_stays_out_and_says_why(stack: Stack, device: Device) -> None:
    stack.ok("device", "decommission", device.config.device)
    until(
        lambda: [r for r in device.reasons("refused") if "its identifier is blocked" in r],
        lambda: f"the refusal: {device.log}",
    )
    shown = " ".join(device.command("status").stdout.split())
    assert "not connected: the broker refuses the account of this device" in shown
    assert "its identifier is blocked; to let a device of that name in again" in shown
    assert not is_connected(device)


def test_a_quarantined_device_comes_back_with_the_account_that_it_had(
    stack: Stack, device: Device
) -> None:
    stack.ok("device", "quarantine", device.config.device)
    until(lambda: not is_connected(device), "the end of the connection")
    stack.ok("device", "restore", device.config.device)
    until(lambda: is_connected(device), lambda: f"a connection: {device.log}")


def test_a_wrong_trust_file_is_shown_in_the_rollout_and_at_the_device(
    stack: Stack, device: Device, tmp_path: Path
) -> None:
    device.end(signal.SIGTERM)
    (tmp_path / "trust.json").write_bytes(TRUST.to_bytes())
    device.start()
    until(lambda: is_online(stack, device), lambda: f"the device: {device.log}")
    key = SigningKey(stack.release_key.read_bytes())
    package("1", [(variant("best"), b"model")], key=key).write_to(tmp_path / "package")
    stack.ok("release", "publish", str(tmp_path / "package"))
    name = device.config.device
    done = stack.fleet(
        "rollout", "create", "digits:1", "--selector", f"id={name}", "--watch", "--json"
    )
    assert done.code == 1, done.out + done.err
    shown = stack.ok("device", "show", name).out
    assert "wire.signature: no director that the device trusts signed" in " ".join(shown.split())
    rollouts = stack.ok("rollout", "list", "--json").json
    parts = stack.ok("rollout", "show", rollouts[0]["id"], "--json").json["deployments"]
    assert [(part["device"], part["error_code"]) for part in parts] == [(name, "wire.signature")]
    status = " ".join(device.command("status").stdout.split())
    assert "refused no director that the device trusts signed the desired state" in status

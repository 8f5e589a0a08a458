"""Real agents that log in with certificates: enrolled, renewed, shut out, and back."""

from __future__ import annotations

import json
import shutil
import signal
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.link.identity import CREDENTIALS_FILE, KEY_FILE
from agent.link.tls_key import CERTIFICATE_FILE, TLS_KEY_FILE
from controller.app.home import CONFIG_FILE
from examples.digits.box import free_port
from tests.simulators.agent_process import DEVICE, At, Device
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import Stack, fleet_here, running_stack
from wire.clock import SystemClock
from wire.codec import from_json, to_json
from wire.files import write_atomic

pytestmark = [pytest.mark.broker, pytest.mark.xdist_group("device_certificates")]
LIFE_S = 12.0
CLOCK = SystemClock()


@pytest.fixture(scope="module")
def stack() -> Iterator[Stack]:
    """Run a broker and a controller, as `fleet init` makes them."""
    with running_stack() as running:
        yield running


MakeDevice = Callable[[], Device]


@pytest.fixture
def make(stack: Stack, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[MakeDevice]:
    """Return what makes a device that is enrolled and connected, and whose token is gone."""
    made: list[Device] = []

    def device() -> Device:
        name = f"cam-{request.node.name.encode().hex()[-16:]}"
        made.append(new_device(stack, tmp_path, name))
        start(stack, made[-1])
        (tmp_path / "token").unlink()
        return made[-1]

    yield device
    for each in made:
        if each.process is not None:
            each.end(signal.SIGKILL)


@pytest.fixture
def device(make: MakeDevice) -> Device:
    return make()


def new_device(stack: Stack, directory: Path, name: str) -> Device:
    made = Device(directory, At(stack.broker_port))
    config = made.config_path.read_text().replace(f'device = "{DEVICE}"', f'device = "{name}"')
    ca_file = f'ca_file = "{stack.broker.ca_file}"'
    config = config.replace(f"port = {stack.broker_port}", f"port = {stack.broker_port}\n{ca_file}")
    made.config_path.write_text(config)
    shutil.copy(stack.home / "trust.json", directory / "trust.json")
    give_token(stack, made)
    return made


def give_token(stack: Stack, device: Device) -> None:
    token = stack.ok("token", "create", "--json").json["token"]
    (device.directory / "token").write_text(token)


def start(stack: Stack, device: Device) -> None:
    device.start()
    until(lambda: is_online(stack, device), lambda: f"a device: {device.log} {stack.log}")


def is_online(stack: Stack, device: Device) -> bool:
    shown = stack.fleet("device", "show", device.config.device, "--json")
    return shown.code == 0 and bool(shown.json["online"])


def is_connected(device: Device) -> bool:
    return bool(device.ask("status")["connected"])


def credentials(device: Device) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((device.config.state_dir / CREDENTIALS_FILE).read_bytes())
    return found


def subject(device: Device) -> str:
    path = device.config.state_dir / CERTIFICATE_FILE
    command = ["openssl", "x509", "-noout", "-subject", "-in", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def serial(device: Device) -> str:
    path = device.config.state_dir / CERTIFICATE_FILE
    command = ["openssl", "x509", "-noout", "-serial", "-in", str(path)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def accounts(stack: Stack) -> set[str]:
    document = from_json((stack.home / "broker" / "dynamic-security.json").read_bytes(), dict)
    return {client["username"] for client in document["clients"]}


def set_life(stack: Stack, life_s: float) -> None:
    """Let certificates live so long, and start the controller again."""
    path = stack.home / CONFIG_FILE
    lines = [
        f"valid_days = {life_s / 86_400:.9f}" if line.startswith("valid_days") else line
        for line in path.read_text().splitlines()
    ]
    write_atomic(path, "\n".join(lines).encode())
    controller = stack.processes.pop(1)
    controller.send_signal(signal.SIGTERM)
    controller.wait(PATIENCE_S)
    stack.run("controller", "run")
    until(stack.is_healthy, lambda: f"a controller: {stack.log}")


def restart(stack: Stack) -> None:
    """Start the broker and the controller again."""
    stack.stop()
    stack.start()


@pytest.fixture
def short_lived(stack: Stack) -> Iterator[None]:
    set_life(stack, LIFE_S)
    yield
    set_life(stack, 7 * 86_400.0)


def test_a_device_logs_in_with_a_certificate_of_its_name_and_has_no_account(
    stack: Stack, device: Device
) -> None:
    assert subject(device) == f"subject=CN = {device.config.device}"
    assert "certificate" in credentials(device)
    assert device.config.device not in accounts(stack)


def test_the_key_is_for_the_agent_alone_and_is_on_no_other_machine(
    stack: Stack, device: Device
) -> None:
    key = device.config.state_dir / TLS_KEY_FILE
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    secret = key.read_bytes().splitlines()[1]
    for path in stack.home.rglob("*"):
        assert not path.is_file() or secret not in path.read_bytes()


@pytest.mark.usefixtures("short_lived")
def test_a_certificate_is_renewed_while_the_device_stays_connected(
    stack: Stack, make: MakeDevice
) -> None:
    device = make()
    seen: set[str] = set()

    def has_renewed_twice() -> bool:
        seen.add(serial(device))
        return len(seen) > 2

    until(has_renewed_twice, lambda: f"renewals: {device.log} {stack.log}", step_s=0.2)
    until(lambda: is_connected(device), "the device")
    assert not device.reasons("refused")


@pytest.mark.thorough
@pytest.mark.usefixtures("short_lived")
def test_a_device_that_was_away_for_longer_comes_back_by_its_key(
    stack: Stack, make: MakeDevice
) -> None:
    device = make()
    device.end(signal.SIGKILL)
    before, ends_at_s = serial(device), credentials(device)["certificate"]["ends_at_s"]
    until(lambda: CLOCK.now_s() > ends_at_s + 1, "the end", step_s=0.5)
    device.start()
    until(lambda: serial(device) != before, lambda: f"a certificate: {device.log} {stack.log}")
    until(lambda: is_connected(device), lambda: f"a connection: {device.log}")
    assert [reason for reason in device.reasons("refused") if "certificate expired" in reason]


def test_a_quarantined_device_is_cut_off_and_comes_back_when_it_may(
    stack: Stack, device: Device
) -> None:
    name = device.config.device
    stack.ok("device", "quarantine", name)
    until(
        lambda: [r for r in device.reasons("refused") if "the device is quarantined" in r],
        lambda: f"the refusal: {device.log}",
    )
    assert not is_online(stack, device)
    status = device.ask("status")
    assert not status["connected"]
    assert "the device is quarantined" in status["outage"]
    stack.ok("device", "restore", name)
    until(lambda: is_online(stack, device), lambda: f"the device: {device.log} {stack.log}")


def test_a_decommissioned_device_stays_out_and_says_why(stack: Stack, device: Device) -> None:
    stack.ok("device", "decommission", device.config.device)
    until(
        lambda: [r for r in device.reasons("refused") if "its identifier is blocked" in r],
        lambda: f"the refusal: {device.log}",
    )
    assert not is_online(stack, device)


def test_an_identifier_waits_for_the_end_of_the_certificate_of_the_device_before(
    stack: Stack, device: Device
) -> None:
    name = device.config.device
    device.end(signal.SIGTERM)
    stack.ok("device", "decommission", name)
    readmitted = stack.ok("device", "readmit", name)
    assert "with another key than before not until" in readmitted.err
    for file in (KEY_FILE, CREDENTIALS_FILE):
        (device.config.state_dir / file).unlink()
    give_token(stack, device)
    device.start()
    until(
        lambda: [r for r in device.reasons("refused") if "still valid for 168 hours" in r],
        lambda: f"the refusal: {device.log}",
    )
    stack.ok("device", "readmit", name, "--key-is-gone")
    until(lambda: is_online(stack, device), lambda: f"the device: {device.log} {stack.log}")


def test_a_device_survives_a_broker_that_lost_all_its_accounts(
    stack: Stack, device: Device
) -> None:
    """Nothing about a device with a certificate is kept at the broker."""
    path = stack.home / "broker" / "dynamic-security.json"
    broker = stack.processes.pop(0)
    broker.send_signal(signal.SIGKILL)
    broker.wait(PATIENCE_S)
    document = json.loads(path.read_bytes())
    document["clients"] = [c for c in document["clients"] if c["username"] == "_controller"]
    path.write_bytes(to_json(document))
    stack.run("broker", "run")
    stack.processes.insert(0, stack.processes.pop())
    until(lambda: is_connected(device), lambda: f"a connection: {device.log}")
    assert not device.reasons("refused")


def test_devices_come_back_by_their_keys_when_the_authority_is_another(
    stack: Stack, device: Device
) -> None:
    before = serial(device)
    for name in ("devices-ca.key", "devices-ca.pem"):
        (stack.home / "keys" / name).rename(stack.home / "keys" / f"{name}.stolen")
    done = fleet_here("broker", "devices-authority", str(stack.home))
    assert (done.code, done.out) == (0, "")
    restart(stack)
    until(lambda: serial(device) != before, lambda: f"a certificate: {device.log} {stack.log}")
    until(lambda: is_connected(device), lambda: f"a connection: {device.log}")


@pytest.mark.thorough
def test_a_fleet_with_passwords_moves_to_certificates(tmp_path: Path) -> None:
    with running_stack(only_passwords=True) as stack:
        device = new_device(stack, tmp_path, "cam-1")
        start(stack, device)
        try:
            assert "cam-1" in accounts(stack)
            assert not (device.config.state_dir / CERTIFICATE_FILE).exists()
            for name in ("devices-ca.key", "devices-ca.pem"):
                (stack.home / "keys" / name).unlink()  # a directory from before has none
            done = fleet_here("broker", "devices-authority", str(stack.home))
            table = done.out.replace("port = 8884", f"port = {free_port()}")
            path = stack.home / CONFIG_FILE
            path.write_text(f"{path.read_text()}\n{table}")
            restart(stack)
            until(lambda: is_connected(device), lambda: f"the password: {device.log}")
            device.end(signal.SIGTERM)
            (device.config.state_dir / CREDENTIALS_FILE).unlink()
            (device.directory / "token").unlink()
            start(stack, device)
            assert subject(device) == "subject=CN = cam-1"
            assert "cam-1" not in accounts(stack)
        finally:
            device.end(signal.SIGKILL)

"""What an operator types and reads: TLS by default, clear text only where asked for, and loudly."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from controller.app.home import CA_FILE, CONFIG_FILE
from controller.app.new_home import TLS_PORT
from examples.digits.box import free_port
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import ROOT, Done, Stack, environment, fleet, running_stack
from wire.mqtt import MqttTransport

pytestmark = pytest.mark.broker
README = ROOT / "README.md"
Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def stack() -> Iterator[Stack]:
    with running_stack() as running:
        yield running


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start programs that end with the test; what they say goes to files named after them."""
    running: list[subprocess.Popen[bytes]] = []

    def start(name: str, *arguments: str | Path) -> subprocess.Popen[bytes]:
        with (tmp_path / f"{name}.log").open("ab") as log:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-P", "-m", *map(str, arguments)],
                    env=environment(), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                )
            )  # fmt: skip
        return running[-1]

    def ended() -> bool:
        # Asked again: Mosquitto forgets a signal that comes just before its main loop begins.
        for process in running:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        return all(process.poll() is not None for process in running)

    yield start
    until(ended, "the end of the programs", step_s=0.5)


def shown_config() -> str:
    block = re.search(r"```toml\n(.*?)```", README.read_text(), re.DOTALL)
    assert block is not None
    return block[1]


def init_of_the_readme(home: Path, *more: str) -> Done:
    line = re.search(r"(?m)^fleet init (\S+)(.*?)(?: +#.*)?$", README.read_text())
    assert line is not None
    assert line[1] == "./my-fleet"
    assert "--broker-port" not in line[2]
    return fleet("init", str(home), *line[2].replace("broker.example", "localhost").split(), *more)


def test_the_devices_configuration_in_the_readme_works_as_written(
    tmp_path: Path, start: Start
) -> None:
    home, etc = tmp_path / "my-fleet", tmp_path / "etc"
    etc.mkdir()
    stack = Stack(home=home, api_port=free_port(), broker_port=free_port())
    made = init_of_the_readme(
        home, "--api-port", str(stack.api_port), "--broker-port", str(stack.broker_port)
    )
    assert made.code == 0, made.err
    start("broker", "controller.cli", "broker", "run", home)
    start("controller", "controller.cli", "controller", "run", home)
    until(stack.is_healthy, "the controller", step_s=0.05)
    text = shown_config()
    asked = tomllib.loads(text)
    assert asked["broker"]["port"] == TLS_PORT, "where the broker of the README listens"
    (etc / Path(asked["token_file"]).name).write_text(stack.ok("token", "create").out)
    (etc / Path(asked["profile"]).name).write_text(stack.ok("profile", "show", "rpi4").out)
    for name in (asked["trust"], asked["broker"]["ca_file"]):
        (etc / Path(name).name).write_bytes((home / Path(name).name).read_bytes())
    # Only what a test on one machine cannot have as written: places, ports, and a name in the DNS.
    for old, new in (
        ("/etc/edgefleet", str(etc)),
        ("/var/lib/edgefleet", str(tmp_path / "state")),
        ("broker.example", "localhost"),
        (f"port = {asked['broker']['port']}", f"port = {stack.broker_port}"),
        (f"port = {asked['endpoint']['port']}", "port = 0"),
    ):
        assert old in text
        text = text.replace(old, new)
    (etc / "agent.toml").write_text(text)
    start("agent", "agent", "run", "--config", etc / "agent.toml")

    def online() -> bool:
        devices = stack.ok("device", "list", "--json").json
        return [d["id"] for d in devices if d["online"]] == [asked["device"]]

    until(online, lambda: f"the device: {(tmp_path / 'agent.log').read_text()[-2000:]}", step_s=0.2)


def agent_config(directory: Path, stack: Stack, broker: str) -> Path:
    (directory / "profile.toml").write_text(stack.ok("profile", "show", "edge-min").out)
    (directory / "token").write_text(stack.ok("token", "create").out)
    path = directory / "agent.toml"
    path.write_text(
        f'device = "dev-1"\nstate_dir = "state"\nprofile = "profile.toml"\ntoken_file = "token"\n'
        f"trust = {json.dumps(str(stack.home / 'trust.json'))}\n"
        f"[broker]\n{broker}\n[endpoint]\nport = 0\n"
    )
    return path


def refusal(log: Path) -> Callable[[], str]:
    def find() -> str:
        lines: list[dict[str, Any]] = [
            json.loads(line) for line in log.read_text().splitlines(keepends=True)
            if line.endswith("\n")
        ]  # fmt: skip
        return next((str(line["reason"]) for line in lines if line["action"] == "refused"), "")

    return find


def test_a_device_that_cannot_connect_says_why(stack: Stack, tmp_path: Path, start: Start) -> None:
    plain = (
        f"not enrolled: the broker at 127.0.0.1:{stack.broker_port} "
        "ended the connection without an answer; if it speaks TLS, set ca_file"
    )
    far = (
        "not enrolled: without broker.ca_file passwords would go to the broker at 192.0.2.1 in the "
        "clear; copy ca.pem from the controller's directory, and name it as broker.ca_file"
    )
    for name, broker, reason in (
        ("plain", f"port = {stack.broker_port}", plain),
        ("far", 'host = "192.0.2.1"', far),
    ):
        (tmp_path / name).mkdir()
        config = agent_config(tmp_path / name, stack, broker)
        start(name, "agent", "run", "--config", config)
        assert until(refusal(tmp_path / f"{name}.log"), f"the reason of {name}") == reason


def test_clear_text_is_said_loudly(tmp_path: Path, start: Start) -> None:
    home, port = tmp_path / "home", free_port()
    made = fleet("init", str(home), "--clear-text", "--broker-port", str(port))
    assert made.code == 0
    assert "warning: this broker will not be encrypted" in made.err
    start("broker", "controller.cli", "broker", "run", home)
    log = tmp_path / "broker.log"
    until(lambda: "starting the broker" in log.read_text(), log.read_text)
    text = log.read_text()
    assert f"warning: CLEAR TEXT: the broker at 127.0.0.1:{port} is not encrypted" in text
    assert f"starting the broker on 127.0.0.1:{port}, without TLS" in text


@pytest.mark.parametrize(
    "more",
    [("--broker-host", "0.0.0.0"), ("--broker-name", "broker.example")],  # noqa: S104 - refused
)
def test_clear_text_is_for_loopback_only(tmp_path: Path, more: tuple[str, str]) -> None:
    done = fleet("init", str(tmp_path / "home"), "--clear-text", *more)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("fleet: clear text is for loopback only, not for 0.0.0.0; ")
    assert done.err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_an_api_for_other_machines_is_said_to_need_a_certificate(tmp_path: Path) -> None:
    home = tmp_path / "home"
    made = fleet("init", str(home), "--clear-text", "--api-host", "0.0.0.0")  # noqa: S104 - said
    assert made.code == 0
    assert (
        "warning: the API at 0.0.0.0 has no TLS, and so the controller will not start" in made.err
    )
    done = fleet("controller", "run", str(home))
    assert done.code == 2
    assert done.err.startswith("fleet: the API at 0.0.0.0 has no TLS: ")
    assert done.err.count("\n") == 1


def test_a_directory_from_before_says_what_to_do(tmp_path: Path, start: Start) -> None:
    home = tmp_path / "home"
    stack = Stack(home=home, api_port=free_port(), broker_port=free_port())
    assert fleet(
        "init", str(home), "--clear-text", "--api-port", str(stack.api_port),
        "--broker-port", str(stack.broker_port),
    ).code == 0  # fmt: skip
    config = (home / CONFIG_FILE).read_text()
    old = re.sub(r"(?m)^clear_text.*\n", "", config)
    old = old.replace('[broker]\nhost = "127.0.0.1"', '[broker]\nhost = "0.0.0.0"')
    (home / CONFIG_FILE).write_text(old)
    (tmp_path / "home-offline" / "release.key").rename(home / "keys" / "release.key")
    start("broker", "controller.cli", "broker", "run", home)
    start("controller", "controller.cli", "controller", "run", home)
    until(stack.is_healthy, "the controller", step_s=0.05)
    said = (tmp_path / "broker.log").read_text()
    log = tmp_path / "controller.log"
    until(lambda: "CLEAR TEXT" in log.read_text(), "the warning")
    logged = log.read_text()
    for text in (said, logged):
        assert f"CLEAR TEXT: the broker at 0.0.0.0:{stack.broker_port} is not encrypted" in text
        assert "run `fleet broker certificate DIR`" in text
    assert "keys/release.key signs packages" in logged
    made = fleet("broker", "certificate", str(home))
    assert made.code == 0
    assert re.match(r"valid until \d{4}-\d\d-\d\d.* for .*localhost", made.out)
    assert str(home / CA_FILE) in made.err
    assert 'write ca_file = "ca.pem" below [broker]' in made.err
    again = f"then start the broker and the controller again: fleet broker run {home}\n"
    assert made.err.endswith(again)


def test_without_openssl_one_line_says_what_to_install(tmp_path: Path) -> None:
    done = fleet("init", str(tmp_path / "home"), PATH=str(tmp_path))
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "fleet: the program openssl is not on this machine; it makes the certificates; install it: "
        "apt install openssl\n"
    )
    assert list(tmp_path.iterdir()) == []
    assert fleet("init", str(tmp_path / "home"), "--clear-text", PATH=str(tmp_path)).code == 0


def test_a_fleet_goes_on_over_a_renewed_certificate(stack: Stack) -> None:
    peer_password = (stack.home / "broker.password").read_text().strip()
    ups: list[bool] = []
    transport = MqttTransport(
        stack.broker, client_id="peer", username="_controller", password=peer_password
    )
    transport.start(lambda _message: None, lambda connection: ups.append(connection.up))
    try:
        until(lambda: ups == [True], "the first connection")
        assert fleet("broker", "certificate", str(stack.home)).code == 0
        broker = stack.processes[0]
        broker.send_signal(signal.SIGTERM)
        assert broker.wait(PATIENCE_S) == 0
        stack.processes.remove(broker)
        until(lambda: ups[-1] is False, "the end of the broker")
        stack.run("broker", "run")
        until(lambda: ups[-1] is True, lambda: f"the connection: {stack.log}")
        until(stack.is_healthy, "the controller", step_s=0.05)
    finally:
        transport.close()

"""An agent that cannot connect says why within seconds, enrolled or not; `status` shows it too."""

from __future__ import annotations

import signal
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agent.link.identity import Identity
from examples.digits.box import free_port
from tests.simulators.agent_process import DEVICE, At, Controller, Device
from tests.simulators.broker import RunningBroker
from tests.simulators.certificates import Authority
from tests.simulators.packages import DIRECTOR_KEY, STRANGER_KEY
from tests.simulators.patience import PATIENCE_S, until
from wire.presence import Hello

pytestmark = pytest.mark.broker


@pytest.fixture(params=["enrolled", "not enrolled"])
def device(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Device]:
    """Return a device whose broker is nowhere, once enrolled and once not."""
    made = Device(tmp_path, At(free_port()))
    if request.param == "enrolled":
        made.config.state_dir.mkdir()
        Identity(made.config.state_dir, DEVICE).confirm()
    yield made
    if made.process is not None:
        made.end(signal.SIGKILL)


def change(device: Device, old: str, new: str) -> None:
    text = device.config_path.read_text()
    assert old in text
    device.config_path.write_text(text.replace(old, new))


def told(device: Device, *words: str) -> str:
    """Start a device, wait until its log and `status` say why it is not connected; return that."""
    device.start()

    def said() -> str:
        lines = [line.get("reason", "") for line in device.log]
        return next((line for line in lines if all(word in line for word in words)), "")

    reason = until(said, lambda: f"{words}: {device.log}")
    status = device.command("status")
    shown = " ".join(status.stdout.split())
    assert "controller not connected: " in shown, status.stderr
    assert all(word in shown for word in words)
    return reason


@contextmanager
def server(handle: Callable[[socket.socket], None]) -> Iterator[int]:
    """Run a TCP server that is no MQTT broker, and yield its port."""
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with closing(connection):
                try:
                    handle(connection)
                except OSError:
                    continue

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield int(listening.getsockname()[1])
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join(PATIENCE_S)


def test_a_wrong_port(device: Device) -> None:
    port = device.config.broker.port
    assert "connection refused" in told(device, f"no MQTT broker answers at 127.0.0.1:{port}")


@pytest.mark.parametrize("host", ["nowhere.invalid", "two..dots"])
def test_an_unknown_host(device: Device, host: str) -> None:
    change(device, 'host = "127.0.0.1"\nport = ', f'host = "{host}"\nport = ')
    told(device, host)


@pytest.mark.parametrize("banner", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"SSH-2.0-x\r\n", b"\x20"])
def test_a_port_of_another_protocol(device: Device, banner: bytes) -> None:
    def speak(connection: socket.socket) -> None:
        connection.recv(1024)
        connection.sendall(banner)

    with server(speak) as port:
        change(device, f"port = {device.config.broker.port}", f"port = {port}")
        told(device, f"at 127.0.0.1:{port}", "broker", "answer")


def test_a_port_that_says_nothing(device: Device) -> None:
    done = threading.Event()

    def say_nothing(_connection: socket.socket) -> None:
        done.wait(PATIENCE_S)

    with server(say_nothing) as port:
        change(device, f"port = {device.config.broker.port}", f"port = {port}")
        told(device, f"no MQTT broker answers at 127.0.0.1:{port} within")
        device.end(signal.SIGKILL)
        done.set()


def test_clear_text_against_tls(device: Device, tmp_path: Path) -> None:
    certificate = Authority(tmp_path, "ca").issue("broker")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate.cert_file, certificate.key_file)

    def speak(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True):
            pass

    with server(speak) as port:
        change(device, f"port = {device.config.broker.port}", f"port = {port}")
        told(device, f"at 127.0.0.1:{port}", "if it speaks TLS, set ca_file")


def test_tls_against_clear_text(
    device: Device, anonymous_broker: RunningBroker, tmp_path: Path
) -> None:
    Authority(tmp_path, "ca")
    old = f"port = {device.config.broker.port}"
    change(device, old, f'port = {anonymous_broker.port}\nca_file = "ca.pem"')
    told(device, f"at 127.0.0.1:{anonymous_broker.port} does not speak TLS")


def test_a_false_answer_to_the_enrolment_is_shown_and_a_true_one_counts(
    tmp_path: Path, anonymous_broker: RunningBroker, controller: Controller
) -> None:
    device = Device(tmp_path, anonymous_broker)
    controller.key = STRANGER_KEY
    try:
        told(device, "the controller's answer cannot be trusted", "compare the device's trust file")
        assert not controller.all("hello", Hello)
        controller.key = DIRECTOR_KEY
        until(lambda: controller.all("hello", Hello), "a hello")
        assert device.ask("status")["outage"] == ""
    finally:
        device.end(signal.SIGKILL)

"""The controller's API over TLS, and `fleet` as its client."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from controller.app.service import Controller
from controller.cli import main
from controller.client.connection import ApiClient
from controller.client.errors import NoControllerError, UnreachableError
from controller.client.target import ConnectionOptions, find_controller
from controller.config import ControllerConfig
from controller.device_schemas import Device
from controller.errors import SettingsError
from controller.schemas import Health
from tests.simulators.certificates import Authority, Certificate
from tests.simulators.controller_fleet import API_TOKEN, MemoryAccess, make_home
from tests.simulators.transport import MemoryHub


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "ours")


@pytest.fixture(scope="module")
def certificate(authority: Authority) -> Certificate:
    return authority.issue("api")


def settings(directory: Path, certificate: Certificate | None) -> ControllerConfig:
    config = make_home(directory, f"sqlite:///{directory / 'control.db'}")
    if certificate is None:
        return config
    api = msgspec.structs.replace(
        config.api, cert_file=str(certificate.cert_file), key_file=str(certificate.key_file)
    )
    return msgspec.structs.replace(config, api=api)


def run(config: ControllerConfig, *, refused: bool = False) -> Iterator[int]:
    transport = MemoryHub().connect(refused=refused)
    controller = Controller(config, MemoryAccess(), connect=lambda: transport)
    controller.start()
    yield controller.api_address[1]
    controller.stop()


@pytest.fixture
def secured(tmp_path: Path, certificate: Certificate) -> Iterator[int]:
    """Run a controller whose API has TLS; return its port."""
    yield from run(settings(tmp_path, certificate))


@pytest.fixture
def plain(tmp_path: Path) -> Iterator[int]:
    """Run a controller whose API has none."""
    yield from run(settings(tmp_path, None))


def client(url: str, ca_file: Path | None = None, **environment: str) -> ApiClient:
    options = ConnectionOptions(url=url, ca_file=ca_file)
    return ApiClient(find_controller(options, {"FLEET_TOKEN": API_TOKEN, **environment}))


def test_fleet_trusts_the_authority_that_it_is_told(secured: int, authority: Authority) -> None:
    url, ca_file = f"https://127.0.0.1:{secured}", authority.ca_file
    for api in (client(url, ca_file), client(url, FLEET_CA_FILE=str(ca_file))):
        with api:
            assert api.get("/v1/devices", list[Device]) == []
            health = api.get("/v1/health", Health)
            assert (health.status, health.needs) == ("ok", [])


def test_no_other_authority_is_trusted(
    secured: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stranger = Authority(tmp_path_factory.mktemp("stranger"), "stranger")
    for ca_file in (None, stranger.ca_file):
        with (
            pytest.raises(UnreachableError, match=r"certificate of .* is refused") as caught,
            client(f"https://127.0.0.1:{secured}", ca_file) as api,
        ):
            api.get("/v1/devices", list[Device])
        assert "--ca-file" in caught.value.remedy


def test_a_name_that_the_certificate_does_not_hold_is_refused(
    secured: int, authority: Authority
) -> None:
    with (
        pytest.raises(UnreachableError, match="localhost") as caught,
        client(f"https://localhost:{secured}", authority.ca_file) as api,
    ):
        api.get("/v1/devices", list[Device])
    assert "host name" in caught.value.remedy


ELSEWHERE = ("127.1", "0.0.0.0")  # noqa: S104 - asked, not bound
"""Hosts that a lookup leads to this machine, but that do not say so: any could be another one."""


@pytest.fixture
def overheard() -> Iterator[tuple[int, bytearray]]:
    """Listen on loopback; return the port, and all that clients sent there."""
    heard = bytearray()

    class Reader(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            heard.extend(self.request.recv(65536))
            self.request.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]")

    with socketserver.TCPServer(("127.0.0.1", 0), Reader) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield server.server_address[1], heard
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("host", ELSEWHERE)
def test_the_token_is_not_sent_in_the_clear(
    overheard: tuple[int, bytearray], tmp_path: Path, capsys: pytest.CaptureFixture[str], host: str
) -> None:
    port, heard = overheard
    (tmp_path / "token").write_text(API_TOKEN)
    line = ["device", "list", "--url", f"http://{host}:{port}", "--json"]
    line += ["--token-file", str(tmp_path / "token")]
    assert main(line) == 2
    said = capsys.readouterr().err
    assert f"the API token would go to {host} in the clear; write https://" in said
    assert said.count("\n") == 1
    assert heard == b""
    assert main([*line, "--api-clear-text"]) == 0
    assert f"Authorization: Bearer {API_TOKEN}".encode() in heard, "it was asked for"
    assert "warning: CLEAR TEXT" in capsys.readouterr().err


@pytest.mark.parametrize("host", ["127.0.0.1", "127.7.7.7", "localhost", "[::1]"])
def test_on_loopback_the_token_needs_no_tls(host: str) -> None:
    assert not client(f"http://{host}:1").is_overheard


def test_without_tls_at_an_api_with_tls_the_error_says_https(secured: int) -> None:
    with (
        pytest.raises(UnreachableError, match="no controller answers") as caught,
        client(f"http://127.0.0.1:{secured}") as api,
    ):
        api.get("/v1/devices", list[Device])
    assert "https://" in caught.value.remedy


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "fleet.example"])  # noqa: S104 - refused
def test_an_api_that_others_reach_has_tls_or_does_not_start(tmp_path: Path, host: str) -> None:
    plain = settings(tmp_path, None)
    plain = msgspec.structs.replace(plain, api=msgspec.structs.replace(plain.api, host=host))
    with pytest.raises(SettingsError, match="has no TLS") as caught:
        Controller(plain, MemoryAccess(), connect=MemoryHub().connect)
    assert "api.cert_file" in caught.value.remedy


def test_an_api_without_tls_that_was_asked_for_says_so_at_each_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = settings(tmp_path, None)
    everywhere = "0.0.0.0"  # noqa: S104 - that it is said
    api = msgspec.structs.replace(plain.api, host=everywhere, clear_text=True)
    for port in run(msgspec.structs.replace(plain, api=api)):
        with client(f"http://127.0.0.1:{port}") as fleet:
            assert fleet.get("/v1/devices", list[Device]) == []
    assert "CLEAR TEXT: the API has no TLS" in caplog.text


def test_https_to_an_api_without_tls_says_so(plain: int, authority: Authority) -> None:
    with (
        pytest.raises(UnreachableError, match="no TLS with") as caught,
        client(f"https://127.0.0.1:{plain}", authority.ca_file) as api,
    ):
        api.get("/v1/devices", list[Device])
    assert "http://" in caught.value.remedy


def test_the_command_line_says_what_the_controller_needs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for port in run(settings(tmp_path, None), refused=True):
        options = ("--url", f"http://127.0.0.1:{port}", "--token-file", str(tmp_path / "api.token"))
        assert main(["controller", "status", *options]) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert "status degraded" in told
    assert "needs a connection with the MQTT broker" in told


def test_an_authority_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for name, reason in (("none.pem", "no such file"), ("empty.pem", "no certificate")):
        with pytest.raises(NoControllerError, match=reason) as caught:
            client("https://127.0.0.1:1", tmp_path / name)
        assert name in str(caught.value)


def test_a_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    config = settings(
        tmp_path, Certificate(cert_file=tmp_path / "none.pem", key_file=tmp_path / "none.key")
    )
    with pytest.raises(SettingsError, match=r"none\.pem"):
        Controller(config, MemoryAccess(), connect=MemoryHub().connect)

"""TLS between the fleet's parts: by default, proven by what a listener on the wire sees."""

from __future__ import annotations

import queue
import shutil
import socket
import ssl
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.app.home import CA_FILE, CA_KEY_FILE, CONFIG_FILE, offline_directory
from controller.app.new_home import HomeOptions, create_home
from controller.app.renewal import renew
from controller.broker.access import CONTROLLER_USER, access_for
from controller.broker.certificates import WARN_DAYS, ServerFiles
from controller.broker.connection import connection
from controller.broker.errors import BrokerDirectoryError, CertificateError, ClearTextError
from controller.broker.install import Mosquitto, locate
from controller.broker.listener import broker_settings, warning_of
from controller.broker.mosquitto import Broker, BrokerSettings, config_text
from controller.config import ControllerConfig, load_config
from examples.digits.box import free_port
from tests.simulators.certificates import Authority
from tests.simulators.clock import FakeClock
from tests.simulators.patience import PATIENCE_S
from tests.simulators.relay import Relay
from wire.broker_address import BrokerAddress
from wire.clock import SystemClock
from wire.mqtt import MqttTransport
from wire.transport import Connection

pytestmark = pytest.mark.broker
SECRET = "a-password-that-nobody-may-read"


@pytest.fixture
def installed(tmp_path: Path) -> Mosquitto:
    found = locate(tmp_path / "cache")
    if found is None:
        pytest.skip("Mosquitto is not installed")
    return found


class Fleet:
    """A controller's data directory and its broker."""

    def __init__(self, directory: Path, installed: Mosquitto, **options: Any) -> None:
        self.home = directory / "home"
        self.port = free_port()
        self._installed = installed
        create_home(self.home, HomeOptions(broker_port=self.port, **options))

    @property
    def config(self) -> ControllerConfig:
        return load_config(self.home / CONFIG_FILE)

    @property
    def ca_key(self) -> Path:
        return offline_directory(self.home) / CA_KEY_FILE

    def change(self, old: str, new: str) -> None:
        """Edit the settings as an operator does."""
        text = (self.home / CONFIG_FILE).read_text()
        assert old in text
        (self.home / CONFIG_FILE).write_text(text.replace(old, new))

    def settings(self) -> BrokerSettings:
        return broker_settings(self.config.broker, self.home / "broker")

    @contextmanager
    def running(self) -> Iterator[Broker]:
        broker = Broker(self.settings(), self._installed)
        broker.start()
        try:
            yield broker
        finally:
            broker.kill()

    def hear(self, **address: Any) -> Connection:
        """Connect as the controller does; return how it went."""
        password = (self.home / "broker.password").read_text().strip()
        return first_word({"port": self.port, **address}, CONTROLLER_USER, password)


def first_word(address: dict[str, Any], username: str, password: str) -> Connection:
    """Connect, and return the first word about the connection."""
    heard: queue.Queue[Connection] = queue.Queue()
    transport = MqttTransport(
        BrokerAddress(**address), client_id="peer", username=username, password=password
    )
    transport.start(lambda _message: None, heard.put)
    try:
        return heard.get(timeout=PATIENCE_S)
    finally:
        transport.close()


@pytest.fixture
def make(tmp_path: Path, installed: Mosquitto) -> Callable[..., Fleet]:
    return lambda **options: Fleet(tmp_path, installed, **options)


def test_a_new_broker_speaks_tls_alone(make: Callable[..., Fleet]) -> None:
    fleet = make()
    with fleet.running():
        ca_file = str(fleet.home / CA_FILE)
        for host in ("127.0.0.1", "localhost"):
            assert fleet.hear(host=host, ca_file=ca_file).up
        plain = fleet.hear()
    assert not plain.up
    assert plain.reason == (
        f"the broker at 127.0.0.1:{fleet.port} ended the connection without an answer; if it "
        "speaks TLS, set ca_file"
    )


def test_old_versions_of_tls_are_refused(make: Callable[..., Fleet]) -> None:
    fleet = make()
    with fleet.running():
        for version in (ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            client = ssl.create_default_context(cafile=fleet.home / CA_FILE)
            client.set_ciphers("ALL:@SECLEVEL=0")
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                client.minimum_version = client.maximum_version = version
            with socket.create_connection(("127.0.0.1", fleet.port), PATIENCE_S) as raw:
                if version is ssl.TLSVersion.TLSv1_1:
                    with pytest.raises(OSError, match=r"alert protocol version|EOF|reset"):
                        client.wrap_socket(raw, server_hostname="127.0.0.1")
                    continue
                client.wrap_socket(raw, server_hostname="127.0.0.1").close()


def test_the_controller_itself_connects_by_tls(make: Callable[..., Fleet]) -> None:
    fleet = make(broker_host="0.0.0.0")  # noqa: S104 - its certificate is for loopback too
    with fleet.running():
        access = access_for(fleet.config)
        access.allow_enrolment("enrol-00000000", SECRET)
        access.close()
        ca_file = str(fleet.home / CA_FILE)
        address = {"port": fleet.port, "ca_file": ca_file}
        assert first_word(address, "enrol-00000000", SECRET).up
        assert first_word(address, "enrol-00000000", "another").refused


def test_nothing_readable_is_on_the_wire(make: Callable[..., Fleet]) -> None:
    fleet = make()
    with fleet.running(), Relay(fleet.port) as relay:
        assert fleet.hear(port=relay.port, ca_file=str(fleet.home / CA_FILE)).up
        password = (fleet.home / "broker.password").read_bytes().strip()
    assert len(relay.seen) > 1000, "the handshake"
    for secret in (password, CONTROLLER_USER.encode(), b"MQTT"):
        assert secret not in relay.seen


def test_a_clear_text_broker_shows_that_the_relay_sees(make: Callable[..., Fleet]) -> None:
    fleet = make(clear_text=True)
    with fleet.running(), Relay(fleet.port) as relay:
        assert fleet.hear(port=relay.port).up
    assert (fleet.home / "broker.password").read_bytes().strip() in relay.seen
    warning = warning_of(fleet.config.broker, SystemClock())
    assert warning is not None
    assert warning.startswith("CLEAR TEXT: ")


def test_a_certificate_of_somebody_else_is_refused_with_its_reason(
    make: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet = make(broker_host="0.0.0.0")  # noqa: S104 - all of loopback
    with fleet.running():
        stranger = fleet.hear(ca_file=str(Authority(tmp_path, "stranger").ca_file))
        elsewhere = fleet.hear(host="127.0.0.2", ca_file=str(fleet.home / CA_FILE))
    assert not stranger.up
    assert stranger.reason == (
        f"the certificate of the broker at 127.0.0.1:{fleet.port} is refused: unable to get local "
        "issuer certificate; ca_file must be that broker's ca.pem"
    )
    assert not elsewhere.up
    assert elsewhere.reason == (
        f"the certificate of the broker at 127.0.0.2:{fleet.port} is refused: ip address mismatch, "
        "certificate is not valid for '127.0.0.2'; it must be made for that address: broker.names "
        "in controller.toml"
    )


def test_a_broker_without_tls_is_named_when_tls_is_asked_for(
    make: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet, authority = make(clear_text=True), Authority(tmp_path, "any")
    with fleet.running():
        word = fleet.hear(ca_file=str(authority.ca_file))
    assert not word.up
    assert word.reason == (
        f"the broker at 127.0.0.1:{fleet.port} does not speak TLS, for which ca_file asks"
    )


def test_tls_that_was_asked_for_is_never_left_out(make: Callable[..., Fleet]) -> None:
    fleet = make(clear_text=True)
    fleet.change("clear_text = true", 'ca_file = "ca.pem" #')
    with pytest.raises(CertificateError, match=r"server\.pem for TLS: no such file") as caught:
        fleet.settings()
    assert "fleet broker certificate" in caught.value.remedy


@pytest.mark.parametrize("damage", ["empty", "no key", "another key", "another authority", "name"])
def test_a_certificate_that_clients_would_refuse_does_not_start(
    make: Callable[..., Fleet], tmp_path: Path, damage: str
) -> None:
    fleet = make()
    server = fleet.home / "broker" / "server.pem"
    certificate, _, _key = server.read_text().partition("-----BEGIN PRIVATE KEY-----")
    stranger = Authority(tmp_path, "stranger").issue("server")
    if damage == "another authority":
        shutil.copy(tmp_path / "stranger.pem", fleet.home / CA_FILE)
    elif damage == "name":
        fleet.change('host = "127.0.0.1"\nport = ' + str(fleet.port), 'host = "127.0.0.9"\n')
    else:
        key = stranger.key_file.read_text() if damage == "another key" else ""
        server.write_text("" if damage == "empty" else certificate + key)
    with pytest.raises(CertificateError) as caught:
        fleet.settings()
    assert "\n" not in str(caught.value)
    assert "_ssl.c" not in str(caught.value)
    assert caught.value.remedy


def test_a_certificate_of_your_own_is_used_and_left_alone(
    make: Callable[..., Fleet], tmp_path: Path
) -> None:
    fleet, authority = make(), Authority(tmp_path, "company")
    own = authority.issue("broker")
    fleet.change(
        'ca_file = "ca.pem"',
        f'ca_file = "{authority.ca_file}"\nserver_cert_file = "{own.cert_file}"\n'
        f'server_key_file = "{own.key_file}"',
    )
    with fleet.running():
        assert fleet.hear(ca_file=str(authority.ca_file)).up
    with pytest.raises(CertificateError, match="a certificate of your own"):
        renew(fleet.home)


def test_a_renewed_certificate_needs_nothing_of_the_devices(make: Callable[..., Fleet]) -> None:
    fleet = make(broker_host="0.0.0.0")  # noqa: S104 - all of loopback
    server = fleet.home / "broker" / "server.pem"
    before, ca_file = server.read_bytes(), str(fleet.home / CA_FILE)
    on_the_device = Path(ca_file).read_bytes()
    fleet.change("names = []", 'names = ["127.0.0.2"]')
    made = renew(fleet.home)
    assert made.new_authority is None
    assert made.is_used
    assert "127.0.0.2" in made.names
    assert server.read_bytes() != before
    assert server.stat().st_mode & 0o777 == 0o600
    assert Path(ca_file).read_bytes() == on_the_device
    with fleet.running():
        assert fleet.hear(ca_file=ca_file).up
        assert fleet.hear(host="127.0.0.2", ca_file=ca_file).up


def test_the_key_of_the_authority_may_be_away(make: Callable[..., Fleet], tmp_path: Path) -> None:
    fleet = make()
    server = fleet.home / "broker" / "server.pem"
    before = server.read_bytes()
    (tmp_path / "stick").mkdir()
    stick = fleet.ca_key.rename(tmp_path / "stick" / "ca.key")
    with fleet.running():
        assert fleet.hear(ca_file=str(fleet.home / CA_FILE)).up
    with pytest.raises(CertificateError, match=r"ca\.key: no such file.* name it with --ca-key"):
        renew(fleet.home)
    Authority(tmp_path, "stranger")
    ca_file = fleet.home / CA_FILE
    (tmp_path / "note.key").write_text("no key\n")
    for name, fault in (
        ("stranger.key", f"{tmp_path}/stranger.key is not the key of the authority {ca_file}"),
        ("note.key", f"{ca_file} and {tmp_path}/note.key are not a certificate and its key in PEM"),
    ):
        with pytest.raises(CertificateError) as caught:
            renew(fleet.home, tmp_path / name)
        assert caught.value.message.startswith(fault)
        assert "--ca-key FILE" in caught.value.remedy
    assert server.read_bytes() == before
    renew(fleet.home, stick)
    assert server.read_bytes() != before
    assert [path.name for path in (fleet.home / "broker").iterdir() if path.is_dir()] == []


def test_an_expiry_is_told_in_time(make: Callable[..., Fleet]) -> None:
    fleet = make()
    expires_at_s = renew(fleet.home).expires_at_s
    clock = FakeClock(at_s=expires_at_s - (WARN_DAYS + 1) * 86_400)
    assert warning_of(fleet.config.broker, clock) is None
    clock.advance(2 * 86_400)
    warning = warning_of(fleet.config.broker, clock)
    assert warning is not None
    assert "expires in 59 days" in warning


def old_home(fleet: Fleet) -> None:
    """Make a directory as it was before TLS was the default."""
    fleet.change("clear_text = true", "#")


def test_a_directory_from_before_works_on_and_moves_to_tls(make: Callable[..., Fleet]) -> None:
    fleet = make(clear_text=True)
    old_home(fleet)
    with fleet.running():
        assert fleet.hear().up
    warning = warning_of(fleet.config.broker, SystemClock())
    assert warning is not None
    assert warning.startswith("CLEAR TEXT: ")
    assert "fleet broker certificate" in warning
    made = renew(fleet.home)
    assert made.new_authority == fleet.home / CA_FILE
    assert made.new_authority.stat().st_mode & 0o777 == 0o644, "the devices get it"
    assert not made.is_used
    with fleet.running():
        assert fleet.hear().up, "the settings say nothing of TLS yet"
    fleet.change("[broker]\n", '[broker]\nca_file = "ca.pem"\n')
    with fleet.running():
        assert not fleet.hear().up
        assert fleet.hear(ca_file=str(fleet.home / CA_FILE)).up
    assert warning_of(fleet.config.broker, SystemClock()) is None


def test_an_authority_is_never_made_over_another(make: Callable[..., Fleet]) -> None:
    fleet = make()
    (fleet.home / CA_FILE).unlink()
    key = fleet.ca_key.read_bytes()
    with pytest.raises(CertificateError, match="exists, but its authority"):
        renew(fleet.home)
    assert fleet.ca_key.read_bytes() == key


# A lookup of the third leads to loopback, but the next one could lead elsewhere.
@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid", "127.1"])
def test_no_password_of_the_controller_leaves_the_machine_in_the_clear(
    make: Callable[..., Fleet], host: str
) -> None:
    fleet = make(clear_text=True)
    old_home(fleet)
    fleet.change('[broker]\nhost = "127.0.0.1"', f'[broker]\nhost = "{host}"')
    with pytest.raises(ClearTextError, match=f"the broker at {host} may be on another"):
        connection(fleet.config)
    config = msgspec.structs.replace(
        fleet.config,
        broker=msgspec.structs.replace(
            fleet.config.broker, ca_file=str(Authority(fleet.home, "theirs").ca_file)
        ),
    )
    connection(config)


@pytest.mark.parametrize("char", ["\n", "\r"])
def test_line_breaks_in_the_names_of_files_cannot_add_settings(tmp_path: Path, char: str) -> None:
    file = tmp_path / f"x{char}allow_anonymous true"
    settings = BrokerSettings(
        directory=tmp_path, certificate=ServerFiles(cert_file=file, key_file=file)
    )
    with pytest.raises(BrokerDirectoryError, match="line break"):
        config_text(settings, Path("/plugin.so"))

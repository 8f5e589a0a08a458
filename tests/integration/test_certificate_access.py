"""What a device may do by its certificate, proven with a real Mosquitto."""

from __future__ import annotations

import json
import queue
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho  # noqa: TID251 - sees the broker's refusals, which our transport hides
import pytest
from paho.mqtt.enums import CallbackAPIVersion  # noqa: TID251 - as above

from agent.link.tls_key import TlsKey
from controller.app.home import CA_FILE, CONFIG_FILE
from controller.app.new_home import HomeOptions, create_home
from controller.broker.access import CLIENTS_AT_ONCE, MosquittoAccess, access_for
from controller.broker.accounts import ACCOUNTS_FILE
from controller.broker.certificates import make_authority
from controller.broker.device_authority import DeviceAuthority
from controller.broker.errors import BrokerAccountError
from controller.broker.install import locate
from controller.broker.listener import broker_settings
from controller.broker.mosquitto import Broker
from controller.broker.rights import SHUT_OUT_ROLE, shut_out_acls
from controller.certificate_settings import DeviceCertificatesConfig
from controller.config import ControllerConfig, load_config
from examples.digits.box import free_port
from tests.simulators.clock import FakeClock
from tests.simulators.patience import PATIENCE_S, until
from wire import topics
from wire.broker_address import BrokerAddress, tls_context
from wire.clock import SystemClock
from wire.mqtt import MqttTransport
from wire.transport import Connection, Received

pytestmark = pytest.mark.broker
QUIET_S = 0.3
NO_SUBSCRIBERS = 0x10
NOT_AUTHORIZED = 0x87
ADMINISTRATIVE = 0x98


class Fleet:
    """A data directory as `fleet init` makes it, its broker, and the controller's access."""

    def __init__(self, directory: Path) -> None:
        found = locate(directory / "cache")
        if found is None:
            pytest.skip("Mosquitto is not installed")
        self.home = directory / "home"
        options = HomeOptions(broker_port=free_port(), device_port=free_port())
        create_home(self.home, options)
        self.config: ControllerConfig = load_config(self.home / CONFIG_FILE)
        assert self.config.device_certificates is not None
        self.certificates: DeviceCertificatesConfig = self.config.device_certificates
        settings = broker_settings(self.config.broker, self.home / "broker", self.certificates)
        self.broker = Broker(settings, found)
        self.broker.start()
        self.access = access_for(self.config)
        assert isinstance(self.access, MosquittoAccess)

    @property
    def accounts(self) -> bytes:
        return (self.home / "broker" / ACCOUNTS_FILE).read_bytes()

    def certify(
        self, name: str, *, clock: Any = None, files: DeviceCertificatesConfig | None = None
    ) -> Shown:
        """Return a certificate with that name, as the controller signs it."""
        folder = self.home.parent / f"{name}-{secrets.token_hex(4)}"
        folder.mkdir()
        key = TlsKey(folder)
        authority = DeviceAuthority(files or self.certificates, clock or SystemClock())
        key.save(authority.sign(name, key.request()).pem)
        return Shown(name=name, key=key, ca_file=self.home / CA_FILE, port=self.certificates.port)

    def controller(self) -> Peer:
        """Return a client that may do what the controller may."""
        address = BrokerAddress(port=self.config.broker.port, ca_file=self.config.broker.ca_file)
        password = (self.home / "broker.password").read_text().strip()
        return Peer(address, username=self.config.broker.user or "", password=password)


@dataclass(frozen=True)
class Shown:
    """A certificate and its key."""

    name: str
    key: TlsKey
    ca_file: Path
    port: int

    @property
    def address(self) -> BrokerAddress:
        return BrokerAddress(
            port=self.port,
            ca_file=str(self.ca_file),
            cert_file=str(self.key.cert_file),
            key_file=str(self.key.key_file),
        )


class Peer:
    """A client that sees every answer of the broker, refusals too."""

    def __init__(
        self, address: BrokerAddress, *, client_id: str = "", username: str = "", password: str = ""
    ) -> None:
        self.answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id or f"peer-{secrets.token_hex(8)}",
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        client.tls_set_context(tls_context(address))
        client.username_pw_set(username or None, password or None)
        client.on_connect = lambda _c, _d, _f, code, _p: self.answers.put(("connect", code.value))
        client.on_disconnect = lambda _c, _d, _f, code, _p: self.answers.put(("end", code.value))
        client.on_subscribe = lambda _c, _d, _m, codes, _p: self.answers.put(
            ("subscribe", codes[0].value)
        )
        client.on_publish = lambda _c, _d, _m, code, _p: self.answers.put(("publish", code.value))
        client.on_message = lambda _c, _d, m: self.answers.put(
            ("message", (m.topic, bytes(m.payload)))
        )
        self._client = client
        client.connect(address.host, address.port)
        client.loop_start()
        assert self.next("connect") == 0

    def next(self, kind: str) -> Any:
        while True:
            found, value = self.answers.get(timeout=PATIENCE_S)
            if found == kind:
                return value

    def subscribe(self, topic_filter: str) -> int:
        self._client.subscribe(topic_filter, qos=1)
        return int(self.next("subscribe"))

    def publish(self, topic: str, payload: bytes = b"x") -> int:
        self._client.publish(topic, payload, qos=1)
        return int(self.next("publish"))

    def hears_nothing(self) -> bool:
        try:
            while True:
                if self.answers.get(timeout=QUIET_S)[0] == "message":
                    return False
        except queue.Empty:
            return True

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path)
    yield fleet
    fleet.access.close()
    fleet.broker.kill()


MakePeer = Callable[[Shown], Peer]


@pytest.fixture
def peer() -> Iterator[MakePeer]:
    made: list[Peer] = []

    def make(shown: Shown, **options: str) -> Peer:
        made.append(Peer(shown.address, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def controller(fleet: Fleet) -> Iterator[Peer]:
    made = fleet.controller()
    yield made
    made.close()


def first_word(shown: Shown, address: BrokerAddress | None = None) -> Connection:
    """Connect as an agent does, and return the first word about the connection."""
    heard: queue.Queue[Connection] = queue.Queue()
    client_id = f"x-{secrets.token_hex(8)}"
    transport = MqttTransport(address or shown.address, client_id=client_id, username=shown.name)
    transport.start(lambda _message: None, heard.put)
    try:
        return heard.get(timeout=PATIENCE_S)
    finally:
        transport.close()


def test_a_device_uses_its_own_topics_by_its_certificate(
    fleet: Fleet, peer: MakePeer, controller: Peer
) -> None:
    device = peer(fleet.certify("cam-1"))
    assert controller.subscribe(topics.ALL_UP) == 1
    assert device.subscribe(topics.all_down("cam-1")) == 1
    for kind in topics.UP_KINDS:
        assert device.publish(topics.up("cam-1", kind), b"mine") == 0
        assert controller.next("message") == (topics.up("cam-1", kind), b"mine")
    assert controller.publish(topics.down("cam-1", "desired"), b"desired") == 0
    assert device.next("message") == (topics.down("cam-1", "desired"), b"desired")


def test_a_certificate_opens_no_foreign_topic(
    fleet: Fleet, peer: MakePeer, controller: Peer
) -> None:
    device = peer(fleet.certify("cam-1"))
    for topic_filter in ("#", topics.all_down("cam-2"), topics.ALL_UP, topics.CASTS, "$SYS/#"):
        device.subscribe(topic_filter)  # Mosquitto 2.0 cannot forbid it
    for topic in (
        topics.down("cam-2", "desired"),
        topics.cast("0" * 32),
        topics.enrol_reply("cam-1"),
        topics.CONTROLLER_STARTS,
    ):
        controller.publish(topic, b"not for cam-1")
    assert device.hears_nothing()
    for topic in (
        topics.up("cam-2", "hello"),
        topics.down("cam-1", "desired"),
        topics.down("cam-2", "desired"),
        topics.enrol_request("cam-1"),
        topics.cast("0" * 32),
        topics.CONTROLLER_STARTS,
        "$CONTROL/dynamic-security/v1",
        "elsewhere",
    ):
        assert device.publish(topic) == NOT_AUTHORIZED


def test_letting_a_device_in_writes_nothing_at_the_broker(fleet: Fleet) -> None:
    before = fleet.accounts
    for number in range(3):
        fleet.access.allow_certificate(f"cam-{number}")
    assert fleet.accounts == before


def test_who_the_device_is_stands_in_the_certificate_whatever_it_says(
    fleet: Fleet, controller: Peer
) -> None:
    device = Peer(fleet.certify("cam-1").address, username="cam-2", password="anything")
    try:
        assert device.publish(topics.up("cam-2", "hello")) == NOT_AUTHORIZED
        assert controller.subscribe(topics.ALL_UP) == 1
        assert device.publish(topics.up("cam-1", "hello")) == 0
    finally:
        device.close()


def test_no_device_ends_the_session_of_another_that_connects_as_agents_do(
    fleet: Fleet, peer: Callable[..., Peer]
) -> None:
    first = peer(fleet.certify("cam-1"), client_id=f"cam-1:{'0' * 32}")
    for guess in ("cam-1", "cam-1:", f"cam-1:{'1' * 32}"):
        peer(fleet.certify("cam-2"), client_id=guess)
    assert first.publish(topics.up("cam-1", "hello")) in {0, NO_SUBSCRIBERS}
    assert first.answers.empty()


def test_a_certificate_that_has_ended_is_refused_and_said_to_be(fleet: Fleet) -> None:
    long_ago = FakeClock(SystemClock().now_s() - 8 * 86_400)
    heard = first_word(fleet.certify("cam-1", clock=long_ago))
    assert (heard.up, heard.refused) == (False, True)
    assert "certificate expired" in heard.reason


def test_a_certificate_of_another_authority_is_refused(fleet: Fleet, tmp_path: Path) -> None:
    other = make_authority(tmp_path, "devices")
    (tmp_path / "other.pem").write_bytes(other.certificate)
    (tmp_path / "other.key").write_bytes(other.key)
    files = DeviceCertificatesConfig(
        ca_file=str(tmp_path / "other.pem"), key_file=str(tmp_path / "other.key")
    )
    heard = first_word(fleet.certify("cam-1", files=files))
    assert (heard.up, heard.refused) == (False, True)


def test_the_brokers_own_certificate_opens_nothing(fleet: Fleet) -> None:
    server = str(fleet.home / "broker" / "server.pem")
    shown = fleet.certify("cam-1")
    address = BrokerAddress(
        port=shown.port, ca_file=str(shown.ca_file), cert_file=server, key_file=server
    )
    assert not first_word(shown, address).up


def test_without_a_certificate_nobody_gets_in_there(fleet: Fleet) -> None:
    shown = fleet.certify("cam-1")
    address = BrokerAddress(port=shown.port, ca_file=str(shown.ca_file))
    heard = first_word(shown, address)
    assert (heard.up, heard.refused) == (False, True)


def test_a_certificate_opens_no_account_where_passwords_do(fleet: Fleet) -> None:
    shown = fleet.certify("cam-1")
    door = Shown(shown.name, shown.key, shown.ca_file, fleet.config.broker.port)
    assert first_word(door).refused


def test_a_device_that_is_shut_out_is_cut_off_at_once_and_stays_so(
    fleet: Fleet, peer: MakePeer, controller: Peer
) -> None:
    shown = fleet.certify("cam-1")
    device, neighbour = peer(shown), peer(fleet.certify("cam-2"))
    fleet.access.refuse_device("cam-1")
    assert device.next("end") == ADMINISTRATIVE
    for _ in range(2):
        again = peer(shown)
        assert again.publish(topics.up("cam-1", "hello")) == NOT_AUTHORIZED
        assert again.subscribe(topics.all_down("cam-1")) == NOT_AUTHORIZED
        controller.publish(topics.down("cam-1", "desired"))
        assert again.hears_nothing()
        assert neighbour.publish(topics.up("cam-2", "hello")) in {0, NO_SUBSCRIBERS}
        fleet.access.refuse_device("cam-1")  # again


def test_what_was_shut_out_is_so_after_a_restart_of_the_broker(
    fleet: Fleet, peer: MakePeer
) -> None:
    shown = fleet.certify("cam-1")
    fleet.access.refuse_device("cam-1")
    fleet.broker.kill()
    fleet.broker.start()
    assert peer(shown).publish(topics.up("cam-1", "hello")) == NOT_AUTHORIZED


def test_the_broker_tells_who_is_shut_out_however_many_accounts_it_has(fleet: Fleet) -> None:
    """The controller need not say it again then, for which the broker writes all of them."""
    assert fleet.access.refused_devices() == frozenset()
    path = fleet.home / "broker" / ACCOUNTS_FILE
    fleet.broker.kill()
    document = json.loads(path.read_bytes())
    many = {f"device-{number:056}" for number in range(2 * CLIENTS_AT_ONCE + 7)}  # the longest
    document["roles"].append({"rolename": SHUT_OUT_ROLE, "acls": shut_out_acls()})
    roles = [{"rolename": SHUT_OUT_ROLE}]
    document["clients"] += [{"username": name, "roles": roles} for name in many]
    path.write_text(json.dumps(document))
    fleet.broker.start()
    fleet.access.allow_device("cam-1", "a password of the device", "cam-1")
    fleet.access.refuse_device("cam-2")
    assert fleet.access.refused_devices() == many | {"cam-2"}
    fleet.access.allow_certificate("cam-2")
    assert fleet.access.refused_devices() == many


def test_a_device_that_is_let_in_again_uses_its_topics(fleet: Fleet, peer: MakePeer) -> None:
    shown = fleet.certify("cam-1")
    fleet.access.refuse_device("cam-1")
    shut_out = peer(shown)
    fleet.access.allow_certificate("cam-1")
    assert shut_out.next("end") == ADMINISTRATIVE, "so that it begins anew"
    assert peer(shown).publish(topics.up("cam-1", "hello")) in {0, NO_SUBSCRIBERS}


def test_shutting_out_concerns_an_account_and_a_certificate_alike(
    fleet: Fleet, peer: MakePeer
) -> None:
    """So a device that has both, as while a fleet moves to certificates, keeps neither."""
    fleet.access.allow_device("cam-1", "a password of the device", "cam-1")
    shown = fleet.certify("cam-1")
    fleet.access.refuse_device("cam-1")
    assert peer(shown).publish(topics.up("cam-1", "hello")) == NOT_AUTHORIZED
    fleet.access.restore_device("cam-1")
    assert peer(shown).publish(topics.up("cam-1", "hello")) in {0, NO_SUBSCRIBERS}


def test_no_certificate_gets_the_rights_of_the_controller(fleet: Fleet) -> None:
    with pytest.raises(BrokerAccountError, match="reserved"):
        fleet.access.allow_certificate("_controller")


def test_who_may_only_enrol_sends_nothing_as_a_device(fleet: Fleet) -> None:
    name, password = "enrol-0011aabb", "secret of a token"
    fleet.access.allow_enrolment(name, password)
    address = BrokerAddress(port=fleet.config.broker.port, ca_file=fleet.config.broker.ca_file)
    stranger = Peer(address, username=name, password=password)
    # The patterns of certificates would let a device of that name do so.
    for kind in topics.UP_KINDS:
        assert stranger.publish(topics.up(name, kind)) == NOT_AUTHORIZED
    assert stranger.publish(topics.enrol_request("cam-1")) == NO_SUBSCRIBERS
    stranger.close()


def test_a_cast_is_heard_by_its_name_at_the_other_door(fleet: Fleet, controller: Peer) -> None:
    fleet.access.allow_enrolment("enrol-00000000", "a password of the fleet")
    name = secrets.token_hex(16)
    address = BrokerAddress(port=fleet.config.broker.port, ca_file=fleet.config.broker.ca_file)
    listener = Peer(address, username="enrol-00000000", password="a password of the fleet")
    try:
        for everything in (topics.CASTS, f"{topics.PREFIX}/cast/#", "#", topics.ENROL_REPLIES):
            assert listener.subscribe(everything) == NOT_AUTHORIZED
        assert listener.subscribe(topics.cast(name)) == 1
        controller.publish(topics.cast(name), b"a piece")
        assert listener.next("message") == (topics.cast(name), b"a piece")
        assert listener.publish(topics.up("cam-1", "hello")) == NOT_AUTHORIZED
    finally:
        listener.close()


def test_an_agents_transport_hears_that_it_is_shut_out(fleet: Fleet) -> None:
    shown = fleet.certify("cam-1")
    heard: queue.Queue[Connection] = queue.Queue()
    transport = MqttTransport(shown.address, client_id="cam-1:x", username="cam-1")
    received: list[Received] = []
    transport.start(received.append, heard.put)
    try:
        assert heard.get(timeout=PATIENCE_S).up
        fleet.access.refuse_device("cam-1")
        assert not heard.get(timeout=PATIENCE_S).up
        assert heard.get(timeout=PATIENCE_S).up, "Mosquitto lets a valid certificate connect"
        presence = topics.up("cam-1", "presence")
        assert transport.publish(presence, b"{}")
        until(lambda: transport.is_denied(presence), "the refusal")
    finally:
        transport.close()

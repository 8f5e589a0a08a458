"""What accounts may do, proven with a real Mosquitto and its dynamic-security plugin."""

from __future__ import annotations

import json
import queue
import secrets
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho  # noqa: TID251 - sees the broker's refusals, which our transport hides
import pytest
from paho.mqtt.enums import CallbackAPIVersion  # noqa: TID251 - as above

from controller.app.new_home import HomeOptions, create_home
from controller.broker.access import CONTROLLER_USER, MosquittoAccess, OpenAccess, access_for
from controller.broker.accounts import ACCOUNTS_FILE
from controller.broker.connection import connection
from controller.broker.errors import BrokerAccessError, BrokerAccountError
from controller.broker.install import Mosquitto, locate
from controller.broker.listener import broker_settings
from controller.broker.mosquitto import Broker, BrokerSettings
from controller.config import load_config
from examples.digits.box import free_port
from tests.simulators.patience import PATIENCE_S, finished, until
from wire import topics
from wire.broker_address import BrokerAddress
from wire.enrolment import client_id
from wire.errors import TopicError
from wire.mqtt import MqttTransport

pytestmark = pytest.mark.broker
QUIET_S = 0.3
NO_SUBSCRIBERS = 0x10
NOT_AUTHORIZED = 0x87
ADMINISTRATIVE = 0x98


@dataclass
class Local:
    """A broker with accounts, and the controller's access to it."""

    broker: Broker
    home: Path
    port: int
    access: MosquittoAccess = field(init=False)

    def __post_init__(self) -> None:
        self.access = self.connect()

    @property
    def password(self) -> str:
        return (self.home / "broker.password").read_text().strip()

    def connect(self, **options: Any) -> MosquittoAccess:
        transport = MqttTransport(
            BrokerAddress(port=self.port),
            client_id=f"access-{secrets.token_hex(4)}",
            username=CONTROLLER_USER,
            password=options.pop("password", self.password),
        )
        return MosquittoAccess(transport, **options)


@pytest.fixture
def installed(tmp_path: Path) -> Mosquitto:
    found = locate(tmp_path / "cache")
    if found is None:
        pytest.skip("Mosquitto is not installed")
    return found


@pytest.fixture
def local(tmp_path: Path, installed: Mosquitto) -> Iterator[Local]:
    port = free_port()
    home = tmp_path / "home"
    create_home(home, HomeOptions(broker_port=port, clear_text=True))
    broker = Broker(BrokerSettings(directory=home / "broker", port=port), installed)
    broker.start()
    local = Local(broker=broker, home=home, port=port)
    yield local
    local.access.close()
    broker.kill()


class Peer:
    """A client that sees every answer of the broker, refusals too."""

    def __init__(self, port: int, username: str, password: str, client_id: str = "") -> None:
        self.answers: queue.Queue[tuple[str, Any]] = queue.Queue()
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=client_id or f"peer-{secrets.token_hex(4)}",
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        client.username_pw_set(username, password)
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
        client.connect("127.0.0.1", port)
        client.loop_start()
        self.connect_code = self.next("connect")

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
def peer(local: Local) -> Iterator[Callable[[str, str], Peer]]:
    made: list[Peer] = []

    def make(username: str, password: str) -> Peer:
        # A device's account is bound to its client identifier; the controller has several.
        client_id = username if username.startswith("cam-") else ""
        made.append(Peer(local.port, username, password, client_id))
        return made[-1]

    yield make
    for each in made:
        each.close()


MakePeer = Callable[[str, str], Peer]


def test_controller_hears_devices_and_enrolments(local: Local, peer: MakePeer) -> None:
    controller = peer(CONTROLLER_USER, local.password)
    assert controller.subscribe(topics.ALL_UP) == 1
    assert controller.subscribe(topics.ENROL_REQUESTS) == 1
    assert controller.subscribe(f"$share/controllers/{topics.ALL_UP}") == 1
    assert controller.subscribe("#") == NOT_AUTHORIZED
    assert controller.subscribe("$SYS/#") == NOT_AUTHORIZED


def test_device_uses_its_own_topics(local: Local, peer: MakePeer) -> None:
    local.access.allow_device("cam-1", "secret-1", "cam-1")
    controller = peer(CONTROLLER_USER, local.password)
    controller.subscribe(topics.ALL_UP)
    device = peer("cam-1", "secret-1")
    assert device.connect_code == 0
    assert device.subscribe(topics.all_down("cam-1")) == 1
    assert device.publish(topics.up("cam-1", "hello"), b"hello") == 0
    assert controller.next("message") == (topics.up("cam-1", "hello"), b"hello")
    assert controller.publish(topics.down("cam-1", "desired"), b"desired") == 0
    assert device.next("message") == (topics.down("cam-1", "desired"), b"desired")


@contextmanager
def connected(local: Local) -> Iterator[MqttTransport]:
    """Connect as a device does."""
    local.access.allow_device("cam-1", "secret-1", "cam-1")
    address = BrokerAddress(port=local.port)
    device = MqttTransport(address, client_id="cam-1", username="cam-1", password="secret-1")
    up = threading.Event()
    device.start(lambda _r: None, lambda connection: up.set() if connection.up else None)
    try:
        assert up.wait(PATIENCE_S)
        yield device
    finally:
        device.close()


def test_a_device_knows_what_the_broker_refuses_it(local: Local) -> None:
    own, foreign = topics.up("cam-1", "hello"), topics.up("cam-2", "hello")
    with connected(local) as device:
        assert device.publish(foreign, b"x")
        assert device.publish(own, b"x")
        until(lambda: not device.is_waiting(own), "an acknowledgement")
        assert device.is_denied(foreign)
        assert not device.is_denied(own)


def test_a_device_knows_that_no_controller_heard_it(local: Local) -> None:
    hello = topics.up("cam-1", "hello")
    with connected(local) as device:
        assert not device.found_nobody(hello)
        assert device.publish(hello, b"x")
        until(lambda: device.found_nobody(hello), "the broker's word")
        controller = Peer(local.port, CONTROLLER_USER, local.password)
        assert controller.subscribe(hello) == 1
        assert device.publish(hello, b"x")
        until(lambda: not device.found_nobody(hello), "the broker's word")
        controller.close()


def test_device_is_refused_foreign_topics(local: Local, peer: MakePeer) -> None:
    local.access.allow_device("cam-1", "secret-1", "cam-1")
    local.access.allow_device("cam-2", "secret-2", "cam-2")
    controller = peer(CONTROLLER_USER, local.password)
    controller.subscribe(topics.ALL_UP)
    second = peer("cam-2", "secret-2")
    second.subscribe(topics.all_down("cam-2"))
    first = peer("cam-1", "secret-1")
    for foreign in (
        topics.all_down("cam-2"),
        f"{topics.PREFIX}/dev/+/down/#",
        topics.ALL_UP,
        f"{topics.PREFIX}/dev/cam-1/up/#",
        topics.ENROL_REQUESTS,
        "#",
        "$CONTROL/dynamic-security/v1/response",
        f"$share/g/{topics.all_down('cam-2')}",
    ):
        assert first.subscribe(foreign) == NOT_AUTHORIZED, foreign
    for foreign in (
        topics.up("cam-2", "report"),
        topics.down("cam-2", "desired"),
        topics.down("cam-1", "desired"),
        f"{topics.PREFIX}/dev/cam-1/up/invented",
        f"{topics.PREFIX}/dev/cam-1/up/hello/more",
        topics.enrol_reply("cam-2"),
        "$CONTROL/dynamic-security/v1",
    ):
        assert first.publish(foreign) == NOT_AUTHORIZED, foreign
    assert controller.hears_nothing()
    assert second.hears_nothing()


def test_a_device_listens_to_casts_by_their_names_alone(local: Local, peer: MakePeer) -> None:
    local.access.allow_device("cam-1", "secret-1", "cam-1")
    local.access.allow_device("cam-2", "secret-2", "cam-2")
    controller = peer(CONTROLLER_USER, local.password)
    told, other = peer("cam-1", "secret-1"), peer("cam-2", "secret-2")
    cast = topics.cast("0a" * 16)
    for wider in (
        topics.CASTS,
        f"{topics.PREFIX}/cast/#",
        f"{topics.PREFIX}/cast/+/#",
        f"{topics.PREFIX}/cast",
        f"{topics.PREFIX}/+/{'0a' * 16}",
        f"+/v1/cast/{'0a' * 16}",
        "+/v1/cast/+",
        "+/+/+/+",
        f"{topics.PREFIX}/#",
        "#",
        f"{cast}/#",
        f"{cast}/more",
        f"$share/g/{cast}",
        f"$share/g/{topics.CASTS}",
    ):
        assert other.subscribe(wider) == NOT_AUTHORIZED, wider
    assert told.subscribe(cast) == 1
    assert other.subscribe(topics.cast("0b" * 16)) == 1
    assert controller.publish(cast, b"piece") == 0
    assert told.next("message") == (cast, b"piece")
    assert other.hears_nothing()
    assert told.publish(cast, b"forged") == NOT_AUTHORIZED


def test_device_cannot_take_anothers_connection(local: Local, peer: MakePeer) -> None:
    own = client_id("cam-1", "0" * 32)
    local.access.allow_device("cam-1", "secret-1", own)
    local.access.allow_device("cam-2", "secret-2", "cam-2")
    local.access.allow_device("cam-2", "secret-2", "cam-2")
    victim = Peer(local.port, "cam-1", "secret-1", client_id=own)
    for taken in (own, "cam-1", CONTROLLER_USER, f"{CONTROLLER_USER}-1"):
        thief = Peer(local.port, "cam-2", "secret-2", client_id=taken)
        assert thief.connect_code == NOT_AUTHORIZED
        thief.close()
    guess = Peer(local.port, "cam-1", "secret-1", client_id="cam-1")
    assert guess.connect_code == NOT_AUTHORIZED
    guess.close()
    assert victim.publish(topics.up("cam-1", "hello")) == NO_SUBSCRIBERS
    victim.close()


def test_a_token_does_not_end_the_connection_of_a_device_or_a_controller(
    local: Local, peer: MakePeer
) -> None:
    own = client_id("cam-1", "0" * 32)
    local.access.allow_device("cam-1", "secret-1", own)
    local.access.allow_enrolment("enrol-0011aabb", "token")
    config = load_config(local.home / "controller.toml")
    controller, ended = connection(config), threading.Event()
    up = threading.Event()
    controller.start(lambda _r: None, lambda c: up.set() if c.up else ended.set())
    assert up.wait(PATIENCE_S)
    victim = Peer(local.port, "cam-1", "secret-1", client_id=own)
    names = ("cam-1", config.broker.client_id, f"{config.broker.client_id}-access", CONTROLLER_USER)
    for name in names:
        thief = Peer(local.port, "enrol-0011aabb", "token", client_id=name)
        assert thief.connect_code == 0
        thief.close()
    assert victim.publish(topics.up("cam-1", "hello")) == NO_SUBSCRIBERS
    assert controller.publish(topics.down("cam-1", "desired"), b"x")
    assert not ended.is_set()
    controller.close()
    victim.close()


def test_enrol_user_may_only_ask_and_hear(local: Local, peer: MakePeer) -> None:
    local.access.allow_enrolment("enrol-0011aabb", "token")
    controller = peer(CONTROLLER_USER, local.password)
    controller.subscribe(topics.ENROL_REQUESTS)
    newcomer = peer("enrol-0011aabb", "token")
    assert newcomer.subscribe(topics.enrol_reply("cam-9")) == 1
    assert newcomer.publish(topics.enrol_request("cam-9"), b"ask") == 0
    assert controller.next("message") == (topics.enrol_request("cam-9"), b"ask")
    controller.publish(topics.enrol_reply("cam-9"), b"reply")
    assert newcomer.next("message") == (topics.enrol_reply("cam-9"), b"reply")
    assert newcomer.publish(topics.enrol_reply("cam-9")) == NOT_AUTHORIZED
    assert newcomer.publish(topics.up("cam-9", "hello")) == NOT_AUTHORIZED
    # Others' requests hold their tokens and passwords.
    assert newcomer.subscribe(topics.ENROL_REQUESTS) == NOT_AUTHORIZED
    assert newcomer.subscribe(topics.all_down("cam-9")) == NOT_AUTHORIZED


def test_end_of_enrolment(local: Local, peer: MakePeer) -> None:
    local.access.allow_enrolment("enrol-0011aabb", "token")
    newcomer = peer("enrol-0011aabb", "token")
    local.access.end_enrolment("enrol-0011aabb")
    newcomer.next("end")
    assert peer("enrol-0011aabb", "token").connect_code == NOT_AUTHORIZED
    local.access.end_enrolment("enrol-0011aabb")


def test_refused_device_is_cut_off_and_may_come_back(local: Local, peer: MakePeer) -> None:
    local.access.allow_device("cam-1", "secret-1", "cam-1")
    device = peer("cam-1", "secret-1")
    local.access.refuse_device("cam-1")
    assert device.next("end") == ADMINISTRATIVE
    assert peer("cam-1", "secret-1").connect_code != 0
    local.access.refuse_device("cam-1")
    local.access.restore_device("cam-1")
    assert peer("cam-1", "secret-1").connect_code == 0


def test_repeated_calls_bring_the_account_to_what_was_asked(local: Local, peer: MakePeer) -> None:
    local.access.allow_device("cam-1", "old", "cam-1")
    local.access.refuse_device("cam-1")
    local.access.allow_device("cam-1", "new", "cam-1")
    local.access.allow_device("cam-1", "new", "cam-1")
    assert peer("cam-1", "old").connect_code != 0
    device = peer("cam-1", "new")
    assert device.connect_code == 0
    assert device.subscribe(topics.all_down("cam-1")) == 1
    local.access.allow_enrolment("enrol-0011aabb", "one")
    local.access.allow_enrolment("enrol-0011aabb", "two")
    assert peer("enrol-0011aabb", "two").connect_code == 0


def test_accounts_survive_a_killed_broker(local: Local, peer: MakePeer) -> None:
    local.access.allow_device("cam-1", "secret-1", "cam-1")
    local.access.allow_device("cam-2", "secret-2", "cam-2")
    local.access.refuse_device("cam-2")
    local.broker.kill()
    local.broker.start()
    assert peer("cam-1", "secret-1").connect_code == 0
    assert peer("cam-2", "secret-2").connect_code != 0
    local.access.allow_device("cam-3", "secret-3", "cam-3")
    assert peer("cam-3", "secret-3").connect_code == 0


def test_passwords_are_hashed_in_a_private_file(local: Local) -> None:
    local.access.allow_device("cam-1", "secret-that-is-not-stored", "cam-1")
    path = local.home / "broker" / ACCOUNTS_FILE
    text = path.read_text()
    assert "secret-that-is-not-stored" not in text
    assert local.password not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(text)["defaultACLAccess"]["publishClientReceive"] is False


def test_another_password_in_the_settings_ends_the_stolen_one(
    local: Local, installed: Mosquitto, peer: MakePeer
) -> None:
    local.access.allow_device("cam-1", "secret-1", "cam-1")
    stolen = local.password
    (local.home / "broker.password").write_text(f"{secrets.token_urlsafe(32)}\n")
    local.broker.kill()
    config = load_config(local.home / "controller.toml").broker
    again = Broker(broker_settings(config, local.home / "broker"), installed)
    again.start()
    try:
        assert peer(CONTROLLER_USER, stolen).connect_code == NOT_AUTHORIZED
        assert peer("cam-1", "secret-1").connect_code == 0
        access = local.connect()
        access.allow_device("cam-2", "secret-2", "cam-2")  # with all the rights of before
        access.close()
    finally:
        again.stop()
    assert stat.S_IMODE((local.home / "broker" / ACCOUNTS_FILE).stat().st_mode) == 0o600


def test_nobody_comes_in_without_an_account(local: Local, peer: MakePeer) -> None:
    assert peer("", "").connect_code == NOT_AUTHORIZED
    assert peer(CONTROLLER_USER, "guess").connect_code == NOT_AUTHORIZED


@pytest.mark.parametrize("name", ["enrol-0011aabb", "_controller", "a/b", "+", "#", ""])
def test_names_of_other_accounts_are_no_devices(local: Local, name: str) -> None:
    with pytest.raises((BrokerAccountError, TopicError)):
        local.access.allow_device(name, "x", name)
    with pytest.raises((BrokerAccountError, TopicError)):
        local.access.refuse_device(name)


def test_no_device_gets_the_account_of_a_controller_with_another_name(
    tmp_path: Path, installed: Mosquitto
) -> None:
    home, port = tmp_path / "home", free_port()
    create_home(home, HomeOptions(broker_port=port, clear_text=True))
    for path in (home / "controller.toml", home / "broker" / "dynamic-security.json"):
        path.write_text(path.read_text().replace(f'"{CONTROLLER_USER}"', '"boss"'))
    broker = Broker(BrokerSettings(directory=home / "broker", port=port), installed)
    broker.start()
    access = access_for(load_config(home / "controller.toml"))
    try:
        access.allow_device("cam-1", "pw", "cam-1")
        with pytest.raises(BrokerAccountError, match="reserved for another account"):
            access.allow_device("boss", "pw", "boss")
        with pytest.raises(BrokerAccountError, match="reserved for another account"):
            access.refuse_device("boss")
        access.allow_device("cam-2", "pw", "cam-2")
    finally:
        access.close()
        broker.kill()


def test_no_account_to_restore(local: Local) -> None:
    with pytest.raises(BrokerAccountError, match=r"client not found; .*enrol again"):
        local.access.restore_device("cam-1")


def test_broker_away_is_a_retryable_error(local: Local) -> None:
    local.access.allow_device("cam-1", "secret-1", "cam-1")
    local.broker.kill()
    impatient = local.connect(timeout_s=0.2)
    with pytest.raises(BrokerAccessError, match="cannot be reached") as caught:
        impatient.refuse_device("cam-1")
    assert caught.value.retryable
    impatient.close()


def test_wrong_password_of_the_controller_is_said(local: Local) -> None:
    access = local.connect(password="wrong", timeout_s=0.5)

    def is_said() -> bool:
        with pytest.raises(BrokerAccessError) as caught:
            access.end_enrolment("enrol-0011aabb")
        return "refused the controller's own account" in str(caught.value)

    until(is_said, "the broker's refusal")
    access.close()


def test_two_controllers_do_not_take_each_others_answers(local: Local) -> None:
    other = local.connect()
    faults: list[Exception] = []

    def enrol(access: MosquittoAccess, name: str) -> None:
        try:
            for number in range(20):
                access.allow_device(f"{name}-{number}", "secret", f"{name}-{number}")
        except BrokerAccountError as exc:
            faults.append(exc)

    threads = [
        threading.Thread(target=enrol, args=(access, name))
        for access, name in ((local.access, "a"), (other, "b"), (local.access, "c"))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        finished(thread)
    other.close()
    assert faults == []
    accounts = json.loads((local.home / "broker" / ACCOUNTS_FILE).read_text())
    assert len(accounts["clients"]) == 61


def test_open_access_says_that_it_does_nothing(caplog: pytest.LogCaptureFixture) -> None:
    access = OpenAccess()
    access.allow_device("cam-1", "secret", "cam-1")
    access.refuse_device("cam-1")
    access.allow_enrolment("enrol-0011aabb", "token")
    access.end_enrolment("enrol-0011aabb")
    access.close()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "managed elsewhere" in caplog.text

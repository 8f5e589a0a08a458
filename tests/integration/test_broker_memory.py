"""What a client may leave behind at the local broker, whose memory is the fleet's."""

from __future__ import annotations

import queue
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho  # noqa: TID251 - asks for what our transport never does
import pytest
from paho.mqtt.enums import CallbackAPIVersion  # noqa: TID251 - as above
from paho.mqtt.packettypes import PacketTypes  # noqa: TID251 - as above
from paho.mqtt.properties import Properties  # noqa: TID251 - as above

from controller.app.new_home import HomeOptions, create_home
from controller.broker.access import CONTROLLER_USER, MosquittoAccess
from controller.broker.accounts import ACCOUNTS_FILE
from controller.broker.install import locate
from controller.broker.mosquitto import (
    MAX_INFLIGHT_MESSAGES,
    MAX_QUEUED_MESSAGES,
    Broker,
    BrokerSettings,
)
from controller.broker.rights import device_acls
from examples.digits.box import free_port
from tests.simulators.patience import PATIENCE_S, until
from wire import topics
from wire.broker_address import BrokerAddress
from wire.codec import from_json, to_json
from wire.mqtt import MqttTransport

pytestmark = pytest.mark.broker
FOR_EVER = 0xFFFFFFFF
NOT_AUTHORIZED = 0x87
RETAIN_NOT_SUPPORTED = 0x9A
TOKEN = "a token that may be used"
ENROL_USER = "enrol-0011aabb"
LATER = """
#include <time.h>
#include <unistd.h>
time_t time(time_t *kept) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += access("%s", F_OK) == 0 ? 3700 : 0;
    if (kept) *kept = now.tv_sec;
    return now.tv_sec;
}
"""
"""A library with which a program's clock is an hour ahead as soon as a file is there."""


class Running:
    """A broker with accounts, in a directory of its own."""

    def __init__(self, tmp_path: Path) -> None:
        installed = locate(tmp_path / "cache")
        if installed is None:
            pytest.skip("Mosquitto is not installed")
        self.port = free_port()
        self.home = tmp_path / "home"
        create_home(self.home, HomeOptions(broker_port=self.port, clear_text=True))
        self.broker = Broker(
            BrokerSettings(directory=self.home / "broker", port=self.port), installed
        )

    @property
    def password(self) -> str:
        return (self.home / "broker.password").read_text().strip()

    def start(self) -> None:
        self.broker.start()
        own = MqttTransport(
            BrokerAddress(port=self.port),
            client_id=f"access-{secrets.token_hex(4)}",
            username=CONTROLLER_USER,
            password=self.password,
        )
        with closing(MosquittoAccess(own)) as access:
            access.allow_enrolment(ENROL_USER, TOKEN)
            access.allow_device("cam-1", "secret-1", "cam-1")


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    made = Running(tmp_path)
    yield made
    made.broker.kill()


class Client:
    """A client that may keep its session, and sees what the broker answers."""

    def __init__(
        self, running: Running, name: str, *, user: str = ENROL_USER, password: str = TOKEN
    ) -> None:
        self.seen: queue.Queue[tuple[str, Any]] = queue.Queue()
        self.messages: list[tuple[str, bytes]] = []
        client = paho.Client(
            CallbackAPIVersion.VERSION2,
            client_id=name,
            protocol=paho.MQTTv5,
            reconnect_on_failure=False,
        )
        client.username_pw_set(user, password)
        client.on_connect = lambda _c, _d, flags, code, _p: self.seen.put(
            ("connect", (code.value, flags.session_present))
        )
        client.on_disconnect = lambda _c, _d, _f, code, _p: self.seen.put(("end", code.value))
        client.on_subscribe = lambda _c, _d, _m, codes, _p: self.seen.put(("sub", codes[0].value))
        client.on_publish = lambda _c, _d, _m, code, _p: self.seen.put(("publish", code.value))
        client.on_message = lambda _c, _d, m: self.messages.append((m.topic, bytes(m.payload)))
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = FOR_EVER
        client.connect("127.0.0.1", running.port, clean_start=False, properties=properties)
        client.loop_start()
        self.client = client
        code, self.had_session = self.next("connect")
        assert code == 0

    def next(self, kind: str) -> Any:
        while True:
            found, value = self.seen.get(timeout=PATIENCE_S)
            if found == kind:
                return value

    def subscribe(self, topic_filter: str) -> int:
        self.client.subscribe(topic_filter, qos=1)
        return int(self.next("sub"))

    def publish(self, topic: str) -> None:
        self.client.publish(topic, b"x", qos=1)
        assert self.next("publish") < 0x80, topic  # MQTT: lower codes are successes

    def leave(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()


def controller_of(running: Running) -> Client:
    return Client(
        running, f"c-{secrets.token_hex(4)}", user=CONTROLLER_USER, password=running.password
    )


def test_a_retained_message_ends_the_connection_and_is_not_kept(running: Running) -> None:
    running.start()
    for user, password, name, topic in (
        (ENROL_USER, TOKEN, "anything", topics.enrol_request("n1")),
        ("cam-1", "secret-1", "cam-1", topics.up("cam-1", "hello")),
    ):
        client = Client(running, name, user=user, password=password)
        client.client.publish(topic, b"x", qos=1, retain=True)
        assert client.next("end") == RETAIN_NOT_SUPPORTED
        client.client.loop_stop()
    controller = controller_of(running)
    for topic_filter in (topics.ENROL_REQUESTS, topics.ALL_UP):
        assert controller.subscribe(topic_filter) == 1
    device = Client(running, "cam-1", user="cam-1", password="secret-1")
    device.publish(topics.up("cam-1", "presence"))
    until(lambda: controller.messages, "the message that comes last")
    assert controller.messages == [(topics.up("cam-1", "presence"), b"x")]
    device.leave()
    controller.leave()


def test_a_device_that_is_enrolled_publishes_only_kinds_that_there_are(running: Running) -> None:
    running.start()
    device = Client(running, "cam-1", user="cam-1", password="secret-1")
    for kind in topics.UP_KINDS:
        device.publish(topics.up("cam-1", kind))
    for topic in ("up/x", "up/x/1", "up/hello/1", "up"):
        device.client.publish(f"{topics.PREFIX}/dev/cam-1/{topic}", b"x", qos=1)
        assert device.next("publish") == NOT_AUTHORIZED, topic
    device.leave()
    heard = [
        acl["topic"]
        for acl in device_acls("cam-1")
        if "Send" not in acl["acltype"] and acl["allow"]
    ]
    assert set(heard) == {topics.all_down("cam-1"), topics.CASTS}


def test_a_device_that_is_enrolled_has_one_subscription_beside_casts(running: Running) -> None:
    running.start()
    device = Client(running, "cam-1", user="cam-1", password="secret-1")
    assert device.subscribe(topics.all_down("cam-1")) == 1
    for longer in ("desired", "x" * 60_000, "+", "x/#"):
        topic_filter = f"{topics.PREFIX}/dev/cam-1/down/{longer}"
        assert device.subscribe(topic_filter) == NOT_AUTHORIZED, longer[:9]
    device.leave()


def test_a_token_hears_one_devices_answers_and_not_all(running: Running) -> None:
    running.start()
    client = Client(running, "anything")
    assert client.subscribe(topics.ENROL_REPLIES) == NOT_AUTHORIZED
    assert client.subscribe(topics.enrol_reply("cam-9")) == 1
    client.leave()


def test_accounts_of_an_older_version_lose_what_they_could_hear(running: Running) -> None:
    path = running.home / "broker" / ACCOUNTS_FILE
    accounts = from_json(path.read_bytes(), dict[str, Any])
    for role in accounts["roles"]:
        role["acls"] = [acl for acl in role["acls"] if acl["allow"]]
    path.write_bytes(to_json(accounts))
    running.start()
    client = Client(running, "anything")
    assert client.subscribe(topics.ENROL_REPLIES) == NOT_AUTHORIZED
    client.leave()


def test_a_client_that_is_away_leaves_a_bounded_queue(running: Running) -> None:
    running.start()
    gone = Client(running, "anything")
    reply = topics.enrol_reply("cam-9")
    assert gone.subscribe(reply) == 1
    gone.leave()
    controller = controller_of(running)
    more = MAX_QUEUED_MESSAGES + 1000
    for _ in range(more):
        controller.client.publish(reply, b"x", qos=1)
    for _ in range(more):
        controller.next("publish")
    back = Client(running, "anything")
    assert back.had_session

    def is_through() -> bool:
        controller.client.publish(reply, b"last", qos=1)
        controller.next("publish")
        return (reply, b"last") in back.messages

    until(is_through, "the message that comes last")
    kept = back.messages.count((reply, b"x"))
    assert 0 < kept <= MAX_QUEUED_MESSAGES + MAX_INFLIGHT_MESSAGES
    back.leave()
    controller.leave()


def test_a_session_that_nobody_comes_back_to_ends_within_the_hour(
    running: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    source, library, sign = tmp_path / "later.c", tmp_path / "later.so", tmp_path / "later"
    source.write_text(LATER % sign)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setenv("LD_PRELOAD", str(library))
    running.start()
    monkeypatch.delenv("LD_PRELOAD")
    Client(running, "first").leave()
    again = Client(running, "first")
    assert again.had_session
    again.leave()
    # What the broker answers to one who comes later, it answers after it saw the first one leave;
    # once it is an hour later, it looks at its clock before.
    for moment in ("now", "later"):
        if moment == "later":
            sign.touch()
        other = Client(running, moment)
        assert other.subscribe(topics.enrol_reply("cam-9")) == 1
        other.leave()
    back = Client(running, "first")
    assert not back.had_session
    back.leave()

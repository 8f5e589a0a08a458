"""The transport over a real broker: round trips, reconnects, refusals, limits."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import paho.mqtt.client as paho  # noqa: TID251 - sends what our transport never does
import pytest
from paho.mqtt.enums import CallbackAPIVersion  # noqa: TID251 - as above
from paho.mqtt.packettypes import PacketTypes  # noqa: TID251 - as above
from paho.mqtt.properties import Properties  # noqa: TID251 - as above

from examples.digits.box import free_port
from tests.simulators.broker import RunningBroker, running_broker
from tests.simulators.patience import PATIENCE_S, until
from wire.broker_address import BrokerAddress
from wire.errors import TransportError
from wire.messages import MAX_MESSAGE_BYTES
from wire.mqtt import (
    UNACKNOWLEDGED_BYTES,
    LastWill,
    MqttTransport,
)
from wire.transport import Connection, Received

pytestmark = pytest.mark.broker


class Peer:
    """A transport with its messages and connection changes in queues."""

    def __init__(self, address: BrokerAddress, name: str, *, will: LastWill | None = None) -> None:
        self.messages: queue.Queue[Received] = queue.Queue()
        self.connections: queue.Queue[Connection] = queue.Queue()
        self.transport = MqttTransport(address, client_id=name, will=will)
        self.transport.start(self.messages.put, self.connections.put)

    def connected(self) -> Connection:
        while not (connection := self.connections.get(timeout=PATIENCE_S)).up:
            pass
        return connection


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with running_broker() as running:
        yield running


def test_a_message_goes_round(broker: RunningBroker) -> None:
    peer = Peer(broker.address, "a")
    peer.transport.subscribe("t/+")
    peer.connected()
    assert peer.transport.publish("t/x", b"\x00payload", expiry_s=5)
    assert peer.messages.get(timeout=PATIENCE_S) == ("t/x", b"\x00payload")
    peer.transport.close()


def test_a_connection_tells_by_which_address_this_side_has_it(broker: RunningBroker) -> None:
    peer = Peer(broker.address, "a")
    assert peer.connected().address == "127.0.0.1"
    peer.transport.close()


def test_the_largest_message_goes_round(broker: RunningBroker) -> None:
    peer = Peer(broker.address, "a")
    peer.transport.subscribe("t")
    peer.connected()
    # Brokers count the whole packet: leave room for the topic and the header.
    payload = bytes(MAX_MESSAGE_BYTES - 1024)
    assert peer.transport.publish("t", payload)
    assert peer.messages.get(timeout=PATIENCE_S).payload == payload
    with pytest.raises(TransportError, match="over the limit"):
        peer.transport.publish("t", bytes(MAX_MESSAGE_BYTES + 1))
    peer.transport.close()


def test_it_reconnects_and_subscribes_again(broker: RunningBroker) -> None:
    peer = Peer(broker.address, "a")
    peer.transport.subscribe("t")
    peer.connected()
    broker.kill()
    lost = peer.connections.get(timeout=PATIENCE_S)
    assert not lost.up
    where = str(broker.address)
    assert lost.reason == (
        f"the connection to the broker at {where} broke off; look whether it runs and the network "
        "is up"
    )
    missing = peer.connections.get(timeout=PATIENCE_S)
    assert missing.reason == (
        f"no MQTT broker answers at {where}: connection refused; look whether it runs and the "
        "network is up, and whether the host and the port under [broker] are right"
    )
    assert not peer.transport.publish("t", b"lost")
    broker.start()
    peer.connected()
    assert peer.transport.publish("t", b"again")
    assert peer.messages.get(timeout=PATIENCE_S).payload == b"again"
    peer.transport.close()


def test_a_missing_broker_is_named_and_waited_for() -> None:
    address = BrokerAddress(port=free_port())
    peer = Peer(address, "a")
    change = peer.connections.get(timeout=PATIENCE_S)
    assert not change.up
    assert f"no MQTT broker answers at 127.0.0.1:{address.port}" in change.reason
    assert not peer.transport.publish("t", b"x")
    peer.transport.close()


def test_the_last_will_speaks_for_a_client_that_vanished(broker: RunningBroker) -> None:
    watcher = Peer(broker.address, "watcher")
    watcher.transport.subscribe("will")
    watcher.connected()
    first = Peer(broker.address, "same", will=LastWill(topic="will", payload=b"gone"))
    first.connected()
    # A second connection of that name makes the broker cut the first one off.
    second = Peer(broker.address, "same")
    second.connected()
    assert watcher.messages.get(timeout=PATIENCE_S).payload == b"gone"
    for peer in (first, second, watcher):
        peer.transport.close()


def test_tls_files_that_cannot_be_read_are_named() -> None:
    with pytest.raises(TransportError, match="ca\\.pem"):
        MqttTransport(BrokerAddress(ca_file="/nonexistent/ca.pem"), client_id="a")


ACCEPTED = b"\x20\x03\x00\x00\x00"  # CONNACK: success, no properties
NOT_AUTHORIZED = b"\x20\x03\x00\x87\x00"


@contextmanager
def hostile_broker() -> Iterator[tuple[socket.socket, Peer]]:
    """Listen as a broker whose answers the test writes; yield where, and the client that comes."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        host, port = server.getsockname()
        peer = Peer(BrokerAddress(host=host, port=port), "a")
        yield server, peer
        peer.transport.close()


@contextmanager
def answered(server: socket.socket, answer: bytes) -> Iterator[socket.socket]:
    """Take a connection and answer what it asks first; yield it."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(PATIENCE_S)
        connection.recv(4096)
        connection.sendall(answer)
        yield connection


def remaining_length(size_bytes: int) -> bytes:
    """Return a length as MQTT writes it (MQTT 5, section 1.5.5)."""
    length = b""
    while size_bytes or not length:
        size_bytes, low = divmod(size_bytes, 128)
        length += bytes([low | (0x80 if size_bytes else 0)])
    return length


def send_until_it_ends(connection: socket.socket, part: bytes, most_bytes: int) -> int:
    """Send one part again and again; return how many bytes the other side took."""
    sent = 0
    try:
        while sent < most_bytes:
            connection.sendall(part)
            sent += len(part)
    except OSError:
        pass
    return sent


def test_a_huge_packet_ends_the_connection_before_it_is_kept() -> None:
    with hostile_broker() as (server, peer):
        size_bytes = 250 * 1024 * 1024
        with answered(server, ACCEPTED) as connection:
            connection.sendall(b"\x30" + remaining_length(size_bytes))  # PUBLISH
            sent = send_until_it_ends(connection, bytes(65536), size_bytes)
        peer.connected()
        ended = peer.connections.get(timeout=PATIENCE_S)
    assert not ended.up
    assert ended.reason.startswith("the broker sent a packet of over ")
    assert sent < 16 * 1024 * 1024, "more than the buffers of the kernel"
    assert peer.messages.empty()


def test_messages_of_qos_2_end_the_connection_before_they_are_kept() -> None:
    with hostile_broker() as (server, peer):
        body = b"\x00\x01t\x00\x01\x00" + bytes(100_000)  # topic t, packet 1, no properties
        packet = b"\x34" + remaining_length(len(body)) + body  # PUBLISH of QoS 2
        with answered(server, ACCEPTED) as connection:
            sent = send_until_it_ends(connection, packet, 64 * 1024 * 1024)
        peer.connected()
        ended = peer.connections.get(timeout=PATIENCE_S)
    assert not ended.up
    assert ended.reason == "the broker sent a message of QoS 2, which nobody asked for"
    assert sent < 16 * 1024 * 1024, "more than the buffers of the kernel"
    assert peer.messages.empty()


def test_what_a_broker_does_not_acknowledge_is_bounded() -> None:
    with hostile_broker() as (server, peer), answered(server, ACCEPTED) as connection:
        peer.connected()
        payload = bytes(100_000)
        taken = [peer.transport.publish("t", payload) for _ in range(100)]
        assert taken[0]
        assert not taken[-1], "it is told that nothing more is taken"
        assert taken.count(True) * len(payload) <= UNACKNOWLEDGED_BYTES
        assert (peer.transport.is_waiting("t"), peer.transport.is_waiting("u")) == (True, False)
        for number in range(1, taken.count(True) + 1):
            connection.sendall(b"\x40\x02" + number.to_bytes(2, "big"))  # PUBACK

        def is_free() -> bool:
            connection.recv(2**20)
            return not peer.transport.is_waiting("t")

        until(is_free, "the acknowledgements")
        assert peer.transport.publish("t", payload)


def test_a_message_waits_until_the_broker_has_it(broker: RunningBroker) -> None:
    peer = Peer(broker.address, "a")
    peer.connected()
    broker.pause()
    assert peer.transport.publish("t", b"x")
    assert peer.transport.is_waiting("t")
    broker.resume()
    until(lambda: not peer.transport.is_waiting("t"), "the acknowledgement")
    peer.transport.close()


def test_what_a_broker_had_not_acknowledged_when_it_died_is_sent_to_the_next(
    broker: RunningBroker,
) -> None:
    peer = Peer(broker.address, "a")
    peer.connected()
    broker.pause()
    assert peer.transport.publish("t", b"x")
    broker.kill()
    assert not peer.connections.get(timeout=PATIENCE_S).up
    broker.start()
    peer.connected()
    until(lambda: not peer.transport.is_waiting("t"), "the acknowledgement of the second copy")
    peer.transport.close()


def test_a_packet_that_is_not_mqtt_ends_the_connection_and_not_the_client() -> None:
    with hostile_broker() as (server, peer):
        for nonsense in (b"\x30\x01\x00", b"\x40\x01\x00"):
            with answered(server, ACCEPTED + nonsense) as connection:
                while connection.recv(4096):
                    pass
            peer.connected()


@pytest.mark.parametrize("qos", [0, 1])
def test_a_message_that_cannot_be_read_is_acknowledged_and_dropped(qos: int) -> None:
    with hostile_broker() as (server, peer), answered(server, ACCEPTED) as connection:
        peer.connected()
        numbers = (b"\x00\x07", b"\x00\x08") if qos else (b"", b"")
        user_property = b"\x26\x00\x01a\x00\x04\xef\xbb\xbfb"  # U+FEFF, which paho refuses
        for number, properties in zip(numbers, (user_property, b""), strict=True):
            body = b"\x00\x01t" + number + bytes([len(properties)]) + properties + b"payload"
            connection.sendall(bytes([0x30 | qos << 1, len(body)]) + body)
        assert peer.messages.get(timeout=PATIENCE_S) == Received("t", b"payload")
        if qos:
            acknowledged = b""
            while len(acknowledged) < len(b"\x40\x02\x00\x07" * 2):
                acknowledged += connection.recv(4096)
            assert acknowledged == b"\x40\x02\x00\x07\x40\x02\x00\x08"
        assert peer.connections.empty()
        assert peer.messages.empty()


def test_a_property_that_a_broker_forwards_ends_no_connection(broker: RunningBroker) -> None:
    reader = Peer(broker.address, "reader")
    reader.transport.subscribe("t")
    reader.connected()
    sender = paho.Client(CallbackAPIVersion.VERSION2, "sender", protocol=paho.MQTTv5)
    sender.connect(broker.address.host, broker.address.port)
    sender.loop_start()
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.UserProperty = ("a", "\ufeffb")
    sender.publish("t", b"unreadable", qos=1, properties=properties).wait_for_publish(PATIENCE_S)
    sender.publish("t", b"readable", qos=1).wait_for_publish(PATIENCE_S)
    assert reader.messages.get(timeout=PATIENCE_S) == Received("t", b"readable")
    assert reader.connections.empty()
    sender.disconnect()
    sender.loop_stop()
    reader.transport.close()


def test_a_refused_account_is_told_once_for_each_attempt() -> None:
    with hostile_broker() as (server, peer):
        for _ in range(2):
            with answered(server, NOT_AUTHORIZED):
                pass
            told = peer.connections.get(timeout=PATIENCE_S)
            assert (told.up, told.refused, told.reason) == (False, True, "Not authorized")
        assert peer.connections.empty()

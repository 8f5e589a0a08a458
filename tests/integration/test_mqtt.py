"""The transport over a real broker: round trips, reconnects, refusals, limits."""

from __future__ import annotations

import queue
import socket
from collections.abc import Iterator

import pytest

from examples.digits.box import free_port
from tests.simulators.broker import RunningBroker, running_broker
from tests.simulators.patience import PATIENCE_S, until
from wire.errors import TransportError
from wire.messages import MAX_MESSAGE_BYTES
from wire.mqtt import UNACKNOWLEDGED_BYTES, BrokerAddress, LastWill, MqttTransport
from wire.transport import Connection, Received

pytestmark = pytest.mark.broker


class Peer:
    """A transport with its messages and connection changes in queues."""

    def __init__(self, address: BrokerAddress, name: str, *, will: LastWill | None = None) -> None:
        self.messages: queue.Queue[Received] = queue.Queue()
        self.connections: queue.Queue[Connection] = queue.Queue()
        self.transport = MqttTransport(address, client_id=name, will=will)
        self.transport.start(self.messages.put, self.connections.put)

    def connected(self) -> None:
        while not self.connections.get(timeout=PATIENCE_S).up:
            pass


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
    assert not peer.connections.get(timeout=PATIENCE_S).up
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


def connection_refusing_nothing(server: socket.socket, body_bytes: int) -> int:
    """Be a broker that accepts a client and sends it one huge packet; return what it took of it."""
    connection, _ = server.accept()
    with connection:
        connection.settimeout(PATIENCE_S)
        connection.recv(4096)
        connection.sendall(b"\x20\x03\x00\x00\x00")  # CONNACK: success, no properties
        length, left = b"", body_bytes
        while left:
            left, low = divmod(left, 128)
            length += bytes([low | (0x80 if left else 0)])
        sent = 0
        try:
            connection.sendall(b"\x30" + length)  # PUBLISH
            while sent < body_bytes:
                sent += connection.send(bytes(65536))
        except OSError:
            pass
        return sent


def test_a_huge_packet_ends_the_connection_before_it_is_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        host, port = server.getsockname()
        peer = Peer(BrokerAddress(host=host, port=port), "a")
        sent = connection_refusing_nothing(server, 250 * 1024 * 1024)
        peer.connected()
        ended = peer.connections.get(timeout=PATIENCE_S)
        peer.transport.close()
    assert not ended.up
    assert ended.reason.startswith("the broker sent a packet of over ")
    assert sent < 16 * 1024 * 1024, "more than the buffers of the kernel"
    assert peer.messages.empty()


def test_messages_of_qos_2_end_the_connection_before_they_are_kept() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        host, port = server.getsockname()
        peer = Peer(BrokerAddress(host=host, port=port), "a")
        connection, _ = server.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            connection.recv(4096)
            connection.sendall(b"\x20\x03\x00\x00\x00")  # CONNACK: success, no properties
            body = b"\x00\x01t\x00\x01\x00" + bytes(100_000)  # topic t, packet 1, no properties
            length = bytes([len(body) & 0x7F | 0x80, len(body) >> 7 & 0x7F | 0x80, len(body) >> 14])
            packet, sent = b"\x34" + length + body, 0  # PUBLISH of QoS 2
            try:
                while sent < 64 * 1024 * 1024:
                    connection.sendall(packet)
                    sent += len(packet)
            except OSError:
                pass
        peer.connected()
        ended = peer.connections.get(timeout=PATIENCE_S)
        peer.transport.close()
    assert not ended.up
    assert ended.reason == "the broker sent a message of QoS 2, which nobody asked for"
    assert sent < 16 * 1024 * 1024, "more than the buffers of the kernel"
    assert peer.messages.empty()


def test_what_a_broker_does_not_acknowledge_is_bounded() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        host, port = server.getsockname()
        peer = Peer(BrokerAddress(host=host, port=port), "a")
        connection, _ = server.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            connection.recv(4096)
            connection.sendall(b"\x20\x03\x00\x00\x00")
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
        peer.transport.close()


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
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        host, port = server.getsockname()
        peer = Peer(BrokerAddress(host=host, port=port), "a")
        for nonsense in (b"\x30\x01\x00", b"\x40\x01\x00"):
            connection, _ = server.accept()
            with connection:
                connection.settimeout(PATIENCE_S)
                connection.recv(4096)
                connection.sendall(b"\x20\x03\x00\x00\x00" + nonsense)
                while connection.recv(4096):
                    pass
            peer.connected()
        peer.transport.close()


def test_a_refused_account_is_told_once_for_each_attempt() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(PATIENCE_S)
        host, port = server.getsockname()
        peer = Peer(BrokerAddress(host=host, port=port), "a")
        for _ in range(2):
            connection, _address = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(b"\x20\x03\x00\x87\x00")  # CONNACK: not authorized
            told = peer.connections.get(timeout=PATIENCE_S)
            assert (told.up, told.refused, told.reason) == (False, True, "Not authorized")
        peer.transport.close()
        assert peer.connections.empty()

"""`Transport` over MQTT v5 by paho. The only module that imports paho.

Rules:
- Callbacks only convert messages and hand them over. They may block on a full queue, which slows
  the broker down through TCP instead of losing messages here.
- Nothing is queued while disconnected: after a reconnect the owner decides from its own state what
  to send.
- A connection that fails says why in one line, with what to do: `Connection.reason`.
- A packet that is too large is refused by the length in its header, before any of it is kept. The
  limit is announced to the broker, but a broker may be hostile. So a message of QoS 2 ends the
  connection, because paho would keep it until the broker says that it may go on; nothing here asks
  for one. And what the broker does not acknowledge is bounded, because paho keeps it for ever.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, NoReturn

import msgspec
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from wire.broker_address import (
    LOOK_AT_BROKER,
    BrokerAddress,
    is_certificate_refused,
    tls_context,
    why_unreachable,
)
from wire.errors import TransportError
from wire.messages import MAX_MESSAGE_BYTES
from wire.transport import Connection, ConnectionHandler, MessageHandler, Received

if TYPE_CHECKING:  # a device has one connection, and its supervisor is small
    from wire.mqtt_loop import MqttLoop

KEEPALIVE_S = 30
INFLIGHT_MESSAGES = 40
"""paho scans its outgoing queue up to this limit at every acknowledgement: 20 to 100 is fastest."""

MAX_PACKET_BYTES = MAX_MESSAGE_BYTES + 4096
"""A message with its topic and properties."""

UNACKNOWLEDGED_BYTES = 4 * 1024 * 1024
"""Enough for a device: its telemetry is a mebibyte at one time."""

OVERHEAD_BYTES = 1024
"""What paho keeps for a message beside its payload, roughly."""

PUBLISH = 0x30
"""The high half of the first byte of a packet with a message."""

AT_LEAST_ONCE, EXACTLY_ONCE = 0x02, 0x04
"""The bits of that byte which QoS 1 and QoS 2 set."""

CONNACK = 0x20
"""First byte of the packet with which a broker begins."""

RECONNECT_MIN_S = 1
RECONNECT_MAX_S = 30
NO_SUBSCRIBERS = 0x10
"""MQTT 5.0, 3.4.2.1: the message was accepted, but there are no subscribers."""

REFUSED_CODES = frozenset({0x86, 0x87, 0x85})
"""MQTT v5 reason codes: bad user name or password, not authorized, client identifier not valid."""

UNSPECIFIED = 0x80
"""The reason that paho gives when a connection breaks off: "Unspecified error"."""


class LastWill(msgspec.Struct, frozen=True, kw_only=True):
    """The message that the broker publishes for a client whose connection broke."""

    topic: str
    payload: bytes


class _Sent(NamedTuple):
    """A message that was handed to paho."""

    topic: str
    info: paho.MQTTMessageInfo
    size_bytes: int


class MqttTransport:
    """A connection to a broker that reconnects by itself.

    Args:
        address: Where the broker is.
        client_id: Unique at the broker; a second connection ends the first.
        username: The MQTT user, or None.
        password: The secret of that user, or None.
        will: Published by the broker when the connection breaks.
        session_expiry_s: How long the broker keeps the session after a disconnect.
        unacknowledged_bytes: How much may wait for the broker's acknowledgement.
        loop: The thread that it shares with others; None for a thread of its own.

    Raises:
        TransportError: A certificate file cannot be read.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        username: str | None = None,
        password: str | None = None,
        will: LastWill | None = None,
        session_expiry_s: int = 0,
        unacknowledged_bytes: int = UNACKNOWLEDGED_BYTES,
        loop: MqttLoop | None = None,
    ) -> None:
        self._address = address
        self._loop = loop
        self._session_expiry_s = session_expiry_s
        self._unacknowledged_bytes = unacknowledged_bytes
        self._filters: list[str] = []
        self._lock = threading.Lock()
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._sent_lock = threading.Lock()
        self._denied: set[str] = set()
        self._unheard: set[str] = set()
        self._connected = False
        self._client = client = _BoundedClient(
            CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5
        )
        client.address = address
        client.max_inflight_messages_set(INFLIGHT_MESSAGES)
        client.reconnect_delay_set(RECONNECT_MIN_S, RECONNECT_MAX_S)
        if username is not None:
            client.username_pw_set(username, password)
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1)
        if address.ca_file is not None:
            client.tls = tls_context(address)
            client.tls_set_context(client.tls)
        client.on_socket_open = _no_delay

    def start(self, on_message: MessageHandler, on_connection: ConnectionHandler) -> None:
        """Begin to connect in the background; see `Transport.start`."""

        def connected(
            client: paho.Client, _data: object, _flags: object, code: ReasonCode, _props: object
        ) -> None:
            self._client.has_answered = True
            if code.is_failure:
                refused = code.value in REFUSED_CODES
                on_connection(Connection(up=False, refused=refused, reason=str(code)))
                return
            self._denied.clear()
            self._unheard.clear()
            with self._lock:
                self._connected = True
                for topic_filter in self._filters:
                    _subscribe(client, topic_filter)
            on_connection(Connection(up=True, address=_own_address(client.socket())))

        def disconnected(
            _client: paho.Client, _data: object, _flags: object, code: ReasonCode, _props: object
        ) -> None:
            with self._lock:
                was_up, self._connected = self._connected, False
            if self._client.has_answered and not was_up:
                return  # a refusal, which has been told
            refused = self._client.certificate_refused
            on_connection(Connection(up=False, refused=refused, reason=self._end_reason(code)))

        def connect_failed(_client: paho.Client, _data: object) -> None:
            refused = self._client.certificate_refused
            on_connection(Connection(up=False, refused=refused, reason=self._client.failure))

        def received(_client: paho.Client, _data: object, message: paho.MQTTMessage) -> None:
            on_message(Received(message.topic, bytes(message.payload)))

        client = self._client
        client.on_publish = self._published
        client.on_connect = connected
        client.on_disconnect = disconnected
        client.on_connect_fail = connect_failed
        client.on_message = received
        properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
        properties.SessionExpiryInterval = self._session_expiry_s
        properties.MaximumPacketSize = MAX_PACKET_BYTES
        client.connect_async(
            self._address.host,
            self._address.port,
            keepalive=KEEPALIVE_S,
            clean_start=self._session_expiry_s == 0,
            properties=properties,
        )
        if self._loop is None:
            client.loop_start()
        else:
            self._loop.add(client, lambda: connect_failed(client, None))

    def _published(
        self, _client: paho.Client, _data: object, mid: int, code: ReasonCode, _props: object
    ) -> None:
        """Note what the broker says of a message."""
        with self._sent_lock:
            named = {sent.topic for sent in self._sent if sent.info.mid == mid}
            if code.is_failure:
                self._denied |= named
            elif code.value == NO_SUBSCRIBERS:
                self._unheard |= named
            else:
                self._unheard -= named

    def _end_reason(self, code: ReasonCode) -> str:
        """Say why a connection ended."""
        refusal, self._client.refusal = self._client.refusal, ""
        if self._client.certificate_refused:
            return self._client.failure
        if self._client.has_answered or not code.is_failure:
            return refusal or f"the connection to the broker at {self._address} {_how_ended(code)}"
        reason = f"the broker at {self._address} ended the connection without an answer"
        if refusal:
            reason = f"no MQTT broker answers at {self._address}: {refusal}"
        # What a broker does that waits for TLS and gets something else.
        return reason if self._address.ca_file else f"{reason}; if it speaks TLS, set ca_file"

    def subscribe(self, topic_filter: str) -> None:
        """Receive the messages that match; see `Transport.subscribe`."""
        with self._lock:
            self._filters.append(topic_filter)
            if self._connected:
                _subscribe(self._client, topic_filter)

    def unsubscribe(self, topic_filter: str) -> None:
        """No longer receive what matches; see `Transport.unsubscribe`."""
        with self._lock:
            if topic_filter in self._filters:
                self._filters.remove(topic_filter)
                if self._connected:
                    self._client.unsubscribe(topic_filter)

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        """Hand a message over with QoS 1; see `Transport.publish`.

        Raises:
            TransportError: The message is larger than brokers accept.
        """
        if len(payload) > MAX_MESSAGE_BYTES:
            raise TransportError(
                f"a message of {len(payload)} bytes is over the limit of {MAX_MESSAGE_BYTES}"
            )
        size_bytes = len(payload) + OVERHEAD_BYTES
        if not self._connected or self._waiting_bytes() + size_bytes > self._unacknowledged_bytes:
            return False
        properties = None
        if expiry_s is not None:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.MessageExpiryInterval = expiry_s
        info = self._client.publish(topic, payload, qos=1, properties=properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return False
        with self._sent_lock:
            self._sent.append(_Sent(topic, info, size_bytes))
            self._sent_bytes += size_bytes
        return True

    def is_waiting(self, topic: str) -> bool:
        """Tell whether a message is not acknowledged yet; see `Transport.is_waiting`."""
        self._waiting_bytes()
        with self._sent_lock:
            return any(sent.topic == topic for sent in self._sent)

    def is_denied(self, topic: str) -> bool:
        """Tell whether the broker refused a message to a topic; see `Transport.is_denied`."""
        return topic in self._denied

    def found_nobody(self, topic: str) -> bool:
        """Tell whether nobody had subscribed to a topic; see `Transport.found_nobody`."""
        return topic in self._unheard

    def _waiting_bytes(self) -> int:
        """Return how much the broker has not acknowledged."""
        with self._sent_lock:
            # A broker acknowledges in the order in which the messages came.
            while self._sent and self._sent[0].info.is_published():
                self._sent_bytes -= self._sent.popleft().size_bytes
            return self._sent_bytes

    def close(self) -> None:
        """Disconnect and stop; see `Transport.close`."""
        self._client.disconnect()
        if self._loop is not None:
            self._loop.remove(self._client)
            return
        self._client.loop_stop()
        if (left := self._client.socket()) is not None:  # of a connection that was being made
            left.close()


def _how_ended(code: ReasonCode) -> str:
    """Return how a connection ended that was up, with what to do."""
    how = "broke off" if code.value == UNSPECIFIED else f"ended: {str(code).lower()}"
    return f"{how}; {LOOK_AT_BROKER}"


class _BoundedClient(paho.Client):
    """A client that ends the connection when a packet is too large, or is none.

    It keeps why a connection failed.
    """

    refusal = ""
    """Why the connection is being ended; empty for paho's own reasons."""

    address = BrokerAddress()
    tls: ssl.SSLContext
    """Set if the address asks for TLS."""

    failure = ""
    """Why the last attempt to connect failed."""

    has_answered = False
    """Whether the broker has answered this attempt, with a yes or a no."""

    certificate_refused = False
    """Whether the broker refused the certificate of this attempt; `failure` says why."""

    awaits_answer = False
    """Whether nothing has come on this connection yet."""

    def reconnect(self) -> MQTTErrorCode:
        self.has_answered, self.awaits_answer = False, True
        self.certificate_refused = False
        try:
            return super().reconnect()
        except OSError as exc:
            self._note(exc)
            raise
        except UnicodeError as exc:
            # From the look-up of an impossible name; paho's thread would end without a word.
            self.failure = f"{self.address.host!r} is not a name or an address"
            raise OSError(self.failure) from exc

    def _ssl_wrap_socket(self, tcp_sock: socket.socket) -> ssl.SSLSocket:
        # As paho's own, which leaves the socket of a failed handshake open.
        sock = self.tls.wrap_socket(
            tcp_sock, server_hostname=self.address.host, do_handshake_on_connect=False
        )
        try:
            sock.settimeout(self.connect_timeout)
            sock.do_handshake()
        except OSError:
            sock.close()
            raise
        return sock

    def _sock_recv(self, bufsize: int) -> bytes:
        # paho asks for all that is missing of a packet at once, and keeps it until it is whole.
        if bufsize > MAX_PACKET_BYTES:
            self._refuse(f"the broker sent a packet of over {MAX_PACKET_BYTES} bytes")
        try:
            data = super()._sock_recv(bufsize)
        except ssl.SSLError as exc:
            # TLS 1.3: only after its own handshake does a client hear what became of it.
            self._note(exc)
            raise
        if self.awaits_answer and data:
            self.awaits_answer = False
            if data[0] != CONNACK:
                self._refuse("the server does not speak MQTT")
        return data

    def _note(self, fault: OSError) -> None:
        """Note why an attempt failed."""
        self.failure = why_unreachable(fault, self.address)
        self.certificate_refused = is_certificate_refused(fault)

    def _packet_handle(self) -> MQTTErrorCode:
        first: int = self._in_packet["command"]
        if first & 0xF0 == PUBLISH and first & EXACTLY_ONCE:
            self.refusal = "the broker sent a message of QoS 2, which nobody asked for"
            return MQTTErrorCode.MQTT_ERR_PROTOCOL
        try:
            return super()._packet_handle()
        except Exception:  # noqa: BLE001 - whatever it is, the thread must not end
            if first & 0xF0 == PUBLISH and (number := self._message_number()) is not None:
                return self._drop(number)
            self.refusal = "the broker sent a packet that is not MQTT"
            return MQTTErrorCode.MQTT_ERR_PROTOCOL

    def _message_number(self) -> int | None:
        """Return the packet identifier of a message, 0 for QoS 0; None where it is no message."""
        packet = self._in_packet["packet"]
        end = 2 + int.from_bytes(packet[:2], "big")  # of the topic
        if self._in_packet["command"] & AT_LEAST_ONCE:
            number = int.from_bytes(packet[end : end + 2], "big")
            return number if len(packet) > end + 2 and number else None
        return 0 if len(packet) > end else None

    def _drop(self, number: int) -> MQTTErrorCode:
        """Acknowledge a message that cannot be read, and go on.

        Its properties are the sender's, and a broker may forward what paho refuses, such as U+FEFF
        in one. Ending the connection would let any sender end it as often as it likes.
        """
        if number == 0:
            return MQTTErrorCode.MQTT_ERR_SUCCESS
        return self._send_puback(number)

    def _refuse(self, why: str) -> NoReturn:
        self.refusal = why
        raise ConnectionAbortedError(why)


def _subscribe(client: paho.Client, topic_filter: str) -> None:
    client.subscribe(topic_filter, options=SubscribeOptions(qos=1))


def _own_address(sock: object) -> str:
    """Return this side's IP address on a connection, empty if it has none any more."""
    if not isinstance(sock, socket.socket) or sock.family == socket.AF_UNIX:
        return ""
    try:
        return str(sock.getsockname()[0])
    except OSError:  # it was closed meanwhile
        return ""


def _no_delay(_client: paho.Client, _data: object, sock: object) -> None:
    # Neither paho nor the usual broker disables Nagle's algorithm; with it, a round trip takes
    # 92 ms instead of 0.25.
    if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

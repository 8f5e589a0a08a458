"""`Transport` over MQTT v5 by paho. Only it and `wire.mqtt_client` import paho.

Rules:
- Callbacks only convert messages and hand them over. They may block on a full queue, which slows
  the broker down through TCP instead of losing messages here.
- Nothing is queued while disconnected: after a reconnect the owner decides from its own state what
  to send.
- A connection that fails says why in one line, with what to do: `Connection.reason`.
- The broker may be hostile: what comes is bounded (`wire.mqtt_client`), and so is what it does not
  acknowledge (`wire.unacknowledged`), because paho keeps it for ever.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING

import msgspec
import paho.mqtt.client as paho
from paho.mqtt.enums import MQTTErrorCode
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from wire.broker_address import LOOK_AT_BROKER, BrokerAddress
from wire.errors import TransportError
from wire.messages import MAX_MESSAGE_BYTES
from wire.mqtt_client import MAX_PACKET_BYTES, BoundedClient
from wire.transport import Connection, ConnectionHandler, MessageHandler, Received
from wire.unacknowledged import Unacknowledged

if TYPE_CHECKING:  # a device has one connection, and its supervisor is small
    from wire.mqtt_loop import MqttLoop

KEEPALIVE_S = 30
INFLIGHT_MESSAGES = 40
"""paho scans its outgoing queue up to this limit at every acknowledgement: 20 to 100 is fastest."""

UNACKNOWLEDGED_BYTES = 4 * 1024 * 1024
"""Enough for a device: its telemetry is a mebibyte at one time."""

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
        self._filters: list[str] = []
        self._lock = threading.Lock()
        self._sent = Unacknowledged(unacknowledged_bytes)
        self._connected = False
        self._client = client = BoundedClient(address, client_id)
        client.max_inflight_messages_set(INFLIGHT_MESSAGES)
        client.reconnect_delay_set(RECONNECT_MIN_S, RECONNECT_MAX_S)
        if username is not None:
            client.username_pw_set(username, password)
        if will is not None:
            client.will_set(will.topic, will.payload, qos=1)

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
            self._sent.begin()
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
        unheard = code.value == NO_SUBSCRIBERS
        self._sent.answered(mid, denied=code.is_failure, unheard=unheard)

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
        if not self._connected or not self._sent.has_room(payload):
            return False
        properties = None
        if expiry_s is not None:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.MessageExpiryInterval = expiry_s
        info = self._client.publish(topic, payload, qos=1, properties=properties)
        if info.rc != MQTTErrorCode.MQTT_ERR_SUCCESS:
            return False
        self._sent.add(topic, payload, info)
        return True

    def is_waiting(self, topic: str) -> bool:
        """Tell whether a message is not acknowledged yet; see `Transport.is_waiting`."""
        return self._sent.is_waiting(topic)

    def is_denied(self, topic: str) -> bool:
        """Tell whether the broker refused a message to a topic; see `Transport.is_denied`."""
        return topic in self._sent.denied

    def found_nobody(self, topic: str) -> bool:
        """Tell whether nobody had subscribed to a topic; see `Transport.found_nobody`."""
        return topic in self._sent.unheard

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

"""paho's client, made safe against a broker that is hostile or none. `wire.mqtt` uses it.

Rules:
- A packet that is too large is refused by the length in its header, before any of it is kept.
- A message of QoS 2 ends the connection, because paho would keep it until the broker says that it
  may go on; nothing here asks for one.
- A message that paho cannot read is dropped; any other packet that it cannot read ends the
  connection.
- A connection that fails says why in one line, with what to do.
"""

from __future__ import annotations

import socket
import ssl
from typing import NoReturn

import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode

from wire.broker_address import (
    BrokerAddress,
    is_certificate_refused,
    tls_context,
    why_unreachable,
)
from wire.messages import MAX_MESSAGE_BYTES

MAX_PACKET_BYTES = MAX_MESSAGE_BYTES + 4096
"""A message with its topic and properties."""

PUBLISH = 0x30
"""The high half of the first byte of a packet with a message."""

AT_LEAST_ONCE, EXACTLY_ONCE = 0x02, 0x04
"""The bits of that byte which QoS 1 and QoS 2 set."""

CONNACK = 0x20
"""First byte of the packet with which a broker begins."""


class BoundedClient(paho.Client):
    """A client that ends the connection when a packet is too large, or is none.

    It keeps why a connection failed.

    Args:
        address: Where the broker is.
        client_id: Unique at the broker.

    Raises:
        TransportError: A certificate file cannot be read.
    """

    refusal = ""
    """Why the connection is being ended; empty for paho's own reasons."""

    failure = ""
    """Why the last attempt to connect failed."""

    has_answered = False
    """Whether the broker has answered this attempt, with a yes or a no."""

    certificate_refused = False
    """Whether the broker refused the certificate of this attempt; `failure` says why."""

    awaits_answer = False
    """Whether nothing has come on this connection yet."""

    def __init__(self, address: BrokerAddress, client_id: str) -> None:
        super().__init__(CallbackAPIVersion.VERSION2, client_id=client_id, protocol=paho.MQTTv5)
        self.address = address
        if address.ca_file is not None:
            self.tls = tls_context(address)
            self.tls_set_context(self.tls)
        self.on_socket_open = _no_delay

    def reconnect(self) -> MQTTErrorCode:
        """Connect, as paho does; note why that fails.

        Raises:
            OSError: The broker cannot be reached.
        """
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


def _no_delay(_client: paho.Client, _data: object, sock: object) -> None:
    # Neither paho nor the usual broker disables Nagle's algorithm; with it, a round trip takes
    # 92 ms instead of 0.25.
    if isinstance(sock, socket.socket) and sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

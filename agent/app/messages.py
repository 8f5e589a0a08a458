"""Passes each message of the controller to the part that it is for, and greets on each connect."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from agent.app.desired_states import DesiredStates
from agent.install.fetch import Fetcher
from agent.link.connection import Link
from agent.link.telemetry import TelemetryPump
from agent.log import Log
from telemetry.device.recorder import Recorder
from wire.messages import Chunk, Hello, TelemetryAck, decode_message
from wire.topics import down_kind
from wire.transport import Connection, Received


class Messages:
    """Takes what the link received, one item at a time.

    Args:
        link: The connection to the controller.
        hello: Makes the greeting from the present state of the device.
        desired_states: Takes desired states.
        fetcher: Takes chunks.
        pump: Takes acknowledgements of telemetry.
        recorder: Takes an event when the broker refuses the device.
        log: Takes a line for each change of the connection.
    """

    def __init__(
        self,
        link: Link,
        hello: Callable[[], Hello],
        *,
        desired_states: DesiredStates,
        fetcher: Fetcher,
        pump: TelemetryPump,
        recorder: Recorder,
        log: Log,
    ) -> None:
        self._link = link
        self._hello = hello
        self._desired_states = desired_states
        self._fetcher = fetcher
        self._pump = pump
        self._recorder = recorder
        self._log = log

    def handle_next(self, timeout_s: float) -> None:
        """Handle the next item, if one comes in time.

        Args:
            timeout_s: How long to wait for it.

        Raises:
            FleetError: The item is malformed, or what it asks for failed.
        """
        item = self._link.next(timeout_s)
        if isinstance(item, Connection):
            self._connection_changed(item)
        elif item is not None:
            self._received(item)

    def _connection_changed(self, connection: Connection) -> None:
        self._log.write("connection", up=connection.up, reason=connection.reason)
        if connection.refused:
            reason = f"the broker refuses this device: {connection.reason}"
            self._recorder.event("refused", reason, {})
        if connection.up:
            self._link.greet(self._hello())
            self._pump.hurry()

    def _received(self, received: Received) -> None:
        match down_kind(received.topic):
            case "chunk":
                self._fetcher.deliver(decode_message(received.payload, Chunk, packed=True))
            case "telemetry_ack":
                self._pump.acknowledged(decode_message(received.payload, TelemetryAck))
            case "desired":
                self._desired_states.receive(received.payload)
            case kind:
                assert_never(kind)

"""Passes each message of the controller to the part that it is for, and greets.

Rules:
- The device greets on each connect, and when another variant, or none, has served for some seconds:
  so the controller knows what serves. It greets when it has accepted a desired state of which no
  report tells. It also greets when a desired state shows that the controller
  has not heard of this start: a controller that is killed may lose a greeting.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from typing import Final, assert_never

from agent.app.capturing import Capturing
from agent.app.desired_states import DesiredStates
from agent.app.fetching import Fetching
from agent.app.sharing import Sharing
from agent.link.connection import Link, Serving, serving
from agent.link.renewal import Renewal
from agent.link.telemetry import TelemetryPump
from agent.log import Log
from agent.measure.measurer import Measurer
from agent.trust.keeper import MetadataTrust
from wire.clock import Clock
from wire.delivery import Chunk
from wire.messages import decode_message
from wire.metadata import MetadataFiles, MetadataVersions
from wire.presence import Hello
from wire.progress import MQTT, MULTICAST
from wire.reporting import ReportRequest
from wire.telemetry import TelemetryAck
from wire.topics import DownKind, cast_name, down_kind
from wire.transport import Connection, Received

SETTLED_S: Final = 5.0
"""What serves for less is on its way to something else, or a crash that is being mended."""

UNTOLD_S: Final = 1.0
"""A report of the install that a desired state begins comes within this time."""

METADATA_FIRST_S: Final = 2.0
METADATA_LAST_S: Final = 300.0
"""When the controller is greeted again because metadata is needed that has not come: each wait is
twice the one before, until something has come."""

NOBODY_FIRST_S: Final = 2.0
NOBODY_LAST_S: Final = 60.0
"""How long the device waits before it greets again, where no controller has heard it: each time
twice as long."""

GREET_EVERY_S: Final = 30.0
"""A policy may change the variant often; the controller need not hear of each."""


class Messages:
    """Takes what the link received, one item at a time.

    Args:
        link: The connection to the controller.
        hello: Makes the greeting from the present state of the device.
        trust: Takes trusted metadata; None where a trust file takes its place.
        desired_states: Takes desired states.
        fetching: Takes chunks, pieces of casts, and where chunks are.
        sharing: Serves other devices; None if nobody is served.
        measurer: Takes requests to measure.
        pump: Takes acknowledgements of telemetry.
        capturing: Takes acknowledgements of captured samples.
        renewal: Takes certificates.
        log: Takes a line for each connection.
        clock: For how long something has served.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it passes messages to
        self,
        link: Link,
        hello: Callable[[], Hello],
        *,
        trust: MetadataTrust | None,
        desired_states: DesiredStates,
        fetching: Fetching,
        sharing: Sharing | None,
        measurer: Measurer,
        pump: TelemetryPump,
        capturing: Capturing,
        renewal: Renewal,
        log: Log,
        clock: Clock,
    ) -> None:
        self._link = link
        self._hello = hello
        self._trust = trust
        self._desired_states = desired_states
        self._fetching = fetching
        self._sharing = sharing
        self._measurer = measurer
        self._pump = pump
        self._capturing = capturing
        self._takers: dict[DownKind, Callable[[bytes], None]] = {
            "sources": fetching.offers.hear,
            "measure": measurer.ask,
            "metadata": self._take_metadata,
            "certificate": renewal.hear,
            "sample_ack": capturing.acknowledged,
        }
        self._log = log
        self._clock = clock
        self._greeted_s = 0.0
        self._untold_s = math.inf
        """Since when the controller does not know of the revision that was accepted."""

        self._seen: dict[str, Serving] = {}
        self._seen_s = 0.0
        self._lacks_metadata = threading.Event()
        self._asked_s = -math.inf
        self._asked_with: MetadataVersions | None = None
        self._ask_rest_s = METADATA_FIRST_S
        self._nobody_rest_s = NOBODY_FIRST_S
        if trust is not None:
            trust.on_missing = self._lacks_metadata.set

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
        self._tell_change()

    def _take_metadata(self, payload: bytes) -> None:
        if self._trust is not None:
            self._trust.receive(decode_message(payload, MetadataFiles).files)

    def _take_desired(self, payload: bytes) -> None:
        unheard = self._desired_states.receive(payload)
        since_s = self._clock.monotonic_s() - self._greeted_s
        # What comes at once was sent before this start was heard of, or is a recording.
        if unheard and since_s >= SETTLED_S:
            self._greet(self._hello())

    def _tell_change(self) -> None:
        """Greet again if what serves has changed and has stayed for some seconds."""
        hello, now_s = self._hello(), self._clock.monotonic_s()
        self._tell_revision(hello, now_s)
        if self._trust is not None:
            self._trust.tick()
            self._desired_states.read_again()
        self._ask_for_metadata(hello, now_s)
        self._greet_who_comes(hello, now_s)
        now = serving(hello)
        if now != self._seen:
            self._seen, self._seen_s = now, now_s
        told = self._link.told
        if now == told or now_s - self._seen_s < SETTLED_S:
            return
        began_or_ended = _answering(now) != _answering(told)
        is_due = began_or_ended or now_s - self._greeted_s >= GREET_EVERY_S
        if is_due and self._link.is_connected():
            self._greet(hello)

    def _tell_revision(self, hello: Hello, now_s: float) -> None:
        """Greet if a desired state was accepted that changed no release: no report tells it."""
        if hello.revision <= self._link.told_revision:
            self._untold_s = math.inf
            return
        self._untold_s = min(self._untold_s, now_s)
        if now_s - self._untold_s >= UNTOLD_S and self._link.is_connected():
            self._untold_s = math.inf
            self._greet(hello)

    def _ask_for_metadata(self, hello: Hello, now_s: float) -> None:
        """Greet if metadata is needed: the controller answers with what is newer."""
        if self._trust is None or not self._lacks_metadata.is_set():
            return
        has = self._trust.versions
        if has != self._asked_with:
            self._ask_rest_s = METADATA_FIRST_S
        if now_s - self._asked_s >= self._ask_rest_s and self._link.is_connected():
            self._lacks_metadata.clear()
            self._asked_s, self._asked_with = now_s, has
            self._ask_rest_s = min(2 * self._ask_rest_s, METADATA_LAST_S)
            self._greet(hello)

    def _greet_who_comes(self, hello: Hello, now_s: float) -> None:
        """Greet again while no controller hears it: one that comes later asks nobody."""
        if not self._link.greeted_nobody():
            self._nobody_rest_s = NOBODY_FIRST_S
        elif now_s - self._greeted_s >= self._nobody_rest_s and self._link.is_connected():
            self._nobody_rest_s = min(2 * self._nobody_rest_s, NOBODY_LAST_S)
            self._greet(hello)

    def _greet(self, hello: Hello) -> None:
        self._link.greet(hello)
        self._greeted_s = self._clock.monotonic_s()

    def _connection_changed(self, connection: Connection) -> None:
        if connection.up:
            self._log.write("connection", up=True)
            self._fetching.reconnected()
            if self._sharing is not None:
                self._sharing.connected(connection.address)
            self._greet(self._hello())
            self._measurer.connected()
            self._pump.hurry()
            self._capturing.connected()

    def _received(self, received: Received) -> None:
        if (name := cast_name(received.topic)) is not None:
            self._fetching.came(len(received.payload), MULTICAST)
            self._fetching.multicast.deliver(name, received.payload)
            return
        match down_kind(received.topic):
            case "chunk":
                self._fetching.came(len(received.payload), MQTT)
                self._fetching.messages.deliver(
                    decode_message(received.payload, Chunk, packed=True)
                )
            case "telemetry_ack":
                self._pump.acknowledged(decode_message(received.payload, TelemetryAck))
            case "report_request":
                self._pump.report(decode_message(received.payload, ReportRequest))
            case ("sources" | "measure" | "metadata" | "certificate" | "sample_ack") as kind:
                self._takers[kind](received.payload)
            case "desired":
                self._take_desired(received.payload)
            case kind:
                assert_never(kind)


def _answering(models: Mapping[str, Serving]) -> set[str]:
    """Return the models that a variant serves."""
    return {name for name, (_release, variant) in models.items() if variant is not None}

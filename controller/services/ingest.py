"""Passes each message of a device to its handler.

Rules:
- What devices say of themselves is taken together, as far as it comes in a row.
- Batches of telemetry that wait together are stored together, after all other messages, and are
  acknowledged when they are stored.
- A device may speak only for itself: the name in a message must be that of its topic.
- A malformed, unknown or unexpected message is counted and logged; it does not stop the others.
- The controller does not answer a device that is not enrolled.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from controller.domain.peer_urls import Network
from controller.jetstream import Logged, TelemetryLog
from controller.services.captures import Captures
from controller.services.device_certificates import DeviceCertificates
from controller.services.device_messages import DeviceMessages, Said
from controller.services.director import Director, Publisher
from controller.services.enrolment import MAX_REQUEST_BYTES, Enrolment
from controller.services.measurements import Measurements
from controller.services.metadata import FleetMetadata
from controller.services.telemetry_batches import TelemetryBatches
from controller.services.transfers import Transfers
from controller.store.database import Database
from telemetry.server.store import TelemetryStore
from wire import topics
from wire.clock import Clock
from wire.errors import FleetError, TopicError
from wire.messages import Message
from wire.token_bucket import TokenBucket
from wire.topics import UpKind
from wire.transport import Received

MAX_LOGGED_CHARS = 300
LOGGED_PER_S = 1.0
LOGGED_AT_ONCE = 100.0
"""How many refused messages the log names; the rest is counted alone."""

_log = logging.getLogger(__name__)


M = TypeVar("M", bound=Message)


def may_wait(received: Received) -> bool:
    """Tell whether a message may wait to be handled.

    Args:
        received: As it came.

    Returns:
        False for a large request to enrol: anybody who knows the fleet can send one, and it would
        only be refused when its turn comes.
    """
    is_request = received.topic.startswith(topics.ENROL)
    return not is_request or len(received.payload) <= MAX_REQUEST_BYTES


class Ingest:
    """Handles the messages of devices.

    Args:
        database: The control state.
        director: Answers a hello.
        measurements: Takes what devices measured.
        enrolment: Answers unknown devices.
        certificates: Renews the certificates of devices.
        captures: Takes what devices captured.
        telemetry: Where telemetry goes.
        transfers: Where the figures of transfers go.
        publisher: Sends the acknowledgements.
        peer_networks: Where devices may serve others.
        clock: Wall time.
        metadata: Answers a hello before the director does; None for a fleet without it.
        log: Where telemetry waits until it is stored; None: it is stored at once.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that takes messages
        self,
        database: Database,
        *,
        director: Director,
        measurements: Measurements,
        enrolment: Enrolment,
        certificates: DeviceCertificates,
        captures: Captures,
        telemetry: TelemetryStore,
        transfers: Transfers,
        publisher: Publisher,
        peer_networks: Sequence[Network],
        clock: Clock,
        metadata: FleetMetadata | None = None,
        log: TelemetryLog | None = None,
    ) -> None:
        self._measurements = measurements
        self._enrolment = enrolment
        self._clock = clock
        self._log_turns = TokenBucket(LOGGED_PER_S, LOGGED_AT_ONCE, clock.monotonic_s())
        self.counts: Counter[str] = Counter()
        """How many messages came, by kind, and how many were refused, by code."""

        self.log = log
        self._batches = TelemetryBatches(
            database, telemetry, publisher, clock, self.counts, self._refuse, log
        )
        self._messages = DeviceMessages(
            *(database, director, transfers, peer_networks, clock, self.counts, self._refuse),
            metadata=metadata,
        )
        self._handlers: dict[UpKind, Callable[[str, bytes], None]] = {
            "measured": self._measured,
            "certificate_request": certificates.renew,
            "sample": captures.take,
        }

    def store_logged(self, logged: Sequence[Logged]) -> set[int]:
        """Store batches from the log; see `TelemetryBatches.store_logged`."""
        return self._batches.store_logged(logged)

    def handle_all(self, received: Sequence[Received]) -> None:
        """Handle messages in their order; a fault in one of them is counted and logged."""
        batches: list[tuple[str, bytes]] = []
        said: list[Said] = []
        for one in received:
            try:
                self._route(one, said, batches)
            except Exception as exc:  # noqa: BLE001 - one message must not stop the others
                self._failed(one.topic, exc)
        self._take(said)
        if batches:
            try:
                self._batches.take(batches)
            except FleetError as exc:
                self._refuse(exc.code, "telemetry", exc.message)
            except Exception:  # noqa: BLE001 - the devices send them again
                _log.exception("the controller failed to handle telemetry")

    def _route(
        self, received: Received, said: list[Said], batches: list[tuple[str, bytes]]
    ) -> None:
        """Handle one message, or add it to those that are taken together.

        Raises:
            TopicError: No message of a device comes on that topic.
        """
        if received.topic.startswith(topics.ENROL):
            self.counts["enrol"] += 1
            device = topics.parse_enrol_request(received.topic)
            self._take(said)
            self._enrolment.handle(device, received.payload)
            return
        topic = topics.parse_up(received.topic)
        device, kind = topic.device, topic.kind
        if kind == "telemetry":
            self.counts[kind] += 1
            batches.append((device, received.payload))
            return
        handle = self._handlers.get(kind)
        if handle is None and not self._messages.takes(kind):
            raise TopicError(f"a {kind} has another connection")
        self.counts[kind] += 1
        if handle is None:
            said.append(self._messages.read(kind, device, received.topic, received.payload))
            return
        self._take(said)
        handle(device, received.payload)

    def _take(self, said: list[Said]) -> None:
        """Take what waits, before a message of another kind is handled."""
        self._messages.take(said, self._failed)
        said.clear()

    def _failed(self, topic: str, exc: Exception) -> None:
        if isinstance(exc, FleetError):
            self._refuse(exc.code, topic, exc.message)
        else:
            _log.error("the controller failed to handle a message on %s", topic[:200], exc_info=exc)

    def _measured(self, device: str, payload: bytes) -> None:
        if not self._measurements.take(device, payload):
            self.counts["ingest.stale"] += 1
            _log.debug("an answer of %s to a measurement is not waited for", device)

    def _refuse(self, code: str, where: str, why: str) -> None:
        self.counts[code] += 1
        if not self._log_turns.take(self._clock.monotonic_s()):
            return  # it is counted; a device that sends nonsense shall not fill the disk
        _log.warning("a message on %s was refused: %s", where[:200], why[:MAX_LOGGED_CHARS])

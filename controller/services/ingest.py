"""Decodes the messages of devices and passes each to its handler.

Rules:
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

import msgspec

from controller.domain.device_text import clean
from controller.domain.faults import Faults
from controller.domain.peer_urls import Network, why_refused
from controller.services.captures import Captures
from controller.services.device_certificates import DeviceCertificates
from controller.services.director import Director, Publisher
from controller.services.enrolment import MAX_REQUEST_BYTES, Enrolment
from controller.services.measurements import Measurements
from controller.services.metadata import FleetMetadata
from controller.services.own_messages import own_message
from controller.services.telemetry_batches import TelemetryBatches
from controller.services.transfers import Transfers
from controller.store import desired, device_status, hellos, reports
from controller.store.database import Database
from telemetry.server.store import TelemetryStore
from wire import topics
from wire.clock import Clock
from wire.errors import FleetError, TopicError
from wire.installs import InstallReport, Refusal
from wire.messages import Message
from wire.presence import Hello, Presence
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
    ) -> None:
        self._metadata = metadata
        self._database = database
        self._director = director
        self._measurements = measurements
        self._enrolment = enrolment
        self._transfers = transfers
        self._peer_networks = peer_networks
        self._peer_faults = Faults()
        self._clock = clock
        self._log_turns = TokenBucket(LOGGED_PER_S, LOGGED_AT_ONCE, clock.monotonic_s())
        self.counts: Counter[str] = Counter()
        """How many messages came, by kind, and how many were refused, by code."""

        self._batches = TelemetryBatches(
            database, telemetry, publisher, clock, self.counts, self._refuse
        )

        self._handlers: dict[UpKind, Callable[[str, bytes], None]] = {
            "hello": self._hello,
            "presence": self._presence,
            "report": self._report,
            "refusal": self._refusal,
            "measured": self._measured,
            "certificate_request": certificates.renew,
            "sample": captures.take,
        }

    def handle_all(self, received: Sequence[Received]) -> None:
        """Handle messages in their order; a fault in one of them is counted and logged."""
        batches: list[tuple[str, bytes]] = []
        for one in received:
            try:
                self._route(one, batches)
            except FleetError as exc:
                self._refuse(exc.code, one.topic, exc.message)
            except Exception:  # noqa: BLE001 - one message must not stop the others
                _log.exception("the controller failed to handle a message on %s", one.topic[:200])
        if batches:
            try:
                self._batches.take(batches)
            except FleetError as exc:
                self._refuse(exc.code, "telemetry", exc.message)
            except Exception:  # noqa: BLE001 - the devices send them again
                _log.exception("the controller failed to handle telemetry")

    def _route(self, received: Received, batches: list[tuple[str, bytes]]) -> None:
        """Handle one message, or add it to the batches of telemetry.

        Raises:
            TopicError: No message of a device comes on that topic.
        """
        if received.topic.startswith(topics.ENROL):
            self.counts["enrol"] += 1
            device = topics.parse_enrol_request(received.topic)
            self._enrolment.handle(device, received.payload)
            return
        topic = topics.parse_up(received.topic)
        if topic.kind == "telemetry":
            self.counts[topic.kind] += 1
            batches.append((topic.device, received.payload))
            return
        handle = self._handlers.get(topic.kind)
        if handle is None:
            raise TopicError(f"a {topic.kind} has another connection")
        self.counts[topic.kind] += 1
        handle(topic.device, received.payload)

    def _hello(self, device: str, payload: bytes) -> None:
        hello = own_message(payload, Hello, device)
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            device_status.take_turn(transaction, device)
            known = device_status.find(transaction, device)
            answer = known is not None and hellos.take_hello(
                transaction, known, hello, peer_url=self._peer_url(hello), now_s=now_s
            )
        if known is None:
            self._refuse("ingest.stranger", device, "not enrolled")
            return
        versions = hello.metadata
        if self._metadata is not None and not isinstance(versions, msgspec.UnsetType):
            self._metadata.greet(device, versions)
            answer = answer or versions.lacks_desired
        if answer:
            self._director.publish([device])

    def _peer_url(self, hello: Hello) -> str | None:
        """Return where a device serves others; None if nowhere, or if that is no address.

        One outside the networks of today is kept: it is told to nobody, but the operator sees it.
        """
        url = hello.peer_url
        if isinstance(url, msgspec.UnsetType):
            return None
        fault = why_refused(url, self._peer_networks)
        if fault and self._peer_faults.is_first(hello.device, self._clock.monotonic_s()):
            _log.warning("the address of device %s for its peers %s", hello.device, fault)
        return None if why_refused(url, None) else url

    def _presence(self, device: str, payload: bytes) -> None:
        presence = own_message(payload, Presence, device)
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            device_status.take_turn(transaction, device)
            known = device_status.find(transaction, device)
            if known is not None:
                hellos.take_presence(known.device, presence, now_s=now_s)

    def _report(self, device: str, payload: bytes) -> None:
        report = own_message(payload, InstallReport, device)
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            device_status.take_turn(transaction, device)
            known = device_status.find(transaction, device)
            model = None
            if known is not None:
                model = reports.take_report(transaction, known, report, now_s=now_s)
        if model is not None:
            self._transfers.note(report, model)
        else:
            self.counts["ingest.stale"] += 1
            _log.debug("a report of %s for revision %s is ignored", device, report.revision)

    def _refusal(self, device: str, payload: bytes) -> None:
        refusal = own_message(payload, Refusal, device)
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            device_status.take_turn(transaction, device)
            known = device_status.find(transaction, device)
            sent = desired.documents(transaction, [device])
            ours = self._director.is_newest(sent, refusal.sha256)
            is_new = known is not None and reports.take_refusal(
                transaction, known, refusal, ours=ours, now_s=now_s
            )
        if known is None:
            self._refuse("ingest.stranger", device, "not enrolled")
        elif is_new:
            _log.warning("device %s refuses a desired state: %s", device, _shown(refusal))

    def _measured(self, device: str, payload: bytes) -> None:
        if not self._measurements.take(device, payload):
            self.counts["ingest.stale"] += 1
            _log.debug("an answer of %s to a measurement is not waited for", device)

    def _refuse(self, code: str, where: str, why: str) -> None:
        self.counts[code] += 1
        if not self._log_turns.take(self._clock.monotonic_s()):
            return  # it is counted; a device that sends nonsense shall not fill the disk
        _log.warning("a message on %s was refused: %s", where[:200], why[:MAX_LOGGED_CHARS])


def _shown(refusal: Refusal) -> str:
    return clean(refusal.detail, MAX_LOGGED_CHARS)

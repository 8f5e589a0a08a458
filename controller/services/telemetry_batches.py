"""Stores batches of telemetry, several at once, and acknowledges them.

Rules:
- What cannot be read or stored is kept as a dead letter and does not keep the others back.
- The more devices there are, the more seldom they are asked to report.
- A batch is acknowledged when it is stored. If the database fails none is, and the devices send
  them again.
- An acknowledgement says what time it is here, so that devices know how wrong their clocks are. A
  batch whose device should know it first is asked for again.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from controller.services.director import Publisher
from controller.services.own_messages import own_message
from controller.store import device_status
from controller.store.database import Database
from telemetry.server.store import TelemetryStore
from wire import topics
from wire.clock import Clock
from wire.codec import to_json
from wire.errors import FleetError, WireFormatError
from wire.packed import readable
from wire.telemetry import TelemetryAck, TelemetryBatch
from wire.token_bucket import TokenBucket

BURIED_PER_S: Final = 1.0
BURIED_AT_ONCE: Final = 20.0
"""How many dead letters are written; the rest is counted alone. A device that sends nonsense must
not make the database write."""

BATCHES_PER_S: Final = 100.0
"""What all devices together are asked to send at most: some 3,000 rows a second."""

USUAL_S: Final = 10.0
"""How often a device reports by itself."""

COUNT_EVERY_S: Final = 60.0

ITEMS_AT_ONCE: Final = 20_000
"""Points and events that are stored together: each takes a kilobyte as an object, and a compressed
batch holds many in few bytes."""

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    batch: TelemetryBatch
    payload: bytes


@dataclass(slots=True)
class _Answer:
    """What the batches of one start of a device are answered."""

    stored: list[int] = field(default_factory=list)
    again: list[int] = field(default_factory=list)
    sent_steady_s: float | msgspec.UnsetType = msgspec.UNSET


def report_every_s(devices: int) -> float | msgspec.UnsetType:
    """Return how often devices are asked to report; unset where they may as they do.

    Args:
        devices: How many there are.
    """
    every_s = devices / BATCHES_PER_S
    return msgspec.UNSET if every_s <= USUAL_S else every_s


class TelemetryBatches:
    """Takes the telemetry of devices.

    Args:
        database: Which devices are enrolled.
        telemetry: Where it goes.
        publisher: Sends the acknowledgements.
        clock: Wall time.
        counts: How many messages were refused or came again, by code.
        refuse: Counts and logs a fault: its code, where it is, and what it is.
    """

    def __init__(
        self,
        database: Database,
        telemetry: TelemetryStore,
        publisher: Publisher,
        clock: Clock,
        counts: Counter[str],
        refuse: Callable[[str, str, str], None],
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._publisher = publisher
        self._clock = clock
        self._counts = counts
        self._refuse = refuse
        self._counted_at_s: float | None = None
        self._enrolled = 0
        self._turns = TokenBucket(BURIED_PER_S, BURIED_AT_ONCE, clock.monotonic_s())

    def take(self, received: Sequence[tuple[str, bytes]]) -> None:
        """Store batches and acknowledge them.

        Args:
            received: Devices, and what they sent, in its order.

        Raises:
            DatabaseError: The database failed; nothing is acknowledged.
            TelemetryStoreError: The same.
        """
        known = self._note_seen({device for device, _ in received})
        waiting: list[_Waiting] = []
        items = 0
        for device, payload in received:
            if device not in known:
                self._refuse("ingest.stranger", device, "not enrolled")
                continue
            try:
                batch = own_message(payload, TelemetryBatch, device, packed=True)
            except WireFormatError as exc:
                self._bury(device, exc, payload)
                continue
            waiting.append(_Waiting(batch, payload))
            items += len(batch.points) + len(batch.events)
            if items >= ITEMS_AT_ONCE:
                self._store(waiting)
                waiting, items = [], 0
        if waiting:
            self._store(waiting)

    def _store(self, waiting: Sequence[_Waiting]) -> None:
        """Store batches together and acknowledge them."""
        answers: defaultdict[tuple[str, str], _Answer] = defaultdict(_Answer)
        outcomes = self._telemetry.ingest_all([each.batch for each in waiting])
        for (batch, payload), outcome in zip(waiting, outcomes, strict=True):
            if outcome.fault is not None:
                self._bury(batch.device, outcome.fault, payload)
                continue
            answer = answers[batch.device, batch.boot_id]
            if outcome.is_asked_again:
                self._counts["ingest.asked_again"] += 1
                answer.again.append(batch.sequence)
            else:
                self._counts["ingest.duplicate"] += not outcome.is_new
                answer.stored.append(batch.sequence)
            if not isinstance(batch.clock, msgspec.UnsetType):
                answer.sent_steady_s = batch.clock.sent_steady_s
        every_s, now_s = self._report_every_s(), self._clock.now_s()
        for (device, boot_id), answer in answers.items():
            ack = TelemetryAck(
                boot_id=boot_id,
                sequences=tuple(answer.stored),
                reads=readable(),
                report_every_s=every_s,
                at_s=now_s,
                sent_steady_s=answer.sent_steady_s,
                again=tuple(answer.again) or msgspec.UNSET,
            )
            self._publisher.publish(topics.down(device, "telemetry_ack"), to_json(ack))

    def _note_seen(self, devices: set[str]) -> set[str]:
        """Record that devices said something; return those that are enrolled."""
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            noted = device_status.noted(transaction, devices, now_s=now_s)
        new = [device for device, is_noted in noted.items() if not is_noted]
        if new:
            with self._database.transaction() as transaction:
                device_status.note_all_seen(transaction, new, now_s=now_s)
        return set(noted)

    def _report_every_s(self) -> float | msgspec.UnsetType:
        """Return how seldom devices are asked to report, so that all together are no burden."""
        now_s = self._clock.monotonic_s()
        if self._counted_at_s is None or now_s - self._counted_at_s >= COUNT_EVERY_S:
            with self._database.reading() as transaction:
                self._enrolled = device_status.count_enrolled(transaction)
            self._counted_at_s = now_s
        return report_every_s(self._enrolled)

    def _bury(self, device: str, fault: WireFormatError, payload: bytes) -> None:
        self._refuse(fault.code, topics.up(device, "telemetry"), fault.message)
        if not self._turns.take(self._clock.monotonic_s()):
            return
        try:
            self._telemetry.bury(device, fault.message, payload)
        except FleetError as exc:
            _log.warning("a dead letter of device %s is not kept: %s", device, exc)

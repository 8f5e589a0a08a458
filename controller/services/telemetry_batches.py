"""Stores batches of telemetry, several at once, and acknowledges them.

Rules:
- What cannot be read or stored is kept as a dead letter and does not keep the others back.
- The more devices there are, the more seldom they are asked to report.
- A batch is acknowledged when it is stored, or when the log has it, where there is one
  (`controller.jetstream`). If that fails none is, and the devices send them again.
- With a log, devices that were enrolled when the database last answered are taken for enrolled
  while it does not.
- An acknowledgement says what time it is here, so that devices know how wrong their clocks are. A
  batch whose device should know it first is asked for again.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from controller.errors import DatabaseError
from controller.jetstream import Entry, Logged, TelemetryLog
from controller.services.director import Publisher
from controller.services.own_messages import own_message
from controller.store import device_status
from controller.store.database import Database
from telemetry.server.intake import COUNTABLE, Outcome
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

FAILS_TOGETHER: Final = 3
"""After so many failures, a batch from the log is stored alone."""

FAILS_IN_A_ROW: Final = 3
"""After so many failures of batches alone, rather the database fails: the others wait."""

FAILS: Final = 30
"""After so many failures, in a database that works, a batch from the log is a dead letter."""

MOST_FAILING: Final = 5000

ITEMS_AT_ONCE: Final = 20_000
"""Points and events that are stored together: each takes a kilobyte as an object, and a compressed
batch holds many in few bytes."""

_log = logging.getLogger(__name__)


class _Waiting(NamedTuple):
    batch: TelemetryBatch
    payload: bytes
    came_s: float
    at: int
    """Which of those that were handed over together."""


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
        log: Where batches wait until they are stored; None: they are stored at once.
    """

    def __init__(
        self,
        database: Database,
        telemetry: TelemetryStore,
        publisher: Publisher,
        clock: Clock,
        counts: Counter[str],
        refuse: Callable[[str, str, str], None],
        log: TelemetryLog | None = None,
    ) -> None:
        self._log = log
        self._database = database
        self._telemetry = telemetry
        self._publisher = publisher
        self._clock = clock
        self._counts = counts
        self._refuse = refuse
        self._counted_at_s: float | None = None
        self._enrolled = 0
        self._known_before: set[str] = set()
        """Devices that were enrolled when the database last answered, where there is a log."""

        self._fails: Counter[int] = Counter()
        """How often batches from the log failed that are not stored yet, by a hash of each."""

        self._turns = TokenBucket(BURIED_PER_S, BURIED_AT_ONCE, clock.monotonic_s())

    def take(self, received: Sequence[tuple[str, bytes]]) -> None:
        """Store batches, or put them into the log, and acknowledge them.

        Args:
            received: Devices, and what they sent, in its order.

        Raises:
            DatabaseError: The database failed; nothing is acknowledged. Not with a log.
            TelemetryStoreError: The same.
        """
        known = self._known({device for device, _ in received})
        for device, _ in received:
            if device not in known:
                self._refuse("ingest.stranger", device, "not enrolled")
        now_s, unreadable = self._clock.now_s(), set[int]()
        ours = [Logged(device, payload, now_s) for device, payload in received if device in known]
        for waiting in self._readable(ours, unreadable):
            if self._log is None:
                self._acknowledge(self._stored(waiting, unreadable), self._report_every_s())
            else:
                self._put(self._log, waiting)

    def store_logged(self, logged: Sequence[Logged]) -> set[int]:
        """Store batches from the log; they are acknowledged long since.

        Args:
            logged: As they were put there, in its order.

        Returns:
            Which of them can never be stored; those that may be read are dead letters.

        Raises:
            FleetError: The database failed; all are to be handed over again.
        """
        hashes = [hash(each) for each in logged]
        try:
            unreadable = self._store_all(logged)
        except FleetError:
            if len(self._fails) > MOST_FAILING:
                self._fails.clear()
            self._fails.update(hashes)
            if max((self._fails[each] for each in hashes), default=0) < FAILS_TOGETHER:
                raise
            unreadable = self._store_apart(logged)
        for each in hashes:
            self._fails.pop(each, None)
        return unreadable

    def _store_all(self, logged: Sequence[Logged]) -> set[int]:
        """Store batches from the log, together if possible; return which can never be stored.

        Raises:
            FleetError: The database failed.
        """
        unreadable: set[int] = set()
        try:
            for waiting in self._readable(logged, unreadable):
                for _, outcome in self._stored(waiting, unreadable):
                    # Its device has forgotten it, so it cannot be asked; never with one tolerance.
                    if outcome.is_asked_again:
                        self._counts["ingest.asked_too_late"] += 1
        except Exception as exc:
            if isinstance(exc, FleetError) and exc.retryable:
                raise
            # One of them must not hold up the others for ever: which?
            if len(logged) == 1:
                _log.exception("the controller failed to handle telemetry from the log")
                fault = WireFormatError("the controller failed to handle it")
                self._bury(logged[0].device, fault, logged[0].payload)
                return {0}
            return {at for at, each in enumerate(logged) if self._store_all([each])}
        return unreadable

    def _store_apart(self, logged: Sequence[Logged]) -> set[int]:
        """Store batches one by one: the database may fail with one of them alone.

        Returns:
            Which of them can never be stored.

        Raises:
            FleetError: Some are to be handed over again; all of them may be.
        """
        unreadable: set[int] = set()
        failed: FleetError | None = None
        in_a_row = 0
        for at, each in enumerate(logged):
            try:
                if self._store_alone(each):
                    unreadable.add(at)
                in_a_row = 0
            except FleetError as exc:
                failed, in_a_row = exc, in_a_row + 1
                if in_a_row >= FAILS_IN_A_ROW:
                    raise
        if failed is not None:
            raise failed
        return unreadable

    def _store_alone(self, one: Logged) -> bool:
        """Store a batch from the log; return whether it never can be.

        Raises:
            FleetError: The database failed; it is to be handed over again.
        """
        try:
            return bool(self._store_all([one]))
        except FleetError:
            if self._fails[hash(one)] < FAILS:
                raise
        # If the database was away until now, it is not the fault of the batch.
        with self._database.reading() as transaction:
            device_status.count_enrolled(transaction)
        try:
            return bool(self._store_all([one]))
        except FleetError as exc:
            self._telemetry.bury(one.device, exc.message, one.payload)
            _log.warning("telemetry of device %s is a dead letter: %s", one.device, exc.message)
            return True

    def _readable(
        self, logged: Sequence[Logged], unreadable: set[int]
    ) -> Iterator[Sequence[_Waiting]]:
        """Yield what can be read, as much as is handled together; the rest is kept for people."""
        waiting: list[_Waiting] = []
        items = 0
        for at, (device, payload, came_s) in enumerate(logged):
            try:
                batch = own_message(payload, TelemetryBatch, device, packed=True)
            except WireFormatError as exc:
                self._bury(device, exc, payload)
                unreadable.add(at)
                continue
            waiting.append(_Waiting(batch, payload, came_s, at))
            items += len(batch.points) + len(batch.events)
            if items >= ITEMS_AT_ONCE:
                yield waiting
                waiting, items = [], 0
        if waiting:
            yield waiting

    def _stored(
        self, waiting: Sequence[_Waiting], unreadable: set[int]
    ) -> list[tuple[TelemetryBatch, Outcome]]:
        """Store batches together; return what became of those that can be stored."""
        found: list[tuple[TelemetryBatch, Outcome]] = []
        batches = [each.batch for each in waiting]
        outcomes = self._telemetry.ingest_all(batches, [each.came_s for each in waiting])
        for (batch, payload, _, at), outcome in zip(waiting, outcomes, strict=True):
            if outcome.fault is not None:
                self._bury(batch.device, outcome.fault, payload)
                unreadable.add(at)
                continue
            if not outcome.is_asked_again:
                self._counts["ingest.duplicate"] += not outcome.is_new
            found.append((batch, outcome))
        return found

    def _put(self, log: TelemetryLog, waiting: Sequence[_Waiting]) -> None:
        """Put batches into the log; they are acknowledged when it has them."""
        again: list[tuple[TelemetryBatch, Outcome]] = []
        entries: list[Entry] = []
        for batch, payload, came_s, _ in waiting:
            outcome = self._telemetry.first_look(batch, came_s)
            if outcome.fault is not None:
                self._bury(batch.device, outcome.fault, payload)
            elif outcome.is_asked_again:
                again.append((batch, outcome))
            else:
                entries.append(Entry(batch, payload, came_s))
        every_s = self._report_every_s()
        self._acknowledge(again, every_s)
        log.put(
            entries,
            lambda taken: self._acknowledge([(each.batch, COUNTABLE) for each in taken], every_s),
        )

    def _acknowledge(
        self, found: Iterable[tuple[TelemetryBatch, Outcome]], every_s: float | msgspec.UnsetType
    ) -> None:
        """Tell devices which batches they may forget, and which to send again."""
        answers: defaultdict[tuple[str, str], _Answer] = defaultdict(_Answer)
        for batch, outcome in found:
            answer = answers[batch.device, batch.boot_id]
            if outcome.is_asked_again:
                self._counts["ingest.asked_again"] += 1
                answer.again.append(batch.sequence)
            else:
                answer.stored.append(batch.sequence)
            if not isinstance(batch.clock, msgspec.UnsetType):
                answer.sent_steady_s = batch.clock.sent_steady_s
        now_s = self._clock.now_s()
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

    def _known(self, devices: set[str]) -> set[str]:
        """Record that devices said something; return those that are enrolled.

        Raises:
            DatabaseError: The database failed, and there is no log.
        """
        try:
            known = self._note_seen(devices)
        except DatabaseError:
            if self._log is None:
                raise
            return devices & self._known_before
        if self._log is not None:
            self._known_before.difference_update(devices)
            self._known_before.update(known)
        return known

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
        """Return how seldom devices are asked to report, so that all together are no burden.

        Raises:
            DatabaseError: The database failed, and there is no log.
        """
        now_s = self._clock.monotonic_s()
        if self._counted_at_s is None or now_s - self._counted_at_s >= COUNT_EVERY_S:
            try:
                with self._database.reading() as transaction:
                    self._enrolled = device_status.count_enrolled(transaction)
                self._counted_at_s = now_s
            except DatabaseError:
                if self._log is None:
                    raise
        return report_every_s(self._enrolled)

    def _bury(self, device: str, fault: WireFormatError, payload: bytes) -> None:
        self._refuse(fault.code, topics.up(device, "telemetry"), fault.message)
        if not self._turns.take(self._clock.monotonic_s()):
            return
        try:
            self._telemetry.bury(device, fault.message, payload)
        except FleetError as exc:
            _log.warning("a dead letter of device %s is not kept: %s", device, exc)

"""The telemetry store as the controller uses it: takes batches, answers questions.

Rules:
- The questions are those of `telemetry.server.query`; here they are only passed on as typed.
"""

from __future__ import annotations

from controller.ports import TelemetryQuestion
from controller.schemas import DeviceEvent, TelemetryTable
from controller.store.database import Database
from telemetry.server import query
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.messages import TelemetryBatch

SECONDS_PER_DAY = 86_400.0


class TelemetryAccess:
    """Telemetry in the controller's database.

    Args:
        database: Migrated.
        clock: Wall time.
    """

    def __init__(self, database: Database, clock: Clock) -> None:
        self._store = TelemetryStore(database.engine)
        self._clock = clock

    def ingest(self, batch: TelemetryBatch) -> bool:
        """Store a batch once; see `controller.ports.TelemetrySink`.

        Raises:
            WireFormatError: An identifier or number that cannot be.
            TelemetryStoreError: The database does not answer.
        """
        return self._store.ingest(batch)

    def query(self, question: TelemetryQuestion) -> TelemetryTable:
        """Answer a question; see `controller.ports.TelemetryReader`.

        Raises:
            QueryError: It cannot be understood.
            TelemetryStoreError: The database does not answer.
        """
        parsed = query.parse(
            question.metric,
            statistics=question.statistics,
            group_by=question.group_by,
            where=question.where,
            since=question.since,
            step=question.step,
            now_s=self._clock.now_s(),
        )
        table = query.run(self._store, parsed)
        return TelemetryTable(columns=list(table.columns), rows=[list(row) for row in table.rows])

    def events(
        self, device: str, *, kinds: tuple[str, ...], since_s: float, limit: int
    ) -> list[DeviceEvent]:
        """Return what happened on a device; see `controller.ports.TelemetryReader`.

        Raises:
            TelemetryStoreError: The database does not answer.
        """
        found = self._store.events(device, kinds, since_s, limit)
        return [
            DeviceEvent(
                device=item.device,
                at_s=item.event.at_s,
                kind=item.event.kind,
                reason=item.event.reason,
                data=item.event.data,
            )
            for item in found
        ]

    def prune(self, retention_days: float) -> int:
        """Forget what is older than some days; return how many rows are gone.

        Raises:
            TelemetryStoreError: The database does not answer.
        """
        return self._store.prune(self._clock.now_s() - retention_days * SECONDS_PER_DAY)

"""Saved queries of the telemetry, which all operators of the fleet share.

Rules:
- What is saved can be asked: its words, times and selector are read before it is kept, and its
  metric has its statistics. A metric that agents report need not have been reported yet, and a
  group may be a label that no device has yet: that is said when it is saved.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator

from controller.domain.names import checked_name
from controller.domain.saved_queries import (
    check_metric,
    check_size,
    checked_author,
)
from controller.domain.selectors import parse_selector
from controller.query_schemas import KeptQuery, SavedQuery, SavedQueryRequest
from controller.services.device_queries import condition_doubts, over_devices, selector_doubt
from controller.services.devices import Devices
from controller.store import policies, saved_queries
from controller.store.database import Database
from controller.store.groups import read_selector
from controller.store.saved_query_tables import SavedQueryRow
from telemetry.errors import QueryError
from telemetry.server import query as telemetry_query
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.codec import convert, to_builtins, to_json

_log = logging.getLogger(__name__)


class SavedQueries:
    """The saved queries of the fleet.

    Args:
        database: The control state.
        telemetry: What devices have reported.
        devices: The devices of the fleet.
        clock: Wall time.
    """

    def __init__(
        self, database: Database, telemetry: TelemetryStore, devices: Devices, clock: Clock
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._devices = devices
        self._clock = clock

    def all(self) -> list[SavedQuery]:
        """Return the saved queries by name.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            return [_to_schema(row) for row in saved_queries.all_rows(transaction)]

    def get(self, name: str) -> SavedQuery:
        """Return a saved query.

        Args:
            name: Its name.

        Returns:
            The query, and who saved it.

        Raises:
            InvalidRequestError: No saved query can have that name.
            UnknownSavedQueryError: There is none of that name.
        """
        with self._database.reading() as transaction:
            return _to_schema(saved_queries.get(transaction, checked_name(name, "a saved query")))

    def put(self, name: str, request: SavedQueryRequest, *, replace: bool) -> KeptQuery:
        """Save a query; repeating the call changes nothing.

        Args:
            name: Its name.
            request: The query, and who saves it.
            replace: Whether it may take the place of another one of that name.

        Returns:
            The query as it is kept, and why it could not be answered today.

        Raises:
            InvalidRequestError: The name, the query or the author is not valid.
            QueryError: The query makes no sense.
            UnknownMetricError: No device has reported its metric, and no agent does.
            SelectorError: Its selector cannot be read.
            ConflictError: Another query has that name, or there are too many.
        """
        now_s = self._clock.now_s()
        checked_name(name, "a saved query")
        query = request.query
        check_metric(query.metric)
        check_size(len(to_json(to_builtins(query))))
        parse_selector(query.selector)
        parsed = telemetry_query.parse(
            query.metric,
            statistics=query.stat,
            group_by=query.by,
            where=",".join(query.where),
            since=query.since,
            until=query.until,
            step=query.step,
            now_s=now_s,
        )
        asked = telemetry_query.Query(
            metric=parsed.metric,
            statistics=parsed.statistics,
            devices=frozenset(),  # whose values do not matter here
            since_s=now_s - 1,
            until_s=now_s,
        )
        telemetry_query.run(self._telemetry, asked)
        asked = dataclasses.replace(asked, group_by=parsed.group_by, where=parsed.where)
        doubts = list(self._doubts(asked, query.selector))
        row = SavedQueryRow(
            name=name,
            query=to_builtins(query),
            saved_by=checked_author(request.saved_by),
            saved_at_s=now_s,
        )
        with self._database.transaction() as transaction:
            policies.lock(transaction)
            read_selector(transaction, query.selector, now_s=now_s)
            is_new = saved_queries.put(transaction, row, replace=replace)
        if is_new:
            _log.info("the query %s is saved", name)
        return KeptQuery(**vars(self.get(name)), doubts=doubts)

    def remove(self, name: str) -> SavedQuery:
        """Remove a saved query.

        Args:
            name: Its name.

        Returns:
            The query as it was.

        Raises:
            InvalidRequestError: No saved query can have that name.
            UnknownSavedQueryError: There is none of that name.
        """
        with self._database.transaction() as transaction:
            removed = _to_schema(
                saved_queries.get(transaction, checked_name(name, "a saved query"))
            )
            saved_queries.remove(transaction, name)
        _log.info("the saved query %s is removed", name)
        return removed

    def _doubts(self, asked: telemetry_query.Query, selector: str) -> Iterator[str]:
        """Yield why a query that makes sense has no answer today."""
        if doubt := selector_doubt(self._devices, selector):
            yield doubt
        narrowed = over_devices(self._devices, "", asked.group_by)(asked)
        try:
            telemetry_query.run(
                self._telemetry, dataclasses.replace(narrowed, devices=asked.devices)
            )
        except QueryError as exc:
            yield str(exc)
        else:
            yield from condition_doubts(self._telemetry, asked.metric, asked.where)


def _to_schema(row: SavedQueryRow) -> SavedQuery:
    return convert(
        {
            "name": row.name,
            "query": row.query,
            "saved_by": row.saved_by,
            "saved_at_s": row.saved_at_s,
        },
        SavedQuery,
    )

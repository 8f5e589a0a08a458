"""Requests about what devices measured."""

from __future__ import annotations

from collections.abc import Sequence

from controller.client.connection import segment
from controller.client.listing import Listing, Resource, order
from controller.query_schemas import KeptQuery, SavedQuery, SavedQueryRequest
from controller.telemetry_schemas import ReportedMetric, TelemetryTable


class Telemetry(Resource):
    """What devices measured."""

    def query(
        self,
        metric: str,
        *,
        stat: str = "",
        by: str = "",
        where: Sequence[str] = (),
        selector: str = "",
        since: str = "",
        until: str = "",
        step: str = "",
    ) -> TelemetryTable:
        """Ask the telemetry.

        Args:
            metric: Such as `inference_latency_ms`; several with commas.
            stat: Such as `p95`; several with commas; empty for what fits the metric.
            by: What to group by; several with commas.
            where: Conditions, each as `key=value`.
            selector: Only devices that match.
            since: How far back, such as `1h`, or a time.
            until: Such as `10m`, or a time; empty for now.
            step: Length of one row, such as `5m`; empty for one row in all.
        """
        asked: dict[str, str | list[str]] = {
            "metric": metric, "stat": stat, "by": by, "where": [*where], "selector": selector,
            "since": since, "until": until, "step": step,
        }  # fmt: skip
        params = {name: value for name, value in asked.items() if value}
        return self._api.get("/v1/telemetry/query", TelemetryTable, params)

    def metrics(self) -> list[ReportedMetric]:
        """Return what devices report."""
        return self._api.get("/v1/telemetry/metrics", list[ReportedMetric])


class SavedQueries(Resource):
    """Queries of the telemetry that were saved."""

    def list(self, *, sort: str = "", reverse: bool = False) -> Listing[SavedQuery]:
        """List the saved queries.

        Args:
            sort: `name` or `saved`; empty for `name`.
            reverse: The other way round.
        """
        return Listing(self._api, "/v1/telemetry/saved", SavedQuery, order(sort, reverse=reverse))

    def get(self, query: str) -> SavedQuery:
        """Return a saved query, and who saved it."""
        return self._api.get(f"/v1/telemetry/saved/{segment(query)}", SavedQuery)

    def save(self, query: str, request: SavedQueryRequest, *, replace: bool = False) -> KeptQuery:
        """Save a query.

        Args:
            query: Its name.
            request: The query.
            replace: Whether it may take the place of another one of that name.
        """
        path = f"/v1/telemetry/saved/{segment(query)}{'?replace=true' if replace else ''}"
        return self._api.send("PUT", path, KeptQuery, request)

    def forget(self, query: str) -> SavedQuery:
        """Remove a saved query."""
        return self._api.send("DELETE", f"/v1/telemetry/saved/{segment(query)}", SavedQuery)

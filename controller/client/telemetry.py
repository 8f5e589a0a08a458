"""Requests about what devices measured."""

from __future__ import annotations

from collections.abc import Sequence

from controller.client.connection import segment
from controller.client.listing import Listing, Resource, order
from controller.drift_schemas import DriftingDevices, ReleaseDrift
from controller.query_schemas import (
    KeptQuery,
    ReportAsked,
    ReportState,
    SavedQuery,
    SavedQueryRequest,
    TelemetryQuestion,
)
from controller.telemetry_schemas import (
    DeadLetter,
    DeviceEvent,
    ReportedMetric,
    ReportingDevice,
    TelemetryComparison,
    TelemetryTable,
)


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
        return self.answer(
            TelemetryQuestion(
                metric=metric, stat=stat, by=by, where=[*where], selector=selector, since=since,
                until=until, step=step,
            )
        )  # fmt: skip

    def answer(self, question: TelemetryQuestion) -> TelemetryTable:
        """Answer a question, such as one that was saved."""
        asked = _said(
            metric=question.metric, stat=question.stat, by=question.by, where=question.where,
            selector=question.selector, since=question.since, until=question.until,
            step=question.step,
        )  # fmt: skip
        return self._api.get("/v1/telemetry/query", TelemetryTable, asked)

    def compare(  # noqa: PLR0913 - the words of a query, and two groups
        self,
        metric: str,
        first: str,
        second: str,
        *,
        stat: str = "",
        by: str = "",
        where: Sequence[str] = (),
        selector: str = "",
        since: str = "",
        until: str = "",
        unit: str = "",
    ) -> TelemetryComparison:
        """Tell whether two groups differ by more than chance.

        Args:
            metric: Such as `inference_latency_ms`.
            first: The first group, such as `digits:1.0.0`.
            second: The second one.
            stat: `mean`, or a quantile of a histogram such as `p95`; empty for `mean`.
            by: What parts the groups, an attribute or a label; empty for `release`.
            where: Conditions, each as `key=value`.
            selector: Only devices that match.
            since: How far back, such as `1h`, or a time; empty for `1h`.
            until: Such as `10m`, or a time; empty for now.
            unit: A label whose values are compared in place of devices.
        """
        asked = _said(
            metric=metric, first=first, second=second, by=by, stat=stat, where=where,
            selector=selector, since=since, until=until, unit=unit,
        )  # fmt: skip
        return self._api.get("/v1/telemetry/compare", TelemetryComparison, asked)

    def drift(
        self,
        release: str,
        *,
        variant: str = "",
        selector: str = "",
        since: str = "",
        until: str = "",
        unit: str = "",
    ) -> ReleaseDrift:
        """Compare what devices ask and answer with the evaluation that a package carries.

        Args:
            release: As `NAME:VERSION` or its digest.
            variant: Only this one; empty for all.
            selector: Only devices that match.
            since: How far back, such as `7d`, or a time.
            until: Such as `10m`, or a time; empty for now.
            unit: A label whose values count in place of devices.
        """
        asked = _said(
            release=release, variant=variant, selector=selector, since=since, until=until,
            unit=unit,
        )  # fmt: skip
        return self._api.get("/v1/telemetry/drift", ReleaseDrift, asked)

    def drifting_devices(
        self,
        release: str,
        *,
        variant: str = "",
        selector: str = "",
        since: str = "",
        until: str = "",
        limit: int = 20,
    ) -> DriftingDevices:
        """Return the devices that moved furthest from the evaluation that a package carries.

        Args:
            release: As `NAME:VERSION` or its digest.
            variant: Only this one; empty for all.
            selector: Only devices that match.
            since: How far back, such as `7d`, or a time.
            until: Such as `10m`, or a time; empty for now.
            limit: The greatest number.
        """
        asked = _said(
            release=release, variant=variant, selector=selector, since=since, until=until,
            limit=str(limit),
        )  # fmt: skip
        return self._api.get("/v1/telemetry/drift/devices", DriftingDevices, asked)

    def events(
        self,
        *,
        kind: Sequence[str] = (),
        where: Sequence[str] = (),
        selector: str = "",
        since: str = "",
        until: str = "",
        model: str | None = None,
        limit: int = 200,
    ) -> list[DeviceEvent]:
        """Return what happened on devices, the oldest first.

        Args:
            kind: Only these; empty for all.
            where: Conditions on their data, each as `key=value`.
            selector: Only devices that match.
            since: How far back, such as `7d`, or a time.
            until: Such as `10m`, or a time; empty for now.
            model: Only what is about it, or about a device as a whole; None for all.
            limit: The greatest number.
        """
        asked = _said(
            kind=kind, where=where, selector=selector, since=since, until=until, limit=str(limit)
        )
        if model is not None:
            asked["model"] = model
        return self._api.get("/v1/telemetry/events", list[DeviceEvent], asked)

    def devices(self, *, selector: str = "") -> list[ReportingDevice]:
        """Return how telemetry comes from each device, and what was lost of it."""
        return self._api.get(
            "/v1/telemetry/devices", list[ReportingDevice], _said(selector=selector)
        )

    def dead_letters(self, *, device: str = "") -> list[DeadLetter]:
        """Return batches that could not be read or stored, of one device or of all."""
        return self._api.get("/v1/telemetry/dead-letters", list[DeadLetter], _said(device=device))

    def labels(self) -> list[str]:
        """Return the labels by which a query may group."""
        return self._api.get("/v1/telemetry/labels", list[str])

    def doubts(
        self, *, selector: str = "", metric: str = "", where: Sequence[str] = ()
    ) -> list[str]:
        """Return what a question names that there is not, a line for each."""
        asked = _said(selector=selector, metric=metric, where=where)
        return self._api.get("/v1/telemetry/doubts", list[str], asked)

    def ask_for_report(self, device: str) -> ReportAsked:
        """Ask a device to report now."""
        return self._api.send("POST", f"/v1/telemetry/reports/{segment(device)}", ReportAsked)

    def report(self, device: str, request: str) -> ReportState:
        """Return whether a report that was asked for has come and is stored."""
        path = f"/v1/telemetry/reports/{segment(device)}/{segment(request)}"
        return self._api.get(path, ReportState)

    def metrics(self) -> list[ReportedMetric]:
        """Return what devices report."""
        return self._api.get("/v1/telemetry/metrics", list[ReportedMetric])


def _said(**asked: str | Sequence[str]) -> dict[str, str | list[str]]:
    """Return query parameters, without those that say nothing."""
    return {
        name: value if isinstance(value, str) else [*value]
        for name, value in asked.items()
        if value
    }


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

"""The routes of telemetry; the rules are those of `controller.api.routes`."""

from __future__ import annotations

import base64
import math
from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.services import Services, router
from controller.drift_schemas import DriftingDevice, DriftingDevices, DriftPart, ReleaseDrift
from controller.errors import InvalidRequestError
from controller.query_schemas import ReportAsked, ReportState
from controller.services.device_queries import condition_doubts, over_devices, selector_doubts
from controller.telemetry_schemas import (
    AnswerSource,
    ComparedGroup,
    DeadLetter,
    DeviceEvent,
    ReportedMetric,
    ReportingDevice,
    TelemetryComparison,
    TelemetryTable,
)
from telemetry.metrics import KINDS, METRICS, names_of
from telemetry.server import compare, drifts
from telemetry.server import query as telemetry_query
from telemetry.server.event_log import EventQuery
from telemetry.server.query_text import parse_conditions, parse_time_s
from telemetry.server.rows import DeviceLosses, Reported, StoredEvent
from wire.package.distribution import Distribution

MAX_EVENTS = 1000
MAX_DRIFTING = 1000
UNIT = "A label whose values, not devices, are the observations; empty for devices."

telemetry_routes: APIRouter = router("/v1/telemetry", "telemetry")


@telemetry_routes.get("/query", name="query")
def query_telemetry(  # noqa: PLR0913, PLR0917 - one parameter for each of the query
    services: Services,
    metric: Annotated[str, Query(description="Such as inference_latency_ms.")],
    stat: Annotated[str, Query(description="Such as count,p50,p95.")] = "",
    by: Annotated[str, Query(description="Such as variant,device,minute.")] = "",
    where: Annotated[list[str] | None, Query(description="key=value; repeatable.")] = None,
    since: Annotated[str, Query(description="Such as 1h.")] = "1h",
    until: Annotated[str, Query(description="Such as 10m; empty for now.")] = "",
    step: Annotated[
        str, Query(description="One row for each time of this length, such as 5m.")
    ] = "",
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
) -> TelemetryTable:
    """Ask for statistics of a metric; percentiles are true over all devices."""
    query = telemetry_query.parse(
        metric,
        statistics=stat,
        group_by=by,
        where=",".join(where or ()),
        since=since,
        until=until,
        step=step,
        now_s=services.clock.now_s(),
    )
    query = over_devices(services.devices, selector, (*query.group_by, *_asked(query)))(query)
    table = telemetry_query.run(services.telemetry, query)
    if not table.rows:  # perhaps because a name is misspelt
        named = [value for name, value in query.where if name == telemetry_query.MODEL]
        services.models.check_known(*named)
    return TelemetryTable(
        columns=list(table.columns),
        rows=[list(row) for row in table.rows],
        sources=[AnswerSource(**source._asdict()) for source in table.sources],
    )


@telemetry_routes.get("/compare", name="compare")
def compare_telemetry(  # noqa: PLR0913, PLR0917 - one parameter for each of the query
    services: Services,
    metric: Annotated[str, Query(description="Such as inference_latency_ms.")],
    first: Annotated[str, Query(description="The first group, such as digits:1.0.0.")],
    second: Annotated[str, Query(description="The second group.")],
    by: Annotated[str, Query(description="What parts them: an attribute or a label.")] = "release",
    stat: Annotated[str, Query(description="mean, p95 or so.")] = "mean",
    where: Annotated[list[str] | None, Query(description="key=value; repeatable.")] = None,
    since: Annotated[str, Query(description="Such as 1h.")] = "1h",
    until: Annotated[str, Query(description="Such as 10m; empty for now.")] = "",
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
    unit: Annotated[str, Query(description=UNIT)] = "",
) -> TelemetryComparison:
    """Compare two groups; the interval of the difference takes devices as the unit of chance."""
    query = telemetry_query.parse(
        metric,
        statistics=stat,
        where=",".join(where or ()),
        since=since,
        until=until,
        now_s=services.clock.now_s(),
    )
    query = over_devices(services.devices, selector, (by, unit, *_asked(query)))(query)
    found = compare.run(services.telemetry, query, by, first, second, unit)
    result = found.result
    return TelemetryComparison(
        metric=metric,
        statistic=stat,
        by=by,
        first=_group(found.first, result.first),
        second=_group(found.second, result.second),
        difference=result.difference,
        low=result.low if result.has_interval else None,
        high=result.high if result.has_interval else None,
        told=result.is_told,
        lacks=result.lacks,
        devices_in_both=found.devices_in_both,
    )


def _asked(query: telemetry_query.Query) -> tuple[str, ...]:
    """Return the names of the conditions."""
    return tuple(name for name, _ in query.where)


def _group(side: compare.Side, value: float) -> ComparedGroup:
    return ComparedGroup(name=side.name, value=value, devices=side.devices, values=side.values)


@telemetry_routes.get("/drift", name="drift")
def drift_of_release(
    services: Services,
    release: Annotated[str, Query(description="Digest or name:version.")],
    variant: Annotated[str, Query(description="Only this one; empty for all.")] = "",
    since: Annotated[str, Query(description="Such as 1d.")] = "1d",
    until: Annotated[str, Query(description="Such as 10m; empty for now.")] = "",
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
    unit: Annotated[str, Query(description=UNIT)] = "",
) -> ReleaseDrift:
    """Compare what devices ask and answer with the evaluation that the package carries."""
    query = _about_drift(services, since, until, selector, unit)
    name, known = _references(services, release, variant)
    parts = drifts.run(services.telemetry, query, name, known, unit)
    return ReleaseDrift(
        release=name,
        variants=len(known),
        parts=[
            DriftPart(
                variant=part.variant,
                tensor=part.tensor,
                measure=part.measure,
                stability_index=part.result.stability_index,
                distance=part.result.distance,
                samples=part.result.samples,
                devices=part.devices,
                units=part.result.units,
                chance=part.result.chance if part.result.can_tell else None,
                lacks=part.result.lacks,
                moved=part.moved,
            )
            for part in parts
        ],
    )


@telemetry_routes.get("/drift/devices", name="drifting devices")
def drifting_devices(
    services: Services,
    release: Annotated[str, Query(description="Digest or name:version.")],
    variant: Annotated[str, Query(description="Only this one; empty for all.")] = "",
    since: Annotated[str, Query(description="Such as 1d.")] = "1d",
    until: Annotated[str, Query(description="Such as 10m; empty for now.")] = "",
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_DRIFTING, description="The greatest number.")] = 20,
) -> DriftingDevices:
    """Return which devices have moved furthest from the evaluation that the package carries."""
    query = _about_drift(services, since, until, selector)
    name, known = _references(services, release, variant)
    found = drifts.devices(services.telemetry, query, name, known, limit)
    return DriftingDevices(
        release=name,
        variants=len(known),
        devices=[DriftingDevice(**moved._asdict()) for moved in found],
    )


def _about_drift(
    services: Services, since: str, until: str, selector: str, unit: str = ""
) -> telemetry_query.Query:
    """Return which devices and what time are asked about."""
    query = telemetry_query.parse(
        drifts.METRIC, since=since, until=until, now_s=services.clock.now_s()
    )
    return over_devices(services.devices, selector, (unit,))(query)


def _references(
    services: Services, release: str, variant: str
) -> tuple[str, dict[str, tuple[Distribution, ...]]]:
    """Return the name of a release, and what its variants carry of their evaluation, if they do.

    Raises:
        InvalidRequestError: There is no such variant.
    """
    manifest = services.preflight.find(release).manifest
    chosen = [each for each in manifest.variants if variant in {"", each.name}]
    if not chosen:
        names = ", ".join(each.name for each in manifest.variants)
        raise InvalidRequestError(
            f"{manifest.name}:{manifest.version} has no variant {variant!r}",
            remedy=f"it has {names}",
        )
    known = {each.name: each.info.distributions for each in chosen if each.info.distributions}
    return f"{manifest.name}:{manifest.version}", known


@telemetry_routes.get("/events", name="events")
def list_events(
    services: Services,
    kind: Annotated[
        list[str] | None, Query(description="Only these; may be given more than once.")
    ] = None,
    where: Annotated[
        list[str] | None, Query(description="key=value in the data of an event; repeatable.")
    ] = None,
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
    since: Annotated[str, Query(description="Such as 1h.")] = "1h",
    until: Annotated[str, Query(description="Such as 10m; empty for now.")] = "",
    limit: Annotated[int, Query(ge=1, le=MAX_EVENTS)] = 200,
    model: Annotated[
        str | None, Query(description="Only what is about it, or about a device as a whole.")
    ] = None,
) -> list[DeviceEvent]:
    """Return what happened on devices and why, the oldest first."""
    if model is not None:
        services.models.check_known(model)
    now_s = services.clock.now_s()
    query = EventQuery(
        devices=services.devices.chosen(selector),
        kinds=tuple(kind or ()),
        since_s=parse_time_s(since, now_s),
        until_s=parse_time_s(until, now_s) if until.strip() else math.inf,
        model=model,
        where=parse_conditions(",".join(where or ())),
        limit=limit,
    )
    return [shown_event(found) for found in services.telemetry.events(query)]


@telemetry_routes.get("/dead-letters", name="dead_letters")
def list_dead_letters(
    services: Services,
    device: Annotated[str, Query(description="Only those of this one.")] = "",
) -> list[DeadLetter]:
    """Return batches that could not be read or stored, the newest first."""
    return [
        DeadLetter(**{**found._asdict(), "payload": base64.b64encode(found.payload).decode()})
        for found in services.telemetry.dead_letters(device)
    ]


@telemetry_routes.get("/devices", name="devices")
def list_reporting_devices(
    services: Services,
    selector: Annotated[str, Query(description="Only devices that match it.")] = "",
) -> list[ReportingDevice]:
    """Return how complete the telemetry of each enrolled device is, by name."""
    known = {found.device: found for found in services.telemetry.devices()}
    nothing = DeviceLosses("", 0, 0, 0)
    now_s = services.clock.now_s()  # the newest minute ends later
    return [
        ReportingDevice(
            device=device,
            online=online,
            newest_at_s=_until_now(known.get(device, nothing).newest_s, now_s),
            batches=known.get(device, nothing).batches,
            dropped=known.get(device, nothing).dropped,
            refused=known.get(device, nothing).refused,
            clock_ahead_s=known.get(device, nothing).clock_ahead_s,
        )
        for device, online in services.devices.presence(selector).items()
    ]


def _until_now(at_s: float | None, now_s: float) -> float | None:
    return None if at_s is None else min(at_s, now_s)


@telemetry_routes.get("/labels", name="labels")
def list_labels(services: Services) -> list[str]:
    """Return what devices can be selected and grouped by: labels, and what all of them have."""
    return services.devices.names_to_group_by()


@telemetry_routes.get("/doubts", name="doubts")
def list_doubts(
    services: Services,
    selector: Annotated[str, Query(description="A label expression.")] = "",
    metric: Annotated[str, Query(description="What the conditions are about.")] = "",
    where: Annotated[list[str] | None, Query(description="key=value; repeatable.")] = None,
) -> list[str]:
    """Return what a question names that there is not: labels, their values, and attributes'."""
    pairs = parse_conditions(",".join(where or ()))
    return [
        *selector_doubts(services.devices, selector),
        *condition_doubts(services.telemetry, metric, pairs),
    ]


@telemetry_routes.post("/reports/{device}", status_code=201, name="ask_for_report")
def ask_for_report(services: Services, device: str) -> ReportAsked:
    """Ask a device that is online to report now; once each ten seconds."""
    return services.report_requests.ask(device)


@telemetry_routes.get("/reports/{device}/{request}", name="report_state")
def report_state(services: Services, device: str, request: str) -> ReportState:
    """Tell whether the report that answers a request is stored."""
    return services.report_requests.state(device, request)


@telemetry_routes.get("/metrics", name="metrics")
def list_metrics(services: Services) -> list[ReportedMetric]:
    """Return which metrics devices have reported, by name."""
    return [_metric(found) for found in services.telemetry.metrics()]


def _metric(found: Reported) -> ReportedMetric:
    known = METRICS.get(names_of(found.name)[0])
    known = known if known is not None and known.kind == found.kind else None
    return ReportedMetric(
        name=found.name,
        kind=KINDS[found.kind],
        unit=known.unit if known else "",
        attributes=list(found.attributes),
        series=found.series,
        meaning=known.meaning if known else "",
    )


def shown_event(found: StoredEvent) -> DeviceEvent:
    """Return an event as the API shows it."""
    event = found.event
    return DeviceEvent(
        device=found.device, at_s=event.at_s, kind=event.kind, reason=event.reason, data=event.data
    )

"""The routes that hand telemetry on; the rules are those of `controller.api.routes`.

Rules:
- An export holds neither a connection of the database nor a thread while its client reads
  (`telemetry.server.export.lines`, `controller.api.made_answers`).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterator
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Query
from fastapi.responses import Response

from controller.api.callers import METRICS_PATH
from controller.api.made_answers import MadeAnswer
from controller.api.services import FleetServices, Services, router
from controller.errors import InvalidRequestError, UnknownError
from controller.exporting.metrics_page import MetricsPage
from telemetry.server.export import lines
from telemetry.server.export.reading import series_of
from telemetry.server.levels import LEVELS
from telemetry.server.query_text import checked_time_s
from telemetry.server.question import SECONDS_PER_MINUTE
from wire.errors import FleetError

MAX_EXPORT_S = 366 * 86_400.0
LINES_TYPE = "application/x-ndjson"
_log = logging.getLogger(__name__)

SinceParameter = Annotated[float, Query(allow_inf_nan=False, description="Wall time.")]
UntilParameter = Annotated[float, Query(allow_inf_nan=False, description="The end of it.")]

metrics_routes: APIRouter = router("", "metrics")
export_routes: APIRouter = router("/v1/telemetry/export", "telemetry")


@metrics_routes.get(METRICS_PATH, response_class=Response)
def read_metrics(services: Services, accept: Annotated[str, Header()] = "") -> Response:
    """Return the metrics of the fleet and of the controller, as Prometheus scrapes them.

    Protobuf with native histograms where the caller takes it; text otherwise.
    """
    content, kind = _page(services).answer(accept)
    return Response(content, headers={"Content-Type": kind})


@export_routes.get("/measurements", name="export_measurements", response_class=Response)
def export_measurements(
    services: Services,
    metric: Annotated[str, Query(description="Such as inference_latency_ms.")],
    since_s: SinceParameter,
    until_s: UntilParameter,
    level: Annotated[
        Literal["minute", "hour", "day"], Query(description="How long the rows are.")
    ] = "minute",
) -> MadeAnswer:
    """Return all that devices measured of a metric, row by row, as lines of JSON."""
    _check_span(since_s, until_s)
    series = series_of(services.telemetry, metric)
    since, until = int(since_s // SECONDS_PER_MINUTE), math.ceil(until_s / SECONDS_PER_MINUTE)
    rows = next(each for each in LEVELS if each.name == level)
    found = lines.measurement_lines(services.telemetry, metric, series, since, until, level=rows)
    return MadeAnswer(_whole_or_cut(found), services.exports, media_type=LINES_TYPE)


@export_routes.get("/events", name="export_events", response_class=Response)
def export_events(
    services: Services, since_s: SinceParameter, until_s: UntilParameter
) -> MadeAnswer:
    """Return all that happened on devices, as lines of JSON, the oldest first."""
    _check_span(since_s, until_s)
    found = lines.event_lines(services.telemetry, since_s, until_s)
    return MadeAnswer(_whole_or_cut(found), services.exports, media_type=LINES_TYPE)


def _whole_or_cut(found: Iterator[bytes]) -> Generator[bytes]:
    """Pass lines on; after a fault the last line is missing, because the status has been sent."""
    try:
        yield from found
    except FleetError as exc:
        _log.warning("an export of telemetry ended early: %s", exc)


def _page(services: FleetServices) -> MetricsPage:
    """Return the page of metrics.

    Raises:
        UnknownError: There is none.
    """
    if services.metrics_page is None:
        raise UnknownError(
            "this controller has no metrics for Prometheus",
            remedy="set enabled = true below [prometheus] in controller.toml",
        )
    return services.metrics_page


def _check_span(since_s: float, until_s: float) -> None:
    """Refuse a time that is too long for one request.

    Raises:
        InvalidRequestError: It is.
        QueryError: One end of it is no time.
    """
    if checked_time_s(until_s) - checked_time_s(since_s) > MAX_EXPORT_S:
        raise InvalidRequestError(
            f"from since_s to until_s there are more than {MAX_EXPORT_S:.0f} s",
            remedy="ask for each day by itself",
        )

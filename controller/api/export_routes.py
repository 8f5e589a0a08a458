"""The routes that hand telemetry on; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header
from fastapi.responses import Response

from controller.api.guard import METRICS_PATH
from controller.api.services import FleetServices, Services, router
from controller.errors import UnknownError
from controller.exporting.metrics_page import MetricsPage

metrics_routes: APIRouter = router("", "metrics")


@metrics_routes.get(METRICS_PATH, response_class=Response)
def read_metrics(services: Services, accept: Annotated[str, Header()] = "") -> Response:
    """Return the metrics of the fleet and of the controller, as Prometheus scrapes them.

    Protobuf with native histograms where the caller takes it; text otherwise.
    """
    content, kind = _page(services).answer(accept)
    return Response(content, headers={"Content-Type": kind})


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

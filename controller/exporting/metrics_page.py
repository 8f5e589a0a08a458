"""The page that Prometheus scrapes.

Rules:
- What devices sent and is not on the page, because its name is taken, is told in the log once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from controller.exporting.own_figures import OwnFigures
from telemetry.server.export import protobuf_format, text_format
from telemetry.server.export.claims import LeftOut
from telemetry.server.export.counters import Counters
from telemetry.server.export.scrape import scraped
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

PROTOBUF: Final = "application/vnd.google.protobuf"
MESSAGE: Final = "io.prometheus.client.MetricFamily"
MAX_TOLD: Final = 1000
"""Metrics that are told of: devices make names up."""

_log = logging.getLogger(__name__)


class MetricsPage:
    """Writes the page.

    Args:
        own: The controller's own figures.
        counters: What was counted of the devices' telemetry.
        telemetry: For the gauges.
        clock: Wall time.
        by_device: Whether each device has series of its own.
    """

    def __init__(
        self,
        own: OwnFigures,
        counters: Counters,
        telemetry: TelemetryStore,
        clock: Clock,
        *,
        by_device: bool,
    ) -> None:
        self._own = own
        self._counters = counters
        self._telemetry = telemetry
        self._clock = clock
        self._by_device = by_device
        self._told: set[str] = set()

    def answer(self, accept: str) -> tuple[bytes, str]:
        """Return the page and its type.

        Args:
            accept: What the caller takes, as the header says.

        Returns:
            Protobuf where the caller takes that; text otherwise.

        Raises:
            DatabaseError: The database does not answer.
            TelemetryStoreError: The same.
        """
        now_s = self._clock.now_s()
        scrape = scraped(self._counters, self._telemetry, now_s, by_device=self._by_device)
        self._tell(scrape.left_out)
        found = [*self._own.families(), *scrape.families]
        if takes_protobuf(accept):
            return protobuf_format.encode(found), protobuf_format.CONTENT_TYPE
        return text_format.encode(found), text_format.CONTENT_TYPE

    def _tell(self, left_out: Iterable[LeftOut]) -> None:
        for metric, why in left_out:
            if metric not in self._told and len(self._told) < MAX_TOLD:
                self._told.add(metric)
                _log.warning(
                    "metric %s of devices is not, or not all, at /metrics: %s", metric, why
                )


def takes_protobuf(accept: str) -> bool:
    """Tell whether a caller takes the protobuf format.

    Args:
        accept: The header: a Prometheus that asks for native histograms names the format in it.
    """
    for each in accept.split(","):
        kind, *parameters = (part.strip() for part in each.split(";"))
        named = dict(part.partition("=")[::2] for part in parameters)
        if kind == PROTOBUF and named.get("q", "1").strip() != "0":
            return named.get("proto") == MESSAGE and named.get("encoding") == "delimited"
    return False

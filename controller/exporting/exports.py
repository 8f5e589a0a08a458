"""All that hands telemetry on, put together from the settings.

Rules:
- Of several controllers of one database one counts, and one sends; all answer a scrape.
"""

from __future__ import annotations

from controller.config import ControllerConfig
from controller.errors import SettingsError
from controller.export_settings import OtlpConfig, parse_headers
from controller.exporting.alone import Alone
from controller.exporting.collector import Collector
from controller.exporting.metrics_page import MetricsPage
from controller.exporting.own_figures import OwnFigures, Watched
from controller.exporting.sending import Sending
from controller.exporting.worker import Worker
from controller.named_files import read_secret_text
from controller.store.database import Database
from controller.store.sole import Sole, Work
from telemetry.server.export.counters import Counters
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

COUNT_EVERY_S = 15.0
"""As often as many a Prometheus asks; there is something new once a minute."""


class Exports:
    """What hands telemetry on.

    Args:
        config: The settings.
        database: The control state and the telemetry.
        telemetry: The telemetry.
        watched: The controller's own figures.
        clock: Wall time.

    Raises:
        SettingsError: A file of the settings is unusable, or a library is not installed.
    """

    def __init__(
        self,
        config: ControllerConfig,
        database: Database,
        telemetry: TelemetryStore,
        watched: Watched,
        clock: Clock,
    ) -> None:
        self.page: MetricsPage | None = None
        self._workers: list[Worker] = []
        self._alone: list[Alone] = []
        collector = None
        if config.otlp is not None:
            collector = Collector(config.otlp, _headers(config.otlp))
        if config.prometheus.enabled:
            by_device = config.prometheus.by_device
            counters = Counters(database.engine, telemetry, clock, by_device=by_device)
            own = OwnFigures(database, watched, clock, collector.rejected if collector else {})
            self.page = MetricsPage(own, counters, telemetry, clock, by_device=by_device)
            what = "counting telemetry for Prometheus"
            number = Work.COUNTING_BY_DEVICE if by_device else Work.COUNTING
            counting = Alone(Sole(database, number), what, counters.count, counters.forget)
            self._alone.append(counting)
            self._workers.append(Worker("counting", what, counting.work, COUNT_EVERY_S))
        if config.otlp is not None and collector is not None:
            sending = Sending(
                database,
                telemetry,
                collector,
                clock,
                metrics=config.otlp.metrics,
                events=config.otlp.events,
            )
            what = "sending telemetry as OTLP"
            alone = Alone(Sole(database, Work.OTLP), what, sending.send)
            self._alone.append(alone)
            interval_s = config.otlp.interval_s
            self._workers.append(Worker("otlp", what, alone.work, interval_s, collector.close))

    def start(self) -> None:
        """Begin."""
        for worker in self._workers:
            worker.start()

    def stop(self, timeout_s: float) -> None:
        """End; also when it was never started.

        Args:
            timeout_s: How long to wait for each part.
        """
        for worker in self._workers:
            worker.stop_soon()
        for worker in self._workers:
            worker.stop(timeout_s)
        for each in self._alone:
            each.close()

    def pass_once(self) -> None:
        """Hand on what there is now, in this thread."""
        for worker in self._workers:
            worker.pass_once()


def _headers(config: OtlpConfig) -> dict[str, str]:
    """Return the headers for the collector.

    Raises:
        SettingsError: The file cannot be read, or a line of it is no header.
    """
    if config.headers_file is None:
        return {}
    what = "the headers for the collector"
    try:
        return parse_headers(read_secret_text(config.headers_file, what))
    except ValueError as exc:
        raise SettingsError(
            f"{what} in {config.headers_file}: {exc}",
            remedy="write one header a line, such as Authorization: Bearer TOKEN",
        ) from exc

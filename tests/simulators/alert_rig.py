"""A fleet with rules of alerts, and a receiver that is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from controller.alert_settings import AlertsConfig
from controller.app.alerting import Alerting
from controller.store.alert_tables import AlertDeliveryRow
from controller.store.database import Database
from telemetry.histogram import ExponentialHistogram
from tests.simulators.controller_fleet import Fleet
from tests.simulators.receiver import Receiver
from wire import topics
from wire.codec import to_msgpack
from wire.telemetry import GaugePoint, HistogramPoint, Point, TelemetryBatch
from wire.transport import Received

URL = "/v1/alerts"


class Rig:
    """A fleet with rules, and a receiver of its alerts."""

    def __init__(self, database_url: str, directory: Path, receiver: Receiver) -> None:
        self.receiver = receiver
        settings = AlertsConfig(webhooks=(receiver.config(directory),))
        self.fleet = Fleet(database_url, directory, alerts=settings)
        self.database = Database(database_url)
        self._sequence = 0

    @property
    def _alerting(self) -> Alerting:
        return self.fleet.controller.alerting

    def heat(self, device: str, celsius: float) -> None:
        """Let a device tell a temperature of the minute that has just ended."""
        point = GaugePoint(
            metric="temperature_c", minute=int(self.fleet.clock.now_s() // 60) - 1, attributes={},
            count=1, total=celsius, least=celsius, greatest=celsius,
        )  # fmt: skip
        self._send(device, point)

    def answered(self, device: str, *latencies_ms: float) -> None:
        """Let a device tell how long requests took in the minute that has just ended."""
        histogram = ExponentialHistogram()
        for each in latencies_ms:
            histogram.add(each)
        point = HistogramPoint(
            metric="inference_latency_ms", minute=int(self.fleet.clock.now_s() // 60) - 1,
            attributes={}, blob=histogram.to_bytes(),
        )  # fmt: skip
        self._send(device, point)

    def _send(self, device: str, point: Point) -> None:
        self._sequence += 1
        batch = TelemetryBatch(
            device=device, boot_id="b", sequence=self._sequence, points=(point,), events=()
        )
        topic = topics.up(device, "telemetry")
        self.fleet.hub.deliver(Received(topic, to_msgpack(batch)))

    def apply(self, *rules: dict[str, Any], dry_run: bool = False) -> dict[str, Any]:
        body = {"rules": {"alert": list(rules)}, "by": "kim", "dry_run": dry_run}
        answer = self.fleet.api.put(f"{URL}/rules", json=body)
        assert answer.status_code == 200, answer.text
        change: dict[str, Any] = answer.json()
        return change

    def look(self, *, after_s: float = 120.0, **heats: float) -> list[tuple[str, str, str]]:
        """Let time pass, then devices measure, and the controller judge and post; return alerts."""
        self.fleet.clock.advance(after_s)
        for device, celsius in heats.items():
            self.heat(device, celsius)
        self._alerting.judging.tick()
        self.post()
        return self.alerts()

    def post(self) -> None:
        """Let the controller post what is due."""
        for name in self._alerting.webhooks.names:
            self._alerting.webhooks.post_due(name)

    def alerts(self, **params: str) -> list[tuple[str, str, str]]:
        found = self.fleet.api.get(URL, params=params).raise_for_status().json()
        return [(each["alert"], each["group"], each["state"]) for each in found]

    def told(self) -> list[tuple[str, str, str]]:
        """All that the receiver was told, in its order."""
        return [alert for post in self.receiver.posts for alert in post.alerts]

    def history(self, name: str) -> list[tuple[str, str]]:
        shown = self.fleet.api.get(f"{URL}/rules/{name}").raise_for_status().json()
        return [(each["what"], each["group"]) for each in reversed(shown["history"])]

    def deliveries(self) -> list[AlertDeliveryRow]:
        with self.database.reading() as session:
            return session.query(AlertDeliveryRow).order_by(AlertDeliveryRow.number).all()

"""The controller's part for alerts: what judges rules, what tells webhooks, and their threads.

Rules:
- There is a thread that judges, one that queues events of rollouts, and one for each webhook.
  Neither a slow query nor a slow receiver holds up rollouts, devices or another of them. Queries
  only read, so on SQLite, too, what devices send is stored meanwhile.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable

from controller.alert_settings import AlertsConfig
from controller.services.alert_rules import AlertRuleBook
from controller.services.alerts import Alerts
from controller.services.devices import Devices
from controller.services.reception import Reception
from controller.services.rollout_notices import RolloutNotices
from controller.services.shown_alerts import ShownAlerts
from controller.services.webhooks import Webhooks
from controller.store.database import Database
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.errors import FleetError

LOOK_S = 1.0
"""How often each thread looks whether something is due."""

_log = logging.getLogger(__name__)


class Alerting:
    """Judges rules and tells webhooks.

    Args:
        database: The control state.
        telemetry: What rules are about.
        devices: The devices of the fleet.
        reception: How long the controller has heard its devices.
        config: How often, and who is told.
        clock: Wall time and durations.

    Raises:
        SettingsError: The secret of a webhook is unusable.
    """

    def __init__(
        self,
        database: Database,
        telemetry: TelemetryStore,
        devices: Devices,
        reception: Reception,
        config: AlertsConfig,
        clock: Clock,
    ) -> None:
        self.webhooks = Webhooks(database, config, clock)
        self.judging = Alerts(database, telemetry, devices, reception, self.webhooks, config, clock)
        self.rules = AlertRuleBook(database, self.webhooks, telemetry.retained, clock)
        self.shown = ShownAlerts(database, telemetry, devices, self.judging, clock)
        self.rollout_notices = RolloutNotices(database, self.webhooks)
        self._stopping = threading.Event()
        works: dict[str, Callable[[], None]] = {
            "alerts": self.judging.tick,
            "rollout-notices": self.rollout_notices.tick,
        } | {
            f"webhook-{name}": functools.partial(self.webhooks.post_due, name)
            for name in self.webhooks.names
        }
        self._clock = clock
        self._threads = [
            threading.Thread(target=self._repeat, args=(name, work), name=name, daemon=True)
            for name, work in works.items()
        ]

    def start(self) -> None:
        """Begin to judge and to tell; returns at once."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout_s: float) -> None:
        """End all; what was not told is told after the next start.

        Args:
            timeout_s: How long they may take together.
        """
        self._stopping.set()
        self.webhooks.stop()
        end_s = self._clock.monotonic_s() + timeout_s
        for thread in self._threads:
            if thread.is_alive():
                thread.join(max(0.0, end_s - self._clock.monotonic_s()))
        self.judging.close()

    def needs(self) -> list[str]:
        """Return what is wanting, one line each."""
        return self.judging.needs()

    def _repeat(self, name: str, work: Callable[[], None]) -> None:
        while not self._stopping.wait(LOOK_S):
            try:
                work()
            except FleetError as exc:
                _log.warning("%s is tried again: %s", name, exc)
            except Exception:  # noqa: BLE001 - the next time may succeed; a dead thread cannot
                _log.exception("%s failed; it is tried again", name)

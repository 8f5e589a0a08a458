"""What the controller does when it is time: a thread for what is due, and one for telemetry.

A third one does nothing but say that the process runs.

Rules:
- Of several controllers the one that leads does what is due; the others are ready to lead.
- What fails is logged and done again the next time; it holds up nothing else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from controller.app.lead import Lead
from controller.broker.listener import EncryptionWatch
from controller.delivery.deltas import Deltas
from controller.services.captures import Captures
from controller.services.director import Director
from controller.services.enrolment import Enrolment
from controller.services.measurements import Measurements
from controller.services.metadata import FleetMetadata
from controller.services.penalties import Penalties
from controller.services.policies import Policies
from controller.services.reception import BEAT_S, Reception
from controller.services.rollout_engine import RolloutEngine
from controller.services.shut_out import ShutOut
from controller.services.upkeep import Upkeep
from wire.errors import FleetError

TELEMETRY_EVERY_S = 30.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """Does what time asks for."""

    lead: Lead
    metadata: FleetMetadata | None
    penalties: Penalties
    engine: RolloutEngine
    policies: Policies
    director: Director
    enrolment: Enrolment
    shut_out: ShutOut
    upkeep: Upkeep
    reception: Reception
    measurements: Measurements
    encryption: EncryptionWatch
    deltas: Deltas
    captures: Captures
    stopping: threading.Event
    """Set when the controller ends."""

    _threads: list[threading.Thread] = field(default_factory=list, init=False)

    def start(self, tick_s: float) -> None:
        """Begin; returns at once.

        Args:
            tick_s: How often to look what is due.
        """
        self._repeat("reception", BEAT_S, self.reception.beat)
        self._repeat("ticker", tick_s, self.tick)
        # Apart, because an hour of a large fleet takes many seconds.
        self._repeat("telemetry", TELEMETRY_EVERY_S, self.keep_telemetry)

    def join(self, timeout_s: float) -> None:
        """Wait until the threads have ended; also when they were never started.

        Args:
            timeout_s: For how long, each.
        """
        for thread in self._threads:
            thread.join(timeout_s)

    def tick(self) -> None:
        """Do what time asks for: rollouts, policies, reminders, tokens, upkeep, deltas.

        Of several controllers the one that leads does it.
        """
        attempt(self.lead.look)
        if not self.lead.is_ours:
            self._stand_by()
            return
        attempt(
            *(() if self.metadata is None else (self.metadata.renew,)),
            self.penalties.look,
            self.engine.tick,
            self.policies.apply,
            self.director.remind,
            self.enrolment.sweep,
            self.enrolment.allow_returns,
            self.shut_out.tell,
            self.upkeep.mark_silent,
            self.measurements.expire,
            self.encryption.look,
            self.deltas.tick,
        )

    def keep_telemetry(self) -> None:
        """Make hours and days of telemetry, and delete what is old of it and of samples."""
        attempt(self.upkeep.roll_up, self.upkeep.prune, self.captures.prune)

    def _stand_by(self) -> None:
        """Do what each controller does for itself, and be ready to lead."""
        self.engine.stand_by()
        if self.metadata is not None:
            attempt(self.metadata.follow)
        attempt(self.encryption.look)

    def _repeat(self, name: str, every_s: float, work: Callable[[], None]) -> None:
        def repeat() -> None:
            while not self.stopping.wait(every_s):
                try:
                    work()
                except Exception:  # noqa: BLE001 - the next time may succeed; a dead thread cannot
                    _log.exception("%s failed; the controller tries again", name)

        thread = threading.Thread(target=repeat, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()


def attempt(*works: Callable[[], object]) -> None:
    """Do one work after another; what fails is tried again when it is due the next time."""
    for work in works:
        try:
            work()
        except FleetError as exc:
            _log.warning("%s is tried again: %s", getattr(work, "__qualname__", work), exc)

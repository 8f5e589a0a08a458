"""Holds devices out of rollouts for a time whose installs failed again and again.

Rules:
- Off unless `[penalty]` of the settings says after how many failures.
- A device that is held out takes part in no rollout that begins, nor joins one; an install that it
  has begun goes on. A rollback and another try name their devices, and take it all the same.
- It is no quarantine: the device stays connected, serves, and measures.
- It ends by itself, or at once by `fleet device restore`. What failed before counts no more then.
"""

from __future__ import annotations

import logging
from typing import Final

from controller.penalty_settings import PenaltyConfig
from controller.store import penalties
from controller.store.database import Database
from wire.clock import Clock
from wire.durations import format_duration

LOOK_EVERY_S: Final = 10.0
_log = logging.getLogger(__name__)


class Penalties:
    """Decides which devices are held out.

    Args:
        database: The control state.
        config: After how many failures, and for how long.
        clock: Wall time and durations.
    """

    def __init__(self, database: Database, config: PenaltyConfig, clock: Clock) -> None:
        self._database = database
        self._config = config
        self._clock = clock
        self._due_at_s = clock.monotonic_s()

    def look(self) -> None:
        """Hold out the devices that failed too often, and let in those whose time is over.

        Raises:
            FleetError: It could not be saved; a later call tries again.
        """
        if self._clock.monotonic_s() < self._due_at_s:
            return
        self._due_at_s = self._clock.monotonic_s() + LOOK_EVERY_S
        config, now_s = self._config, self._clock.now_s()
        since_s = now_s - config.within_s
        with self._database.reading() as transaction:
            are_over = penalties.count_over(transaction, now_s=now_s)
            found = (
                penalties.failing(transaction, failures=config.failures, since_s=since_s)
                if config.failures
                else {}
            )
        if not found and not are_over:
            return
        with self._database.transaction() as transaction:
            penalties.end_over(transaction, now_s=now_s)
            for device, count in found.items():
                reason = f"{count} installs failed within {format_duration(config.within_s)}"
                until_s = now_s + config.time_out_s
                penalties.hold_out(transaction, device, reason=reason, now_s=now_s, until_s=until_s)
        for device, count in found.items():
            _log.warning(
                "device %s is held out of rollouts for %s: %d installs failed",
                device,
                format_duration(config.time_out_s),
                count,
            )

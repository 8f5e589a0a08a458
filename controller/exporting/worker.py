"""A thread that hands telemetry on, again and again.

Rules:
- Each fault is logged once, and the end of all once; between them it is tried again.
- A fault of one worker stops no other one, and nothing else of the controller.
- A collector that asks to be left alone for longer than the interval is left alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final

from controller.errors import CollectorError
from wire.errors import FleetError

MAX_TOLD: Final = 20
"""Different faults of one failure that are logged."""

_log = logging.getLogger(__name__)


class Worker:
    """Does one thing at intervals, and at once again while there is more of it.

    Args:
        name: Of the thread.
        what: What it does, for the log: "counting for Prometheus".
        work: Does a part; returns whether there may be more.
        interval_s: From the end of the work to its next beginning.
        interrupt: Lets work that waits for others end.
    """

    def __init__(
        self,
        name: str,
        what: str,
        work: Callable[[], bool],
        interval_s: float,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        self._what = what
        self._work = work
        self._interval_s = interval_s
        self._interrupt = interrupt
        self._stopping = threading.Event()
        self._is_failing = False
        self._told: set[str] = set()
        """The faults that were logged since it failed."""

        self.pause_s = interval_s
        """How long until the next time."""

        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop_soon(self) -> None:
        """Begin to end; returns at once."""
        self._stopping.set()
        self._interrupt()

    def stop(self, timeout_s: float) -> None:
        """End; also when it was never started."""
        self.stop_soon()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def pass_once(self) -> None:
        """Do all that there is to do now; a fault is logged."""
        self.pause_s = self._interval_s
        try:
            while not self._stopping.is_set() and self._work():
                pass
        except FleetError as exc:
            self._tell(exc)
            if isinstance(exc, CollectorError):
                self.pause_s = max(self.pause_s, exc.retry_after_s)
        except Exception:  # noqa: BLE001 - the next time may succeed; a dead thread cannot
            _log.exception("%s failed; it is tried again", self._what)
            self._is_failing = True
        else:
            if self._is_failing:
                _log.info("%s goes on", self._what)
            self._is_failing = False
            self._told.clear()

    def _tell(self, fault: FleetError) -> None:
        self._is_failing = True
        text = str(fault)
        is_new = text not in self._told and len(self._told) < MAX_TOLD
        if is_new and not self._stopping.is_set():
            self._told.add(text)
            _log.warning("%s is tried again: %s", self._what, text)

    def _run(self) -> None:
        self.pass_once()
        while not self._stopping.wait(self.pause_s):
            self.pass_once()

"""Ends work early: because the agent stops, or because a newer desired state has arrived.

Rules:
- The work itself checks for an end at its safe points; no other thread ends it.
- Another thread may interject a piece of work. The install thread does it at its next safe point,
  so that one thread alone writes packages, and then begins again what it was doing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from agent.errors import ControlError, InterjectedError, StoppedError, SupersededError
from wire.clock import Clock
from wire.errors import FleetError

SLICE_S = 0.2
"""Longest wait without a check: a stop must be done within some seconds."""

LOOK_S = 2.0
"""How often a thread that waits for its piece of work looks whether anybody still needs it."""


class _Piece:
    """A piece of work that one thread wants another to do."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.begun = False
        self.done = threading.Event()
        self.fault: FleetError | None = None


class Interrupts:
    """Two requests that any thread may make: stop the agent, end the running install.

    Args:
        clock: For waiting.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stop = threading.Event()
        self._superseded = threading.Event()
        self._sleepers: list[Callable[[], None]] = []
        self._lock = threading.Lock()
        self._piece: _Piece | None = None

    def wake_on_stop(self, wake: Callable[[], None]) -> None:
        """Register a function that wakes a sleeping thread at a stop, and when work is interjected.

        Args:
            wake: The function; `stop` calls it, after `stopping` has become true.
        """
        self._sleepers.append(wake)

    def stop(self) -> None:
        """Ask every thread of the agent to end."""
        self._stop.set()
        self._wake()

    @property
    def stopping(self) -> bool:
        """Whether the agent is being stopped."""
        return self._stop.is_set()

    def supersede(self) -> None:
        """Ask the running install to end, because a newer desired state waits."""
        self._superseded.set()

    def clear_superseded(self) -> None:
        """Note that the newer desired state has been taken."""
        self._superseded.clear()

    @property
    def interjected(self) -> bool:
        """Whether another thread waits for a piece of work."""
        return self._piece is not None

    def interject(self, work: Callable[[], None], still_wanted: Callable[[], None]) -> None:
        """Let the install thread do a piece of work, and wait until it is done.

        Args:
            work: What to do; it checks for a stop by itself.
            still_wanted: Called now and then until it begins; raises if nobody waits any more.

        Raises:
            ControlError: Another piece waits or is being done.
            StoppedError: The agent is being stopped.
            FleetError: The work or `still_wanted` raised it.
        """
        piece = _Piece(work)
        with self._lock:
            if self._piece is not None:
                raise ControlError("another package is being stored", remedy="wait until it is")
            self._piece = piece
        self._wake()
        while not piece.done.wait(LOOK_S):
            with self._lock:  # what has begun is not looked after: it has the client to itself
                if not piece.begun:
                    try:
                        self.check(abandon=False)
                        still_wanted()
                    except FleetError:
                        self._piece = None
                        raise
        if piece.fault is not None:
            raise piece.fault

    def do_interjected(self) -> None:
        """Do the piece of work that another thread waits for, if one does.

        Raises:
            StoppedError: The agent is being stopped.
        """
        with self._lock:
            piece = self._piece
            if piece is None:
                return
            piece.begun = True
        try:
            piece.work()
        except FleetError as exc:
            piece.fault = exc
        except BaseException:
            piece.fault = StoppedError("the agent is being stopped")
            raise
        finally:
            with self._lock:
                self._piece = None
            piece.done.set()
        self.check(abandon=False)

    def _wake(self) -> None:
        for wake in self._sleepers:
            wake()

    def check(self, *, abandon: bool) -> None:
        """Raise an error if the work must end now.

        Args:
            abandon: Whether a newer install may begin at this point.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
            InterjectedError: Another thread waits for a piece of work.
        """
        if self._stop.is_set():
            raise StoppedError("the agent is being stopped")
        if abandon and self._superseded.is_set():
            raise SupersededError("a newer desired state has arrived")
        if abandon and self._piece is not None and not self._piece.begun:
            raise InterjectedError("a package has been handed over")

    def wait(self, duration_s: float, *, abandon: bool) -> None:
        """Wait, and check again and again.

        Args:
            duration_s: How long to wait.
            abandon: Whether a newer install may begin meanwhile.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
            InterjectedError: Another thread waits for a piece of work.
        """
        end_s = self._clock.monotonic_s() + duration_s
        self.check(abandon=abandon)
        while (rest_s := end_s - self._clock.monotonic_s()) > 0:
            self._clock.sleep(min(rest_s, SLICE_S))
            self.check(abandon=abandon)

"""Ends work early: because the agent stops, or because a newer desired state has arrived.

Rules:
- The work itself checks for an end at its safe points; no other thread ends it.
- Each model has a thread for its installs, with interrupts of its own. One thread at a time has the
  turn, and it alone writes packages. A thread that waits for something else lets others have it.
- A thread that takes a package from the operator goes first: the install that has the turn leaves
  at its next safe point, and begins again what it was doing when it has the turn back.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Final

from agent.errors import ControlError, InterjectedError, StoppedError, SupersededError
from wire.clock import Clock

SLICE_S: Final = 0.2
"""Longest wait without a look for a newer desired state, and for the turn."""

TELLING_TRIES: Final = 5
"""After so many slices of waiting for the turn it is told that an install waits."""

LOOK_S: Final = 2.0
"""How often a thread that waits for the turn looks whether anybody still needs its work."""


class _Device:
    """What the interrupts of all models of a device share."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.sleepers: list[Callable[[], None]] = []
        self.lock = threading.Lock()
        self.turn = threading.Lock()
        self.owner: int | None = None
        """The thread that has the turn."""

        self.owning_model = ""
        """The model whose install has the turn; empty if none has."""

        self.interjects = False
        """Whether a thread that goes first has the turn or waits for it."""


class Interrupts:
    """Requests that any thread may make: stop the agent, end the running install, let me go first.

    Args:
        clock: For waiting.
        device: What the models of the device share; None for a device of its own.
        model: The model whose installs these are for; empty if they are for no model.
    """

    def __init__(self, clock: Clock, device: _Device | None = None, model: str = "") -> None:
        self._clock = clock
        self._device = device or _Device()
        self._model = model
        self._superseded = threading.Event()

    def of_model(self, name: str = "") -> Interrupts:
        """Return interrupts for the installs of one more model of this device."""
        return Interrupts(self._clock, self._device, name)

    @property
    def owning_model(self) -> str:
        """The model whose install has the turn now; empty if none has."""
        return self._device.owning_model

    def wake_on_stop(self, wake: Callable[[], None]) -> None:
        """Register a function that wakes a sleeping thread at a stop, and when one goes first.

        Args:
            wake: The function; `stop` calls it, after `stopping` has become true.
        """
        self._device.sleepers.append(wake)

    def sleep_no_more(self, wake: Callable[[], None]) -> None:
        """Forget a function that `wake_on_stop` took."""
        with contextlib.suppress(ValueError):
            self._device.sleepers.remove(wake)

    def stop(self) -> None:
        """Ask every thread of the agent to end."""
        self._device.stop.set()
        self._wake()

    @property
    def stopping(self) -> bool:
        """Whether the agent is being stopped."""
        return self._device.stop.is_set()

    def supersede(self) -> None:
        """Ask the running install to end, because a newer desired state waits."""
        self._superseded.set()

    def clear_superseded(self) -> None:
        """Note that the newer desired state has been taken."""
        self._superseded.clear()

    @contextlib.contextmanager
    def turn(
        self, *, abandon: bool = False, on_wait: Callable[[], None] = lambda: None
    ) -> Iterator[None]:
        """Have the turn, as soon as no other thread has it.

        Args:
            abandon: Whether a newer install may begin meanwhile.
            on_wait: Called once if it takes longer than a moment.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
            InterjectedError: Another thread goes first.
        """
        tries = itertools.count(1)

        def look() -> None:
            self.check(abandon=abandon)
            if next(tries) == TELLING_TRIES:
                on_wait()

        with self._turn(SLICE_S, look):
            yield

    @contextlib.contextmanager
    def out_of_turn(self) -> Iterator[None]:
        """Let other threads have the turn for a while, if this one has it."""
        device = self._device
        if device.owner != threading.get_ident():
            yield
            return
        self._give_back()
        try:
            yield
        finally:
            device.turn.acquire()
            self._own()

    def interject(self, work: Callable[[], None], still_wanted: Callable[[], None]) -> None:
        """Do a piece of work before the install that is under way goes on.

        Args:
            work: What to do; it checks for a stop by itself.
            still_wanted: Called now and then until it begins; raises if nobody waits any more.

        Raises:
            ControlError: Another piece waits or is being done.
            StoppedError: The agent is being stopped.
            FleetError: The work or `still_wanted` raised it.
        """
        device = self._device
        with device.lock:
            if device.interjects:
                raise ControlError("another package is being stored", remedy="wait until it is")
            device.interjects = True
        try:
            self._wake()
            with self._turn(LOOK_S, still_wanted):
                self.check(abandon=False)
                work()
        finally:
            device.interjects = False

    def give_way(self) -> None:
        """Wait until no thread goes first any more; the caller does not have the turn.

        Raises:
            StoppedError: The agent is being stopped.
        """
        while self._device.interjects:
            self._clock.sleep(SLICE_S / 4)
            self.check(abandon=False)

    def check(self, *, abandon: bool) -> None:
        """Raise an error if the work must end now.

        Args:
            abandon: Whether a newer install may begin at this point.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
            InterjectedError: Another thread goes first.
        """
        if self._device.stop.is_set():
            raise StoppedError("the agent is being stopped")
        if abandon and self._superseded.is_set():
            raise SupersededError("a newer desired state has arrived")
        if abandon and self._device.interjects:
            raise InterjectedError("a package has been handed over")

    def wait(self, duration_s: float, *, abandon: bool) -> None:
        """Wait, and check again and again.

        Args:
            duration_s: How long to wait.
            abandon: Whether a newer install may begin meanwhile.

        Raises:
            StoppedError: The agent is being stopped.
            SupersededError: A newer desired state has come.
            InterjectedError: Another thread goes first.
        """
        end_s = self._clock.monotonic_s() + duration_s
        self.check(abandon=abandon)
        while (rest_s := end_s - self._clock.monotonic_s()) > 0:
            # Where a stop alone can end the wait, nothing wakes the processor before its end.
            self._clock.wait(self._device.stop, min(rest_s, SLICE_S) if abandon else rest_s)
            self.check(abandon=abandon)

    @contextlib.contextmanager
    def _turn(self, look_s: float, look: Callable[[], None]) -> Iterator[None]:
        device = self._device
        while not device.turn.acquire(timeout=look_s):
            self.check(abandon=False)
            look()
        self._own()
        try:
            yield
        finally:
            self._give_back()

    def _own(self) -> None:
        self._device.owner, self._device.owning_model = threading.get_ident(), self._model

    def _give_back(self) -> None:
        self._device.owner, self._device.owning_model = None, ""
        self._device.turn.release()

    def _wake(self) -> None:
        for wake in tuple(self._device.sleepers):
            wake()

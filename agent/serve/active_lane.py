"""Which lane is active, and what becomes of requests while none is.

Usually the next lane is there before the old one goes. Where a device has not the memory for both,
the old worker ends first, and requests wait through the gap until the next one is there.

Rules:
- Who is in a lane can finish before its worker is ended.
- Only so many wait through a gap, and only for so long; the others hear 503.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from agent.serve.errors import DeadlineError, NotServingError
from agent.serve.lanes import Lane, Prepared
from agent.serve.workers import WorkerProcess
from wire.clock import Clock


@dataclass(slots=True, kw_only=True)
class Gap:
    """A time without a worker."""

    began_s: float
    expected_s: float
    """How long it is thought to last."""

    previous: Prepared | None
    """What served before, and serves again if nothing else can."""

    follower: WorkerProcess | None = None
    """The worker that is to end it."""

    waited: int = 0
    """Requests that have waited in it."""


class ActiveLane:
    """The way of new requests. For any thread.

    Args:
        clock: For waiting.
        places: Requests that may wait through a gap.
        gap_wait_s: How long each of them may.
    """

    def __init__(self, clock: Clock, places: int, gap_wait_s: float) -> None:
        self._clock = clock
        self._places = places
        self._gap_wait_s = gap_wait_s
        self._changed = threading.Condition()
        self._lane: Lane | None = None
        self._gap: Gap | None = None
        self._waiting = 0

    @property
    def lane(self) -> Lane | None:
        """Where new requests go; None when they wait or are refused."""
        return self._lane

    @property
    def gap(self) -> Gap | None:
        """The gap that is open; None when there is none."""
        return self._gap

    def put(self, lane: Lane | None) -> tuple[Lane | None, Gap | None]:
        """Send new requests to a lane, or refuse them; a gap ends.

        Args:
            lane: The lane, or None.

        Returns:
            The lane that was active and the gap that was open.
        """
        with self._changed:
            old, self._lane = self._lane, lane
            gap, self._gap = self._gap, None
            self._changed.notify_all()
        return old, gap

    def open_gap(self, expected_s: float) -> Lane | None:
        """Let new requests wait.

        Args:
            expected_s: How long it should last, for who is refused meanwhile.

        Returns:
            The lane that was active.
        """
        with self._changed:
            old, self._lane = self._lane, None
            if self._gap is None:
                self._gap = Gap(
                    began_s=self._clock.monotonic_s(),
                    expected_s=expected_s,
                    previous=old.target if old is not None else None,
                )
        return old

    @contextlib.contextmanager
    def entered(self, deadline_s: float = math.inf) -> Iterator[Lane]:
        """Be in the active lane: its worker is not retired meanwhile.

        Args:
            deadline_s: Until when the request may wait through a gap.

        Yields:
            The lane.

        Raises:
            NotServingError: There is none, or the gap lasts too long.
            DeadlineError: The time of the request passed.
        """
        lane = self._lane or self._awaited(deadline_s)
        while not lane.enter():
            lane = self._lane or self._awaited(deadline_s)  # a switch came between
        try:
            yield lane
        finally:
            lane.leave()

    def _awaited(self, deadline_s: float) -> Lane:
        """Wait through a gap.

        Raises:
            NotServingError: There is none, or it lasts too long, or too many wait.
            DeadlineError: The time of the request passed.
        """
        with self._changed:
            gap = self._gap
            if gap is not None and self._waiting < self._places:
                self._waiting += 1
                gap.waited += 1
                left_s = min(deadline_s - self._clock.monotonic_s(), self._gap_wait_s)
                self._changed.wait_for(lambda: self._gap is None, max(0.0, left_s))
                self._waiting -= 1
            if self._lane is not None:
                return self._lane
            now_s = self._clock.monotonic_s()
            if now_s >= deadline_s:
                raise DeadlineError("the time for this request passed while the model was changed")
            if gap is None or self._gap is None:
                raise NotServingError("no model is loaded")
            left_s = gap.began_s + gap.expected_s - now_s
            raise NotServingError(
                "the model is being changed", retry_after_s=max(1, math.ceil(left_s))
            )

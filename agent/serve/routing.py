"""Which workers get the requests of a model: the route, its replacement, and a handover.

Usually the next variant is ready before the old one ends. If a device has no memory for both, the
old worker ends first, and requests wait during this handover.

Rules:
- Requests on a route can finish before its workers are ended. A closed route gets no new worker.
- A request goes to the worker of its route that has the fewest.
- The first thread that finds a dead worker replaces it; the other threads wait for that. Where
  other workers of the route are alive, they go on, and the dead one is only taken away.
- The version before may stay beside the one that serves; only requests that name it go there.
- A limited number of requests wait during a handover, for a limited time; the others are refused.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from agent.serve.errors import DeadlineError, NotServingError
from agent.serve.pool import Prepared, WorkerPool
from agent.serve.routes import Handover, Lane, Place, Put, Route, Share
from agent.serve.settings import ServingSettings
from agent.serve.worker_process import END_GRACE_S
from wire.clock import Clock

NOT_LOADED: Final = "no model is loaded"


class Routes:
    """The workers that get the requests of a model. For any thread.

    Args:
        pool: Gives a new worker for one that crashed.
        clock: For deadlines.
        settings: Bounds.
    """

    def __init__(self, pool: WorkerPool, clock: Clock, settings: ServingSettings) -> None:
        self.switches = Counter[str]()
        """How often requests were sent to another worker by a switch, by the model's name."""

        self._pool = pool
        self._clock = clock
        self._settings = settings
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._route: Route | None = None
        self._kept: Route | None = None
        self._handover: Handover | None = None
        self._waiting = 0
        self._why_none = NOT_LOADED

    @property
    def route(self) -> Route | None:
        """The route of new requests; None while they wait or are refused."""
        return self._route

    @property
    def active(self) -> Prepared | None:
        """The variant that answers requests now; None while requests wait or are refused."""
        route = self._route
        return route.target if route is not None else None

    @property
    def kept(self) -> Prepared | None:
        """The version before, if it is loaded beside the one that serves."""
        kept = self._kept
        return kept.target if kept is not None else None

    @property
    def handover(self) -> Handover | None:
        """The handover that is going on; None when there is none."""
        return self._handover

    @property
    def in_flight(self) -> int:
        """Requests that have come and have no answer yet, those in a handover included."""
        return self._waiting + sum(route.in_flight for route in self._all)

    @property
    def waiting(self) -> int:
        """Those of them that wait for their turn, or for the end of a handover."""
        return self._waiting + sum(
            lane.target.waiting for route in self._all for lane in route.lanes
        )

    @property
    def is_ready(self) -> bool:
        """Whether a request would be answered now."""
        route = self._route
        return route is not None and any(lane.target.worker.is_alive for lane in route.lanes)

    @property
    def is_idle(self) -> bool:
        """Whether a variant serves, and no worker has a request."""
        return self._route is not None and all(
            lane.target.worker.is_alive and lane.target.scheduler.is_idle
            for route in self._all
            for lane in route.lanes
        )

    @property
    def workers(self) -> int:
        """In how many workers the variant runs that serves."""
        route = self._route
        return len(route.lanes) if route is not None else 0

    @property
    def memory_bytes(self) -> int:
        """Resident size of all workers together, in bytes."""
        return sum(share.memory_bytes for share in self.shares)

    @property
    def shares(self) -> list[Share]:
        """What each version takes that answers requests, the one that serves first."""
        return [
            Share(
                route.target,
                len(route.lanes),
                sum(lane.target.memory_bytes for lane in route.lanes),
            )
            for route in self._all
        ]

    @property
    def loaded(self) -> list[Prepared]:
        """The variant of each worker, once for each."""
        return [lane.target for route in self._all for lane in route.lanes]

    @property
    def _all(self) -> list[Route]:
        """The routes that requests may take."""
        return [route for route in (self._route, self._kept) if route is not None]

    def put(
        self, target: Prepared | None, why_none: str = NOT_LOADED, *, keeps: bool = False
    ) -> Put:
        """Send new requests to a variant, or refuse them, and end a handover.

        Args:
            target: The variant, or None. It may be the version before, if that is kept.
            why_none: What refused requests are told.
            keeps: Whether what served stays for requests that name it, if it is another version.

        Returns:
            What ended by it.
        """
        with self._changed:
            old, kept = self._route, self._kept
            version = target.model.version if target is not None else None
            is_back = kept is not None and kept.target.model.version == version
            if kept is not None and kept.target is target:
                self._route = kept
            else:
                self._route = Route(lanes=(Lane(target=target),)) if target is not None else None
            # What a way back leaves is not kept: it was left for a reason.
            is_before = old is not None and old.target.model.version != version
            if is_back:
                self._kept = None
            elif keeps and is_before and target is not None:
                self._kept = old
            handover, self._handover = self._handover, None
            self._why_none = why_none
            self.switches.update([target.model.name] if target is not None else [])
            self._changed.notify_all()
            ended = [
                route
                for route in (old, kept)
                if route is not None and route is not self._route and route is not self._kept
            ]
        return Put(tuple(ended), handover)

    def forget_kept(self) -> Route | None:
        """Keep the version before no more; return its route, which the caller has to retire."""
        with self._changed:
            kept, self._kept = self._kept, None
        return kept

    def begin_handover(self) -> Route | None:
        """Make new requests wait; return the route that was active."""
        with self._changed:
            old, self._route = self._route, None
            if self._handover is None:
                self._handover = Handover(
                    began_s=self._clock.monotonic_s(),
                    expected_s=old.target.worker.start_s if old is not None else 0.0,
                    previous=old.target if old is not None else None,
                    cause="the memory has no room for two workers",
                )
        return old

    def retire(self, route: Route | None, drain_s: float) -> None:
        """Close a route, let the requests on it finish, and end its workers.

        Args:
            route: The route, which gets no new requests; None to do nothing.
            drain_s: How long its requests may take.
        """
        if route is not None:
            self.retire_all([route], drain_s)

    def retire_all(self, routes: Sequence[Route], drain_s: float) -> None:
        """Close routes, let the requests on them finish, and end their workers, all at once.

        Args:
            routes: The routes, which get no new requests.
            drain_s: How long their requests may take.
        """
        with self._changed:
            for route in routes:
                route.is_closed = True
            self._changed.wait_for(lambda: not any(r.in_flight for r in routes), drain_s)
        ending = [lane.target for route in routes for lane in route.lanes]
        for target in ending:  # so that they end at the same time
            target.hang_up()
        for number, target in enumerate(ending):
            target.stop(grace_s=0.0 if number else END_GRACE_S)

    def add(self, route: Route, further: Prepared) -> bool:
        """Send requests to one more worker.

        Args:
            route: Where.
            further: The same variant in another worker.

        Returns:
            Whether it is still the route of new requests; else the caller has to end the worker.
        """
        with self._lock:
            if route.is_closed or route is not self._route:
                return False
            route.lanes = (*route.lanes, Lane(target=further))
            return True

    def take_away(self, route: Route, lane: Lane, drain_s: float) -> None:
        """Send no more requests to one of several workers, let those it has finish, and end it.

        Args:
            route: Where; its last worker stays.
            lane: The worker.
            drain_s: How long its requests may take.
        """
        with self._changed:
            if not self._without(route, lane):
                return
            self._changed.wait_for(lambda: lane.in_flight == 0, drain_s)
        lane.target.stop()

    def lighten_kept(self, drain_s: float) -> None:
        """Leave one worker to the version before: that is enough for the few who ask for it.

        Args:
            drain_s: How long the requests of the others may take.
        """
        kept = self._kept
        if kept is not None:
            for lane in kept.lanes[1:]:
                self.take_away(kept, lane, drain_s)

    def replace(self, route: Route, dead: Prepared, reason: str) -> None:
        """Replace a dead worker, unless another thread has done so.

        Args:
            route: The route whose worker failed.
            dead: The variant in the worker that failed.
            reason: How it failed.
        """
        with route.replacing:
            lane = next((lane for lane in route.lanes if lane.target is dead), None)
            if route.is_closed or lane is None:
                return
            dead.stop(grace_s=0)
            with self._lock:
                others_go_on = self._without(route, lane)
            if others_go_on:
                self._pool.note_end(dead, reason)
                return
            target = self._pool.after_crash(dead, reason)
            with self._changed:
                is_wanted = not route.is_closed
                if is_wanted and target is not None:
                    lane.target = target
                elif is_wanted:
                    self._wait_for_another(route, reason)
        if target is not None and not is_wanted:
            target.stop()

    def supervise(self) -> None:
        """End a worker that hangs, and replace one that died; called about once a second."""
        for route in self._all:
            for lane in route.lanes:
                target = lane.target
                target.worker.end_if_hung(target.scheduler.usual_s)
                if not target.worker.is_alive:
                    self.replace(route, target, target.worker.how_it_died)

    @contextlib.contextmanager
    def entered(self) -> Iterator[Place]:
        """Hold the active route, so that its workers are not ended meanwhile.

        Yields:
            The place of the request.

        Raises:
            NotServingError: No variant serves, or the handover lasts too long.
        """
        place = self.enter()
        try:
            yield place
        finally:
            self.leave(place)

    def enter(self, deadline_s: float = math.inf, version: str | None = None) -> Place:
        """Hold a route, until `leave`.

        Args:
            deadline_s: Until when the request may wait during a handover.
            version: The version that the request names; None if it names none.

        Returns:
            The place of the request: with the version that it names if that is kept, else with the
            one that serves.

        Raises:
            NotServingError: No variant serves, or the handover lasts too long.
            DeadlineError: The deadline of the request passed.
        """
        with self._lock:
            kept = self._kept if version is not None else None
            if kept is not None and kept.target.model.version == version:
                route = kept
            else:
                route = self._route or self._awaited(deadline_s)
            lane = route.least_busy
            route.in_flight += 1
            lane.in_flight += 1
        return Place(route, lane)

    def leave(self, place: Place) -> None:
        """End what `enter` began."""
        with self._lock:
            place.lane.in_flight -= 1
            place.route.in_flight -= 1
            if place.route.is_closed or place.lane not in place.route.lanes:
                self._changed.notify_all()

    def _without(self, route: Route, lane: Lane) -> bool:
        """Take one of several workers off a route; False if it is the last. Holds the lock."""
        left = tuple(each for each in route.lanes if each is not lane)
        if left:
            route.lanes = left
        return bool(left)

    def _wait_for_another(self, route: Route, cause: str) -> None:
        """Make requests wait until another variant, or the same one again, is put in place."""
        route.is_closed = True
        if self._kept is route:
            self._kept = None
        if self._route is not route:
            return
        self._route = None
        self._handover = Handover(
            began_s=self._clock.monotonic_s(),
            expected_s=route.target.worker.start_s,
            previous=None,
            cause=cause,
        )

    def _awaited(self, deadline_s: float) -> Route:
        """Wait during a handover.

        Raises:
            NotServingError: There is no handover, or it lasts too long, or too many requests wait.
            DeadlineError: The deadline of the request passed.
        """
        handover = self._handover
        if handover is not None and self._waiting < self._settings.limits.waiting:
            self._waiting += 1
            handover.waited += 1
            left_s = min(deadline_s - self._clock.monotonic_s(), self._settings.gap_wait_s)
            self._changed.wait_for(lambda: self._handover is None, max(0.0, left_s))
            self._waiting -= 1
        if self._route is not None:
            return self._route
        now_s = self._clock.monotonic_s()
        if now_s >= deadline_s:
            raise DeadlineError(
                "the deadline of this request passed while the model was being changed"
            )
        if handover is None or self._handover is None:
            raise NotServingError(self._why_none)
        raise NotServingError("the model is being changed", retry_after_s=handover.left_s(now_s))

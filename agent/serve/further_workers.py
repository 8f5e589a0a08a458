"""The workers of the variant that serves beyond its first, and the version before.

Rules:
- Workers start and end one after another, while the variant serves, in a thread of their own: that
  takes seconds, and the other models of the device must not wait.
- One that cannot start is tried again after a minute, or when the policy asks for another number.
- Of several, the one with the fewest requests ends first.
- The version before is kept only as long as the policy allows it.
"""

from __future__ import annotations

import math
import threading
from typing import Final

from agent.serve.pool import WorkerPool
from agent.serve.routes import Lane, Route
from agent.serve.routing import Routes
from agent.serve.settings import ServingSettings, Workers, workers_for
from wire.clock import Clock
from wire.errors import FleetError

AGAIN_S: Final = 60.0
"""After this time a further worker that could not start is tried again."""


class FurtherWorkers:
    """Keeps as many workers as a policy asks for. For any thread.

    Args:
        pool: Starts workers.
        routes: Send requests to them.
        clock: For what is tried again.
        settings: Bounds.
    """

    def __init__(
        self, pool: WorkerPool, routes: Routes, clock: Clock, settings: ServingSettings
    ) -> None:
        self._pool = pool
        self._routes = routes
        self._clock = clock
        self._settings = settings
        self._wanted = Workers(1, settings.limits.threads)
        self._tending = threading.Lock()
        self.keeps_previous = False
        """Whether the version before may stay."""

    @property
    def is_settled(self) -> bool:
        """Whether there are as many as there should be and can be, and no change goes on."""
        return self._is_complete and not self._tending.locked()

    def most(self, asked: int) -> int:
        """Return how many workers there are to be.

        Args:
            asked: How many the policy asks for.

        Returns:
            As many as the device has processors for, or as could start.
        """
        route = self._routes.route
        most = math.inf if route is None else route.most_lanes
        return int(min(self._shared(asked).count, most))

    def want(self, workers: int, *, keeps_previous: bool) -> None:
        """Say what there should be from now on; `supervise` does it.

        Args:
            workers: How many workers.
            keeps_previous: Whether the version before may stay.
        """
        wanted, route = self._shared(workers), self._routes.route
        if wanted != self._wanted and route is not None:
            route.most_lanes = math.inf
        self._wanted, self._pool.threads = wanted, wanted.threads
        self.keeps_previous = keeps_previous

    def supervise(self) -> None:
        """Begin to start or end a worker, if one is too few or too many."""
        if not self._is_complete and self._tending.acquire(blocking=False):
            threading.Thread(target=self._tend, name="workers", daemon=True).start()

    @property
    def _is_complete(self) -> bool:
        route, wanted = self._routes.route, self._wanted
        if self._routes.kept is not None and not self.keeps_previous:
            return False
        if route is None or self._pool.is_benched(route.target):
            return True
        if route.most_lanes < math.inf and self._clock.monotonic_s() >= route.failed_s + AGAIN_S:
            route.most_lanes = math.inf
        count = len(route.lanes)
        if count > wanted.count or count < min(wanted.count, route.most_lanes):
            return False
        return not _stale(route, wanted) or count >= route.most_lanes

    def _tend(self) -> None:
        """End the version before if it may not stay, and start or end one worker."""
        try:
            drain_s, wanted = self._settings.drain_s, self._wanted
            if not self.keeps_previous:
                self._routes.retire(self._routes.forget_kept(), drain_s)
            route = self._routes.route
            if route is None or self._pool.is_benched(route.target):
                return
            stale = _stale(route, wanted)
            if len(route.lanes) > wanted.count:
                idlest = min(stale or route.lanes[::-1], key=lambda lane: lane.in_flight)
                self._routes.take_away(route, idlest, drain_s)
            elif len(route.lanes) < min(wanted.count, route.most_lanes):
                self._start(route)
            elif stale and len(route.lanes) < route.most_lanes and self._start(route):
                self._routes.take_away(route, stale[0], drain_s)
        finally:
            self._tending.release()

    def _start(self, route: Route) -> bool:
        """Start one worker more for what serves; tell whether it has the requests now."""
        try:
            further = self._pool.start_again(route.target)
        except FleetError as exc:
            route.most_lanes, route.failed_s = len(route.lanes), self._clock.monotonic_s()
            number = f"{len(route.lanes)} of {self._wanted.count}"
            why = f"no further worker could start, so {number} serve: {exc.message}"
            self._pool.tell("worker", why, route.target)
            return False
        if not self._routes.add(route, further):
            further.stop()
            return False
        return True

    def _shared(self, workers: int) -> Workers:
        settings = self._settings
        return workers_for(workers, threads=settings.limits.threads, processors=settings.processors)


def _stale(route: Route, wanted: Workers) -> list[Lane]:
    """Return the workers that have another number of threads than they should."""
    return [lane for lane in route.lanes if lane.target.worker.threads != wanted.threads]

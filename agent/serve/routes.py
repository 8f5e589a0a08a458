"""What the router works with: a client's request, the way to workers, and a time without one."""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import msgspec

from agent.serve.pool import Prepared
from agent.serve.regions import Region


class InferenceCall(msgspec.Struct, frozen=True, kw_only=True):
    """The request of a client."""

    model: str
    version: str | None
    """None for the version that serves, whatever it is."""

    header_length: int | None
    body: memoryview
    priority: int = 0
    """1 is the most urgent; 0 is the default, which is 2."""

    timeout_s: float | None = None
    """How long the request may take from now; None for no limit."""

    regions: tuple[Region, ...] = ()
    """The client's shared memory, if the request names some."""

    deferrable: bool = False
    """Whether it comes after all others, and counts as no demand of an application."""


class Lane(msgspec.Struct, kw_only=True, eq=False):
    """One worker of a route, and how many requests it has."""

    target: Prepared
    in_flight: int = 0


class Route(msgspec.Struct, kw_only=True, eq=False):
    """Leads requests to one variant, in one worker or in several; each can be replaced."""

    lanes: tuple[Lane, ...]
    """Never empty."""

    most_lanes: float = math.inf
    """How many there can be, as far as is known: no more could start."""

    failed_s: float = 0.0
    """When that was seen."""

    in_flight: int = 0
    is_closed: bool = False
    replacing: threading.Lock = msgspec.field(default_factory=threading.Lock)

    @property
    def target(self) -> Prepared:
        """The variant in its first worker."""
        return self.lanes[0].target

    @property
    def least_busy(self) -> Lane:
        """The worker with the fewest requests; of several the first."""
        lanes = self.lanes
        return lanes[0] if len(lanes) == 1 else min(lanes, key=lambda lane: lane.in_flight)


class Place(NamedTuple):
    """Where a request is."""

    route: Route
    lane: Lane


class Handover(msgspec.Struct, kw_only=True, eq=False):
    """A time without a worker, while one has ended and the next one starts."""

    began_s: float
    expected_s: float
    """How long it should last."""

    previous: Prepared | None
    """The variant that served before, which serves again if no other can; None if it crashed."""

    cause: str
    """Why no worker answers, for the event."""

    follower: Prepared | None = None
    """The variant that should serve next."""

    waited: int = 0
    """How many requests have waited during it."""

    def left_s(self, now_s: float) -> int:
        """Return how long it should still last, in whole seconds, 1 at least."""
        return max(1, math.ceil(self.began_s + self.expected_s - now_s))


class Put(NamedTuple):
    """What ended when requests were sent to something else."""

    ended: tuple[Route, ...]
    """The routes that have to be retired."""

    handover: Handover | None


class Share(NamedTuple):
    """What a version takes."""

    target: Prepared
    workers: int
    memory_bytes: int

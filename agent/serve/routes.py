"""What the router works with: a client's request, the way to a worker, and a time without one."""

from __future__ import annotations

import threading

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


class Route(msgspec.Struct, kw_only=True, eq=False):
    """Leads requests to one variant; its worker can be replaced."""

    target: Prepared
    """The variant in its present worker."""

    in_flight: int = 0
    is_closed: bool = False
    replacing: threading.Lock = msgspec.field(default_factory=threading.Lock)


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

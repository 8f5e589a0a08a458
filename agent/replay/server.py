"""One server and the queue before it, request by request.

Rules:
- Pure: backlog and arrivals of a tick in, answers and backlog out.
- First come, first served. A request that finds `QUEUE_REQUESTS` waiting is refused.
- The variant that serves when a request starts serves it to its end, at the speed of the tick in
  which it starts.
- An answer counts in the tick in which it is ready, as in the agent's own counters. Each request is
  answered, refused, or still there at the end.
- During a handover no variant serves and requests wait, each as long as the agent lets it.

Source:
    Lindley, The theory of queues with a single server, 1952: a request starts when it has arrived
    and the one before it is done.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable
from typing import Final, NamedTuple

from agent.replay.requests import Request
from agent.select.batches import together
from agent.serve.settings import ServingSettings

QUEUE_REQUESTS: Final = 64
"""Requests that may wait; one more is refused."""

GAP_WAIT_S: Final = ServingSettings().gap_wait_s
"""So long a request waits during a handover, by default."""

SHORTEST_MS: Final = 1e-3
"""As in the agent's meter."""

MS_PER_S: Final = 1000.0


class Service(NamedTuple):
    """The variant that serves during a tick."""

    variant: str
    retention: float | None
    median_s: float
    """Time for a request with factor 1, at the speed of the tick."""


class Answer(NamedTuple):
    """A request that has started; times are from the beginning of the tick."""

    variant: str
    retention: float | None
    arrived_s: float
    started_s: float
    ready_s: float

    @property
    def latency_ms(self) -> float:
        """From its arrival until its answer is ready."""
        return (self.ready_s - self.arrived_s) * MS_PER_S


class Backlog(NamedTuple):
    """What is left from the ticks before."""

    running: Answer | None = None
    waiting: tuple[Request, ...] = ()
    """In the order of their arrival; their times are negative."""

    @property
    def requests(self) -> int:
        """Requests that have neither an answer nor a refusal."""
        return len(self.waiting) + (self.running is not None)


class Passage(NamedTuple):
    """The requests of a tick: what became of them."""

    requests: int
    """Requests that arrived."""

    refused: int
    answers: tuple[Answer, ...]
    """Answers that were ready in this tick, in their order."""

    backlog: Backlog
    busy_s: float = 0.0
    """Time in which the server worked."""

    late: int = 0
    """Answers after the deadline."""

    retained: float | None = 0.0
    """Sum of the retention of all answers; None if that of one is unknown."""

    retained_in_time: float | None = 0.0
    """Sum of the retention of the answers in time."""

    compute_s: float = 0.0
    """Sum of the service times of the answers."""

    latency_ms: float | None = None
    """Mean over the answers."""

    log_variance: float | None = None
    """Variance of the logarithms of their service times."""


class Arrived:
    """The requests that arrive in a tick.

    The result of a passage is kept, because a search over many ways through a trace asks for the
    same one again and again.

    Args:
        requests: The requests, in the order of their arrival.
    """

    __slots__ = ("_known", "requests", "together")

    def __init__(self, requests: tuple[Request, ...]) -> None:
        self.requests = requests
        self.together = together(request.at_s for request in requests)
        """How many of them came together."""

        self._known: dict[Hashable, Passage] = {}

    def passed(
        self, backlog: Backlog, service: Service | None, *, period_s: float, deadline_ms: float
    ) -> Passage:
        """Return what becomes of the requests of a tick.

        Args:
            backlog: What is left from before.
            service: The variant that serves; None during a handover.
            period_s: Length of the tick.
            deadline_ms: Time within which an answer has worth.
        """
        key = (backlog, service, period_s, deadline_ms)
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = _passed(
                backlog, self.requests, service, period_s=period_s, deadline_ms=deadline_ms
            )
        return known

    def lost(self, backlog: Backlog) -> Passage:
        """Return the passage of a tick in which nothing answers: all requests are refused."""
        return Passage(
            requests=len(self.requests),
            refused=len(self.requests) + backlog.requests,
            answers=(),
            backlog=Backlog(),
        )


def _passed(
    backlog: Backlog,
    arrived: tuple[Request, ...],
    service: Service | None,
    *,
    period_s: float,
    deadline_ms: float,
) -> Passage:
    waiting, running = deque(backlog.waiting), backlog.running
    free_s = running.ready_s if running else 0.0
    busy_s, refused, started = min(free_s, period_s), 0, [] if running is None else [running]
    # What could start only at the end of the tick starts in the next one, with its speed.
    end = (math.nextafter(period_s, 0.0), None)
    for at_s, request in (*((r.at_s, r) for r in arrived), end):
        while service is not None and waiting and free_s <= at_s:
            first = waiting.popleft()
            begin_s = max(free_s, first.at_s)
            free_s = begin_s + service.median_s * first.factor
            busy_s += min(free_s, period_s) - begin_s
            started.append(Answer(service.variant, service.retention, first.at_s, begin_s, free_s))
        if request is None:
            break
        if len(waiting) < QUEUE_REQUESTS:
            # If the server is free, the next turn of the loop starts it without a wait.
            waiting.append(request)
        else:
            refused += 1
    last = started.pop() if started and started[-1].ready_s > period_s else None
    if service is None:
        patient = deque(r for r in waiting if period_s - r.at_s <= GAP_WAIT_S)
        refused += len(waiting) - len(patient)
        waiting = patient
    return _counted(
        Passage(
            requests=len(arrived),
            refused=refused,
            answers=tuple(started),
            backlog=_later(last, waiting, period_s),
            busy_s=busy_s,
        ),
        deadline_ms,
    )


def _later(running: Answer | None, waiting: deque[Request], period_s: float) -> Backlog:
    """Return a backlog as seen from the beginning of the next tick."""
    return Backlog(
        running
        and running._replace(
            arrived_s=running.arrived_s - period_s,
            started_s=running.started_s - period_s,
            ready_s=running.ready_s - period_s,
        ),
        tuple(Request(r.at_s - period_s, r.factor) for r in waiting),
    )


def _counted(passage: Passage, deadline_ms: float) -> Passage:
    answers = passage.answers
    if not answers:
        return passage
    latencies_ms = [a.latency_ms for a in answers]
    in_time = [
        a.retention for a, ms in zip(answers, latencies_ms, strict=True) if ms <= deadline_ms
    ]
    times_ms = [(a.ready_s - a.started_s) * MS_PER_S for a in answers]
    logs = [math.log(max(ms, SHORTEST_MS)) for ms in times_ms]
    count, mean = len(answers), math.fsum(logs) / len(logs)
    return passage._replace(
        late=count - len(in_time),
        retained=_total([a.retention for a in answers]),
        retained_in_time=_total(in_time),
        compute_s=math.fsum(a.ready_s - a.started_s for a in answers),
        latency_ms=math.fsum(latencies_ms) / count,
        log_variance=math.fsum((log - mean) ** 2 for log in logs) / (count - 1)
        if count > 1
        else None,
    )


def _total(retentions: list[float | None]) -> float | None:
    known = [r for r in retentions if r is not None]
    return math.fsum(known) if len(known) == len(retentions) else None

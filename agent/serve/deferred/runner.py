"""Lets the model answer deferrable requests while the device has nothing else to do.

Rules:
- One request at a time, and none while levers or other requests are in the way.
- A request that met a busy or absent worker waits again. Any other outcome is its answer: one that
  crashes workers must not do so all night.
- The thread ends only when it is stopped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from agent.serve.deferred.queue import DeferredQueue
from agent.serve.errors import NotServingError, WorkerBusyError, WorkerShedError
from agent.serve.frames import Reply
from agent.serve.routes import InferenceCall

LOOK_S: Final = 1.0
"""How often to look for what has expired."""

REST_S: Final = 0.1
"""How long to wait before looking again whether the device is idle."""

JOIN_S: Final = 1.0
AGAIN: Final = frozenset({WorkerBusyError.code, WorkerShedError.code, NotServingError.code})
GONE: Final = 410
UNKNOWN: Final = 404
"""For a client that asks for its ticket this would mean that the ticket is unknown."""


class IdlePort(Protocol):
    """Answers requests, and knows whether it has others: the router."""

    @property
    def is_idle(self) -> bool:
        """Whether a variant serves and has no request."""
        ...

    def handle(self, call: InferenceCall) -> Reply:
        """Answer a request."""
        ...


class DeferredRunner:
    """A thread that runs what waits.

    Args:
        queue: What waits.
        router: Answers requests.
        may_run: Whether the device has nothing better to do.
    """

    def __init__(self, queue: DeferredQueue, router: IdlePort, may_run: Callable[[], bool]) -> None:
        self.queue = queue
        self._router = router
        self._may_run = may_run
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to run what waits."""
        self._thread = threading.Thread(target=self._run, name="deferred", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begin nothing more; what runs goes on, and waits again if its worker is ended."""
        self._stop.set()
        self.queue.wake()

    def join(self) -> None:
        """Wait a moment for the end of the thread, after `stop`."""
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self.queue.wait(LOOK_S):
                continue
            if not (self._may_run() and self._router.is_idle and self._run_next()):
                self._stop.wait(REST_S)

    def _run_next(self) -> bool:
        """Run the next request; False if there is none, or the device is busy again."""
        begun = self.queue.begin()
        if begun is None:
            return False
        ticket, call = begun
        try:
            call = msgspec.structs.replace(call, deferrable=True, timeout_s=None)
            reply = self._router.handle(call)
        except Exception as exc:  # noqa: BLE001 - the client must hear of a fault of ours
            reply = Reply.refusal(500, f"the endpoint failed: {type(exc).__name__}")
        if reply.code in AGAIN or (reply.code and self._stop.is_set()):
            self.queue.put_back(ticket)
            return False
        self.queue.finish(ticket, _final(reply))
        return True


def _final(reply: Reply) -> Reply:
    return msgspec.structs.replace(reply, status=GONE) if reply.status == UNKNOWN else reply

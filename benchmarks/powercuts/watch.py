"""An application of a device: it asks without end and judges every answer.

Rules:
- An answer is right if its release and variant are ones that were signed, and if its numbers are
  the golden answer of exactly these.
- Whoever serves when the power goes gives no answer; that is cut, and no fault.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
import time
from collections import Counter
from typing import NamedTuple

from benchmarks.powercuts.releases import Releases
from tests.field.clients import judged

ANSWER_S = 30.0
REST_S = 0.08
SHOWN = 200


class Answer(NamedTuple):
    """A right answer."""

    asked_s: float
    """When the request began, on the monotonic clock: what came late from before is not of now."""

    came_s: float
    release: str


class Watch(threading.Thread):
    """Asks one device from its own thread.

    Args:
        device: Its name.
        port: Of its endpoint.
        releases: Know the right answers.
    """

    def __init__(self, device: str, port: int, releases: Releases) -> None:
        super().__init__(name=f"watch {device}", daemon=True)
        self._port = port
        self._releases = releases
        self._stopping = threading.Event()
        self._answered = threading.Condition()
        self.counts: Counter[str] = Counter()
        self._faults: list[str] = []
        self._last = Answer(float("-inf"), float("-inf"), "")

    def stop(self) -> None:
        """Stop asking."""
        self._stopping.set()
        self.join(2 * ANSWER_S)

    @property
    def has_faults(self) -> bool:
        """Whether there are answers that were not right."""
        return bool(self._faults)

    def taken_faults(self) -> list[str]:
        """Return the answers that were not right, and forget them."""
        faults, self._faults = self._faults, []
        return faults

    def answer_since(self, since_s: float, within_s: float) -> Answer | None:
        """Wait for a right answer to a request that began after some time.

        Args:
            since_s: On the monotonic clock.
            within_s: How long to wait.

        Returns:
            The answer; None if there was none in time.
        """
        with self._answered:
            self._answered.wait_for(lambda: self._last.asked_s > since_s, within_s)
            return self._last if self._last.asked_s > since_s else None

    def run(self) -> None:
        """Ask until told to stop."""
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        while not self._stopping.wait(REST_S):
            asked_s = time.monotonic()
            try:
                kind, said = judged(client, self._releases.answers)
            except (OSError, http.client.HTTPException):
                client.close()
                self.counts["cut"] += 1
                continue
            self.counts[kind] += 1
            if kind == "right":
                with self._answered:
                    self._last = Answer(asked_s, time.monotonic(), said)
                    self._answered.notify_all()
            elif kind != "refused":
                self._faults.append(f"{kind}: {said[:SHOWN]}")
        with contextlib.suppress(OSError):
            client.close()

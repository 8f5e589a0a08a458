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

from benchmarks.powercuts.releases import Releases
from tests.field.clients import judged

ANSWER_S = 30.0
REST_S = 0.08
SHOWN = 200


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
        self._last: tuple[float, str] = (float("-inf"), "")

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

    def answer_since(self, since_s: float, within_s: float) -> tuple[float, str] | None:
        """Wait for a right answer that comes after some time.

        Args:
            since_s: On the monotonic clock.
            within_s: How long to wait.

        Returns:
            When it came, and from which release; None if there was none in time.
        """
        with self._answered:
            self._answered.wait_for(lambda: self._last[0] > since_s, within_s)
            return self._last if self._last[0] > since_s else None

    def run(self) -> None:
        """Ask until told to stop."""
        client = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER_S)
        while not self._stopping.wait(REST_S):
            try:
                kind, said = judged(client, self._releases.answers)
            except (OSError, http.client.HTTPException):
                client.close()
                self.counts["cut"] += 1
                continue
            self.counts[kind] += 1
            if kind == "right":
                with self._answered:
                    self._last = (time.monotonic(), said)
                    self._answered.notify_all()
            elif kind != "refused":
                self._faults.append(f"{kind}: {said[:SHOWN]}")
        with contextlib.suppress(OSError):
            client.close()

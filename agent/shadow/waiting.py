"""Requests that wait for a shadow: few, not for long, and what does not fit is dropped."""

from __future__ import annotations

import threading
from collections import deque
from typing import Final, NamedTuple

from agent.serve.frames import Reply
from agent.serve.routes import InferenceCall

MOST: Final = 4
MOST_BYTES: Final = 16 * 1024 * 1024
"""Of all that wait together, with their answers: they stay in the memory of the supervisor."""


class Sample(NamedTuple):
    """A request that was answered."""

    call: InferenceCall
    reply: Reply
    at_s: float
    """When, by the monotonic clock."""

    @property
    def size_bytes(self) -> int:
        """What it takes."""
        return len(self.call.body) + len(self.reply.body)


class Waiting:
    """The requests that wait for one shadow. Any thread adds; one takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._samples: deque[Sample] = deque()
        self._bytes = 0

    def add(self, sample: Sample) -> bool:
        """Let a request wait; False if there is no room."""
        with self._lock:
            fits = self._bytes + sample.size_bytes <= MOST_BYTES and len(self._samples) < MOST
            if fits:
                self._samples.append(sample)
                self._bytes += sample.size_bytes
            return fits

    @property
    def oldest(self) -> Sample | None:
        """The request that has waited the longest; None if there is none."""
        with self._lock:
            return self._samples[0] if self._samples else None

    def remove_oldest(self) -> None:
        """Remove it."""
        with self._lock:
            self._bytes -= self._samples.popleft().size_bytes

    def clear(self) -> int:
        """Remove all, and return how many there were."""
        with self._lock:
            count, self._bytes = len(self._samples), 0
            self._samples.clear()
            return count

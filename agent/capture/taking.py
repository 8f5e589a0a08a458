"""Knows which requests are wanted, and keeps what the workers take, within the budgets.

Rules:
- What is wanted comes from a signed desired state alone, and counts only where the device allows.
- Threads that answer requests only put samples into a bounded queue; `keep`, which writes, is
  called by one thread.
- What is dropped is counted, with the reason.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping
from typing import Final, NamedTuple

from agent.capture.store import SampleStore, StoredSample
from agent.ports import RequestRecorderPort
from agent.serve.answered import Answered
from agent.serve.capture import Capture
from wire.capture import MAX_SEALED_BYTES, CaptureRule, read_head
from wire.clock import Clock
from wire.errors import FleetError

TAKEN: Final = "captured_samples_total"
DROPPED: Final = "capture_dropped_total"
WAITING_BYTES: Final = MAX_SEALED_BYTES
"""What may wait in memory to be written."""


class _Waiting(NamedTuple):
    sample: StoredSample
    attributes: dict[str, str]


class Taking:
    """What is wanted of each model, and what comes of it.

    Args:
        store: Keeps samples.
        recorder: Where figures go.
        clock: For the day.
    """

    def __init__(self, store: SampleStore, recorder: RequestRecorderPort, clock: Clock) -> None:
        self._store = store
        self._recorder = recorder
        self._clock = clock
        self._lock = threading.Lock()
        self._rules: dict[str, CaptureRule] = {}
        self._asked: dict[str, Capture] = {}
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0

    def follow(self, rules: Mapping[str, CaptureRule]) -> None:
        """Take what a desired state asks for from now on; what it does not ask for is removed.

        Args:
            rules: Model to what is wanted of it.

        Raises:
            StorageError: The disk refused to remove what is not wanted any more.
        """
        self._rules = dict(rules)
        self._store.keep_only({rule.id for rule in rules.values()})
        self._ask()

    def asked(self, model: str) -> Capture | None:
        """Return what workers of a model are asked for; the same object while nothing changes."""
        return self._asked.get(model)

    def took(self, answered: Answered) -> None:
        """Take note of what an answer brought; any thread may call this."""
        attributes = {"release": answered.release, "variant": answered.variant}
        for missed in answered.missed:
            self._drop(attributes, missed.reason, missed.samples)
        captured = answered.captured
        if captured is None:
            return
        sample = StoredSample(head=captured.head, sealed=captured.sealed)
        with self._lock:
            has_room = self._waiting_bytes + len(sample.sealed) <= WAITING_BYTES
            if has_room:
                self._waiting_bytes += len(sample.sealed)
                self._waiting.append(_Waiting(sample, attributes))
        if not has_room:
            self._drop(attributes, "busy", 1)

    def keep(self) -> None:
        """Write what waits; called about once a second, by one thread.

        Raises:
            StorageError: The disk refused; the sample is dropped.
        """
        while True:
            with self._lock:
                if not self._waiting:
                    break
                waiting = self._waiting.popleft()
                self._waiting_bytes -= len(waiting.sample.sealed)
            self._keep(waiting)
        self._ask()

    def refused(self, head: bytes, reason: str) -> None:
        """Count a sample that the controller did not want.

        Args:
            head: Its head.
            reason: A word.
        """
        told = read_head(head)
        self._drop({"release": told.release, "variant": told.variant}, reason, 1)

    def _keep(self, waiting: _Waiting) -> None:
        sample, attributes = waiting
        head = read_head(sample.head)
        rule = self._rules.get(head.model)
        if rule is None or rule.id != head.capture:
            return  # it ended meanwhile
        size = len(sample.sealed)
        spent = self._store.spent.at(self._clock.now_s())
        if spent.left_bytes(rule.id, rule.bytes_per_day) < size:
            self._drop(attributes, "budget", 1)
            return
        wanted = {each.id for each in self._rules.values()}
        try:
            kept = self._store.add(head, sample, spent.only(wanted).plus(rule.id, size))
        except FleetError:
            self._drop(attributes, "storage", 1)
            raise
        if kept:
            self._recorder.add(TAKEN, 1.0, {**attributes, "why": head.why})
        else:
            self._drop(attributes, "full", 1)

    def _ask(self) -> None:
        """Say what may be taken, as far as it changed."""
        spent = self._store.spent.at(self._clock.now_s())
        asked: dict[str, Capture] = {}
        for model, rule in self._rules.items():
            wanted = Capture(
                capture=rule.id,
                public_key=rule.key,
                share=rule.share,
                margin=rule.margin,
                room_bytes=spent.left_bytes(rule.id, rule.bytes_per_day),
            )
            before = self._asked.get(model)
            asked[model] = before if before is not None and before == wanted else wanted
        self._asked = asked

    def _drop(self, attributes: Mapping[str, str], reason: str, samples: int) -> None:
        self._recorder.add(DROPPED, float(samples), {**attributes, "reason": reason})

"""Takes samples for the fleet's operator, and seals them to his key.

Runs in the worker process, after the answer has been sent. Only here are tensors read; what leaves
the process can be read by the operator alone.

Rules:
- Nothing happens while the supervisor asks for nothing: no library is loaded, no number drawn.
- It takes at most `MOST_SHARE` of the time, whatever the tensors are: after a look it waits so much
  longer than the look took. What is chosen meanwhile is counted, not taken.
- It holds one sealed sample at most, until an answer takes it along.
- What is too large, or would be over the budget, is counted before anything is copied.
- A fault costs the sample; the request has its answer.
"""

from __future__ import annotations

import random
import secrets
from collections import Counter
from collections.abc import Callable
from typing import Final, TypeAlias

import numpy as np

from agent.serve.capture import Capture, Captured, Missed
from agent.serve.frames import Load
from runtime_adapters.distributions import rows_of, values
from runtime_adapters.protocol import Tensors
from wire.capture import MAX_SEALED_BYTES, SampleHead
from wire.clock import Clock
from wire.errors import FleetError
from wire.package.distribution import MARGIN

MOST_SHARE: Final = 0.02
MOST_ROWS: Final = 16
"""Samples of a request whose margins are looked at: its first ones."""

SCORES: Final = (2, 1000)
"""How many scores an output has of which a margin is known: as in the evaluation."""

ROOM_BYTES: Final = 4096
"""More than a sample has beside its tensors: names, shapes, the head, what sealing adds."""

BUSY: Final = "busy"
BUDGET: Final = "budget"
TOO_LARGE: Final = "too large"
NO_SCORES: Final = "no scores"
FAULT: Final = "fault"

Seal: TypeAlias = Callable[[bytes, SampleHead, Tensors, Tensors, bool], Captured]


class Capturer:
    """Takes samples of one variant. Not for several threads.

    Args:
        load: What the worker has loaded.
        clock: For measured times, and when a sample was taken.
        draw: Returns a random number from 0 to below 1; the system's by default.
    """

    def __init__(
        self,
        load: Load,
        clock: Clock,
        draw: Callable[[], float] = random.random,  # noqa: S311 - a share, not a secret
    ) -> None:
        self._about = {
            "device": load.model.parameters.get("device", ""),
            "model": load.model.name,
            "release": f"{load.model.name}:{load.model.version}",
            "variant": load.model.parameters.get("variant", ""),
        }
        self._scores = tuple(spec for spec in load.info.outputs if spec.datatype.startswith("FP"))
        self._is_batch = all(spec.shape[:1] in {(-1,), (1,)} for spec in load.info.inputs)
        self._clock = clock
        self._draw = draw
        self._seal: Seal | None = None
        self._next_s = 0.0
        self._ready: Captured | None = None
        self._missed: Counter[str] = Counter()

    def look(self, asked: Capture | None, inputs: Tensors, outputs: Tensors) -> None:
        """Take a request and its answer, if they are wanted.

        Args:
            asked: What the supervisor wants; None for nothing.
            inputs: The request.
            outputs: The answer of the model.
        """
        if asked is None or self._draw() >= asked.share:
            return
        seal = self._seal or self._loaded()
        start_s = self._clock.monotonic_s()
        if start_s < self._next_s or self._ready is not None:
            # Whether it is a hard one is not known; of those alone too many would be counted.
            if asked.margin is None:
                self._missed[BUSY] += 1
            return
        try:
            self._take(asked, inputs, outputs, seal)
        except (FleetError, KeyError, ValueError, TypeError, MemoryError):
            self._missed[FAULT] += 1
        self._next_s = start_s + (self._clock.monotonic_s() - start_s) / MOST_SHARE

    def take(self) -> tuple[Captured | None, tuple[Missed, ...]]:
        """Return the sample that is ready, and what was not taken since the last time."""
        ready, self._ready = self._ready, None
        missed = tuple(Missed(reason=why, samples=n) for why, n in self._missed.items())
        self._missed.clear()
        return ready, missed

    def _take(self, asked: Capture, inputs: Tensors, outputs: Tensors, seal: Seal) -> None:
        margin = None
        if asked.margin is not None:
            margin = self._margin(outputs)
            if margin is None:
                self._missed[NO_SCORES] += 1
            if margin is None or not margin < asked.margin:
                return
        size = ROOM_BYTES + sum(
            each.nbytes for tensors in (inputs, outputs) for each in tensors.values()
        )
        if size > min(asked.room_bytes, MAX_SEALED_BYTES):
            self._missed[TOO_LARGE if size > MAX_SEALED_BYTES else BUDGET] += 1
            return
        head = SampleHead(
            capture=asked.capture,
            sample=secrets.token_hex(16),
            at_s=self._clock.now_s(),
            why="share" if margin is None else "margin",
            margin=margin,
            **self._about,
        )
        ready = seal(asked.public_key, head, inputs, outputs, self._is_batch)
        if len(ready.sealed) > min(asked.room_bytes, MAX_SEALED_BYTES):  # long texts
            self._missed[TOO_LARGE] += 1
            return
        self._ready = ready

    def _margin(self, outputs: Tensors) -> float | None:
        """Return the least margin of an answer; None if no output has scores."""
        found = []
        for spec in self._scores:
            rows = rows_of(outputs[spec.name], spec)[:MOST_ROWS]
            if _are_scores(outputs[spec.name].shape, rows.shape[1]):
                found.append(float(np.min(values(MARGIN, rows), initial=np.inf)))
        return min(found, default=None)

    def _loaded(self) -> Seal:
        """Load what seals, once: a device that captures nothing does without."""
        from agent.serve.worker.sealing import sealed

        self._seal = sealed
        return sealed


def _are_scores(shape: tuple[int, ...], elements: int) -> bool:
    return SCORES[0] <= elements <= SCORES[1] and shape[-1:] == (elements,)

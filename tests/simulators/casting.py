"""A fleet that listens to a cast over links of any kind, in simulated time.

The decisions of the controller (`controller.delivery.casts`) and of the devices
(`agent.install.fetch.listening`) are those of production. Between them lie one sender, a broker
that copies each piece and queues as much for one device as ours does, and for each device a link
that carries one message after the other. What a device lacks when it has left comes to it by
itself: `tests.simulators.delivery`.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import msgspec

from agent.install.fetch.listening import End, Listening
from controller.broker.mosquitto import MAX_INFLIGHT_MESSAGES, MAX_QUEUED_BYTES
from controller.delivery.carousel import CastTurn
from controller.delivery.casts import Casts
from controller.delivery.pace import MOST_PIECE_BYTES
from tests.simulators.delivery import SHA256, Link
from wire.delivery import CastPiece, CastReport

MESSAGE_S = 0.0002
SENDER_BYTES_PER_S = 200e6
"""What a message costs the controller."""

COPY_S = 0.00002
COPY_BYTES_PER_S = 1e9
"""What each copy costs the broker."""

ANSWER_BYTES = 200
REPORT_BYTES = 400
TICK_S = 0.1
"""How often a device and the sender look at the time."""

IN_FLIGHT_BYTES = MAX_INFLIGHT_MESSAGES * (MOST_PIECE_BYTES + ANSWER_BYTES)
Manner = Literal["honest", "dead", "never lacks less", "all has come", "late", "too far"]


@dataclass(kw_only=True)
class Listener:
    """One device."""

    name: str
    link: Link
    asks_s: float = 0.0
    manner: Manner = "honest"
    dies_s: float = float("inf")
    lacking: set[int] = field(default_factory=set)
    heard: Listening | None = None
    came_bytes: int = 0
    ended: End | Literal["alone", "complete"] = ""
    ended_s: float = float("inf")
    free_s: float = 0.0
    queued_bytes: int = 0


class Casting:
    """One blob on its way to all devices.

    Args:
        listeners: The devices, none of which has a chunk; a part of them may be set before.
        size_bytes: Of the blob.
        chunk_bytes: Of its chunks.
        seed: Of the losses.
    """

    def __init__(
        self, listeners: list[Listener], size_bytes: int, chunk_bytes: int, *, seed: int = 0
    ) -> None:
        self.listeners = listeners
        self.casts = Casts(lambda: "c" * 32)
        self.cast_bytes = 0
        self.ends: list[float] = []
        self.says: list[str] = []
        self.most_broker_bytes = 0
        self.now_s = 0.0
        self._size_bytes = size_bytes
        self._chunk_bytes = chunk_bytes
        self._broker_bytes = 0
        self._broker_free_s = 0.0
        self._sending = False
        self._wakes_s = 0.0
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        for listener in listeners:
            listener.lacking = listener.lacking or set(range(-(-size_bytes // chunk_bytes)))
            self.at(listener.asks_s, partial(self._ask, listener))
        self.at(TICK_S, self._tick)

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._events, (time_s, next(self._order), act))

    def run(self, until_s: float) -> bool:
        """Let time pass until all have left; tell whether they have."""
        while self._left() and self.now_s <= until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()
        return not self._left()

    def is_idle(self) -> bool:
        """Tell whether nothing is sent in the next half minute."""
        before = self.cast_bytes
        self.wait(30.0)
        return self.cast_bytes == before and self.casts.next(self.now_s) is None

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()

    def _left(self) -> bool:
        return any(
            not each.ended and each.manner == "honest" and each.dies_s == float("inf")
            for each in self.listeners
        )

    def _ask(self, device: Listener) -> None:
        offer = self.casts.offer(device.name, SHA256, self._size_bytes, self.now_s)
        if offer is None:
            self._leave(device, "alone")
            return
        device.heard = Listening(
            self._size_bytes,
            self._chunk_bytes,
            wait_s=offer.wait_s,
            phase=self._rng.random(),
            now_s=self.now_s,
        )
        self._report(device)
        self._look(device)

    def _look(self, device: Listener) -> None:
        if device.ended or device.heard is None or self.now_s >= device.dies_s:
            return
        if not device.lacking:
            self._leave(device, "complete")
        elif end := device.heard.end(self.now_s):
            if device.heard.is_quiet(self.now_s):
                self._leave(device, end)
            else:
                self.at(self.now_s + TICK_S, partial(self._look, device))
        else:
            if device.heard.must_report(self.now_s):
                self._report(device)
            self.at(self.now_s + TICK_S, partial(self._look, device))

    def _leave(self, device: Listener, end: End | Literal["alone", "complete"]) -> None:
        device.ended, device.ended_s = end, self.now_s
        if end != "alone":
            self._report(device)

    def _report(self, device: Listener) -> None:
        heard = device.heard
        assert heard is not None
        position = heard.position
        lacking = 0 if device.ended else sum(1 << chunk for chunk in device.lacking)
        report = CastReport(
            device=device.name,
            topic="c" * 32,
            chunk_bytes=self._chunk_bytes,
            lacking=f"{lacking:x}",
            position=msgspec.UNSET if position is None else position,
            lag_s=heard.lag_s,
            lost_bytes=heard.lost_bytes,
        )
        heard.lost_bytes = 0
        whole = (1 << -(-self._size_bytes // self._chunk_bytes)) - 1
        match device.manner:
            case "dead" if isinstance(position, int):
                return
            case "never lacks less":
                report = msgspec.structs.replace(report, lacking=f"{whole:x}")
            case "all has come":
                report = msgspec.structs.replace(report, position=2**60, lag_s=-5.0)
            case "late":
                report = msgspec.structs.replace(report, lag_s=1e9, lost_bytes=2**60)
            case "too far":
                report = msgspec.structs.replace(report, position=-1, lacking=f"{whole:x}")
        if self._rng.random() >= device.link.loss:
            self.at(self.now_s + device.link.round_trip_s / 2, partial(self._hear, report))

    def _hear(self, report: CastReport) -> None:
        self.casts.report(report, self.now_s)
        self._send()

    def _tick(self) -> None:
        self.casts.sweep(self.now_s)
        self._send()
        self.at(self.now_s + TICK_S, self._tick)

    def _send(self) -> None:
        if self._sending:
            return
        turn = self.casts.next(self.now_s)
        if turn is None:
            wakes_s = self.now_s + self.casts.wait_s(self.now_s)
            if wakes_s < self.now_s + TICK_S and not self.now_s < self._wakes_s <= wakes_s:
                self._wakes_s = wakes_s
                self.at(wakes_s, self._send)
            return
        self._sending = True
        took_s = MESSAGE_S + turn.size_bytes / SENDER_BYTES_PER_S
        self.at(self.now_s + took_s, partial(self._sent, turn))

    def _sent(self, turn: CastTurn) -> None:
        self._sending = False
        self.casts.sent(turn, self.now_s)
        self.cast_bytes += turn.size_bytes
        if turn.says:
            self.says.append(turn.says)
        if not turn.size_bytes:
            self.ends.append(self.now_s)
        piece = CastPiece(
            position=turn.position,
            offset=turn.offset,
            data=bytes(turn.size_bytes),
            at_s=self.now_s,
            report_s=turn.report_s,
        )
        self._copy_to_all(piece)
        self._send()

    def _copy_to_all(self, piece: CastPiece) -> None:
        if self._broker_free_s > self.now_s:
            self.at(self._broker_free_s, partial(self._copy_to_all, piece))
            return
        self._broker_free_s = self.now_s
        for device in self.listeners:
            if device.heard is not None and not device.heard.end(self.now_s):
                self._copy(device, piece)

    def _copy(self, device: Listener, piece: CastPiece) -> None:
        size_bytes = len(piece.data) + ANSWER_BYTES
        if device.queued_bytes > IN_FLIGHT_BYTES + MAX_QUEUED_BYTES:
            return  # as the broker drops it
        self._broker_free_s += COPY_S + size_bytes / COPY_BYTES_PER_S
        device.free_s = max(device.free_s, self._broker_free_s)
        device.free_s += size_bytes / device.link.bytes_per_s
        self._queue(device, size_bytes)
        self.at(device.free_s, partial(self._queue, device, -size_bytes))
        if self._rng.random() >= device.link.loss:
            arrives_s = device.free_s + device.link.round_trip_s / 2
            self.at(arrives_s, partial(self._arrive, device, piece))

    def _queue(self, device: Listener, size_bytes: int) -> None:
        """Note what the broker holds: copies are only what is in flight, the rest is shared."""
        before_bytes = min(device.queued_bytes, IN_FLIGHT_BYTES)
        device.queued_bytes += size_bytes
        self._broker_bytes += min(device.queued_bytes, IN_FLIGHT_BYTES) - before_bytes
        self.most_broker_bytes = max(self.most_broker_bytes, self._broker_bytes)

    def _arrive(self, device: Listener, piece: CastPiece) -> None:
        if device.ended or device.heard is None or self.now_s >= device.dies_s:
            return
        ready = device.heard.take(piece, self.now_s)
        if ready is not None and ready.chunk in device.lacking:
            device.lacking.discard(ready.chunk)
            device.came_bytes += len(ready.data)
        if not device.lacking:
            self._leave(device, "complete")

"""A fleet that fetches one blob over links of any kind, in simulated time.

The decisions of the device (`agent.install.fetch.asking`) and of the controller
(`controller.delivery.lanes`)
are those of production. Between them lie one sender, a broker that queues without end, and for each
device a link that carries one message after the other, with a rate, a latency that may vary, and
losses.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import msgspec

from agent.install.fetch.asking import Asking, Request
from agent.install.fetch.flow import MIN_PIECE_BYTES, Flow
from agent.install.fetch.pieces import Pieces
from controller.delivery.lanes import Lanes, Turn
from wire.delivery import ChunkRequest
from wire.package.index import CHUNK_BYTES

REQUEST_BYTES = 350
INDEX_BYTES = 6
ANSWER_BYTES = 200
"""What a message has beside its piece."""

MESSAGE_S = 0.0002
SENDER_BYTES_PER_S = 200e6
"""What a message costs the controller and the broker."""

LEAST_WAIT_S = 1e-6
"""So that rounding never stops the time."""

SHA256 = "a" * 64


@dataclass(frozen=True, kw_only=True)
class Link:
    """The way to one device and back."""

    bytes_per_s: float
    round_trip_s: float
    loss: float = 0.0
    """Share of the messages that get lost, in each direction."""

    jitter_s: float = 0.0
    """Mean of what each message takes longer, exponentially distributed; the order is kept."""


class _Device:
    def __init__(
        self, name: str, link: Link, size_bytes: int, flow: Flow, lacking: Iterable[int]
    ) -> None:
        self.name = name
        self.link = link
        self.flow = flow
        self.pieces = Pieces(size_bytes, CHUNK_BYTES, MIN_PIECE_BYTES)
        for chunk in lacking:
            self.pieces.add(chunk)
        self.asking = Asking(self.flow, self.pieces, size_bytes)
        self.seen: tuple[int, int] | msgspec.UnsetType = msgspec.UNSET
        self.up_free_s = 0.0
        self.down_free_s = 0.0
        self.up_last_s = 0.0
        self.down_last_s = 0.0
        """When the last message came out of the link."""

        self.timer_s = 0.0
        self.ended_s: float | None = None
        self.most_waiting_s = 0.0
        """How long a control message would have waited behind pieces, at worst."""


class Delivery:
    """One blob on its way to all devices.

    Args:
        links: Of each device.
        size_bytes: Of the blob.
        seed: Of the losses.
        flows: What the devices know of their links from blobs before; nothing if None.
        lacking: The chunks that each lacks; all if None.
    """

    def __init__(
        self,
        links: list[Link],
        size_bytes: int,
        *,
        seed: int = 0,
        flows: list[Flow] | None = None,
        lacking: list[set[int]] | None = None,
    ) -> None:
        self.size_bytes = size_bytes
        self.lanes = Lanes()
        flows = flows or [Flow() for _ in links]
        lacking = lacking or [set(range(-(-size_bytes // CHUNK_BYTES))) for _ in links]
        self.devices = [
            _Device(f"d{n}", link, size_bytes, flow, sorted(chunks))
            for n, (link, flow, chunks) in enumerate(zip(links, flows, lacking, strict=True))
        ]
        self.by_name = {device.name: device for device in self.devices}
        self.sent_bytes = 0
        self.broker_bytes = 0
        self.most_broker_bytes = 0
        self.now_s = 0.0
        self._rng = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._sending = False
        self._left = sum(not device.pieces.complete for device in self.devices)
        for device in self.devices:
            self.at(0.0, partial(self._wake, device))
        self.at(1.0, self._sweep)

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Let something happen at a time."""
        heapq.heappush(self._events, (time_s, next(self._order), act))

    def run(self, until_s: float) -> None:
        """Let time pass until every device has everything, or some time has come."""
        while self._left and self._events and self._events[0][0] <= until_s:
            self.now_s, _, act = heapq.heappop(self._events)
            act()

    @property
    def useful(self) -> float:
        """Useful bytes over sent bytes."""
        return len(self.devices) * self.size_bytes / self.sent_bytes

    @property
    def ended(self) -> bool:
        """Whether every device has everything."""
        return not self._left

    def restart_controller(self) -> None:
        """Let the controller forget everything, as a kill does."""
        self.lanes = Lanes()

    def reconnect(self, device: _Device) -> None:
        """Let a device notice that its connection is new."""
        device.seen = (device.flow.last, -1)
        device.asking.restart()
        self._wake(device)

    def _wake(self, device: _Device) -> None:
        if device.pieces.complete:
            return
        request = device.asking.next(self.now_s)
        if request is not None:
            self._tell(device, request)
            # A window may hold more than one request.
            self.at(self.now_s, lambda: self._wake(device))
        timer_s = self.now_s + max(device.asking.wait_s(self.now_s), LEAST_WAIT_S)
        if device.timer_s <= self.now_s or timer_s < device.timer_s:
            device.timer_s = timer_s
            self.at(timer_s, lambda: self._wake(device))

    def _tell(self, device: _Device, request: Request) -> None:
        message = ChunkRequest(
            device=device.name,
            sha256=SHA256,
            chunk_bytes=request.piece_bytes,
            indices=request.indices,
            number=request.number,
            seen=device.seen,
            patience_s=request.patience_s,
        )
        link = device.link
        size_bytes = REQUEST_BYTES + INDEX_BYTES * len(request.indices)
        begins_s = max(device.up_free_s, self.now_s)
        device.up_free_s = begins_s + size_bytes / link.bytes_per_s
        if self._rng.random() >= link.loss:
            arrives_s = device.up_free_s + self._latency_s(link)
            device.up_last_s = max(device.up_last_s, arrives_s)
            self.at(device.up_last_s, lambda: self._hear(message))

    def _latency_s(self, link: Link) -> float:
        jitter_s = self._rng.expovariate(1 / link.jitter_s) if link.jitter_s else 0.0
        return link.round_trip_s / 2 + jitter_s

    def _hear(self, request: ChunkRequest) -> None:
        sizes = tuple(
            min(self.size_bytes - index * request.chunk_bytes, request.chunk_bytes)
            for index in request.indices
        )
        self.lanes.ask(request, sizes, self.now_s)
        self._send()

    def _send(self) -> None:
        if self._sending:
            return
        turn = self.lanes.next(self.now_s)
        if turn is None:
            return
        self._sending = True
        took_s = MESSAGE_S + turn.wanted.size_bytes / SENDER_BYTES_PER_S
        self.at(self.now_s + took_s, lambda: self._sent(turn))

    def _sent(self, turn: Turn) -> None:
        self._sending = False
        device, size_bytes = self.by_name[turn.device], turn.wanted.size_bytes
        waited_s = self.now_s - turn.wanted.since_s
        self.lanes.sent(turn, self.now_s)
        self.sent_bytes += size_bytes
        self.broker_bytes += size_bytes
        self.most_broker_bytes = max(self.most_broker_bytes, self.broker_bytes)
        link = device.link
        begins_s = max(device.down_free_s, self.now_s)
        device.most_waiting_s = max(device.most_waiting_s, begins_s - self.now_s)
        device.down_free_s = begins_s + (ANSWER_BYTES + size_bytes) / link.bytes_per_s
        self.at(device.down_free_s, lambda: self._left_broker(size_bytes))
        if self._rng.random() >= link.loss:
            arrives_s = device.down_free_s + self._latency_s(link)
            device.down_last_s = max(device.down_last_s, arrives_s)
            self.at(device.down_last_s, lambda: self._arrive(device, turn, waited_s))
        self._send()

    def _left_broker(self, size_bytes: int) -> None:
        self.broker_bytes -= size_bytes

    def _arrive(self, device: _Device, turn: Turn, waited_s: float) -> None:
        wanted = turn.wanted
        index = wanted.piece.position
        number = wanted.number
        assert number is not None
        device.seen = (number, index)
        place = device.asking.place(number, index, wanted.size_bytes)
        if place is not None:
            device.asking.arrived(place, wanted.size_bytes, waited_s, self.now_s)
            device.asking.settle(number)
        if device.pieces.complete and device.ended_s is None:
            device.ended_s = self.now_s
            self._left -= 1
            self._tell(device, device.asking.thanks())
        self._wake(device)

    def _sweep(self) -> None:
        self.lanes.sweep(self.now_s)
        self._send()
        self.at(self.now_s + 1.0, self._sweep)

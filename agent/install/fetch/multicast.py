"""Takes chunks that the controller sends once for many devices: `controller.delivery.casts`.

Rules:
- It only saves bytes and time: whatever happens here, what lacks comes by messages.
- A chunk is checked before it is kept, and what nobody asked for is dropped before it is decoded.
- What comes waits in a bounded queue. What does not fit is lost, and the controller hears of it.
"""

from __future__ import annotations

import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Final

import msgspec

from agent.install.fetch.listening import Listening
from agent.install.fetch.messages import Publish
from agent.install.fetch.part import Part
from agent.install.fetch.slowness import Slow, Watch
from agent.install.fetch.sources import Errand, SlowError, SourceError, SourceName, Ways
from wire.clock import Clock
from wire.codec import to_json
from wire.delivery import Cast, CastPiece, CastReport
from wire.errors import TopicError
from wire.messages import decode_message
from wire.progress import MULTICAST
from wire.topics import cast, up

LEAST_BYTES: Final = 1024 * 1024
"""The controller casts nothing smaller."""

HELD_BYTES: Final = 4 * 1024 * 1024
PIECE_BYTES: Final = 1024
"""What a piece takes beside its data, roughly."""

POLL_S: Final = 0.1
MAX_WRONG: Final = 4
REST_S: Final = 600.0
"""So long a device that was slower than most listens to no cast."""

MAX_HEARD: Final = 256
REPORT_EXPIRY_S: Final = 5

Subscribe = Callable[[str], None]


class MulticastSource:
    """Listens to casts, one at a time.

    Args:
        device: This device.
        ways: Knows the casts.
        publish: Publishes a message; False without a connection.
        subscribe: Subscribes to a topic, also on later connections.
        unsubscribe: Ends that.
        clock: For waiting.
        watch: Knows whether a cast is too slow; None for no bound.
        least_bytes: Size of the smallest blob for which to ask.
    """

    name: SourceName = MULTICAST

    def __init__(
        self,
        device: str,
        ways: Ways,
        *,
        publish: Publish,
        subscribe: Subscribe,
        unsubscribe: Subscribe,
        clock: Clock,
        watch: Watch | None = None,
        least_bytes: int = LEAST_BYTES,
    ) -> None:
        self._device = device
        self._ways = ways
        self._publish = publish
        self._subscribe = subscribe
        self._unsubscribe = unsubscribe
        self._clock = clock
        self._watch = watch
        self._least_bytes = least_bytes
        self._rests_until_s = float("-inf")
        self._heard: OrderedDict[str, None] = OrderedDict()
        """Casts that this device has listened to: it is told of a new one or of none."""

        self._right_bytes = 0
        """Came in right chunks, and is not judged."""

        self._wanted = ""
        self._held: deque[tuple[CastPiece, float]] = deque()
        self._held_bytes = 0
        self._came = threading.Condition()

    def deliver(self, name: str, payload: bytes) -> None:
        """Take what came on a cast's topic; called by the thread that receives messages.

        Args:
            name: Of the cast.
            payload: As it came.

        Raises:
            WireFormatError: It is malformed.
        """
        if name != self._wanted:
            return
        piece = decode_message(payload, CastPiece, packed=True)
        with self._came:
            held_bytes = self._held_bytes + len(piece.data) + PIECE_BYTES
            if name != self._wanted or held_bytes > HELD_BYTES:
                return
            self._held.append((piece, self._clock.monotonic_s()))
            self._held_bytes = held_bytes
            self._came.notify()

    def bring(self, part: Part, errand: Errand) -> None:
        """Bring what comes to many; see `ChunkSource`.

        Raises:
            SourceError: This device is too slow, or nothing comes any more.
        """
        found = self._cast(part, errand)
        if found is None:
            return
        try:
            topic = cast(found.topic)
        except TopicError as exc:
            raise SourceError(f"the controller names no cast: {exc.message}") from exc
        self._note_heard(found.topic)
        blob = part.blob
        wait_s = min(max(found.wait_s, 0.0), POLL_S + REPORT_EXPIRY_S)
        listening = Listening(
            blob.size_bytes,
            blob.chunk_bytes,
            wait_s=wait_s,
            phase=random.random(),  # noqa: S311 - jitter, not a secret
            now_s=self._clock.monotonic_s(),
        )
        self._begin(found.topic)
        self._subscribe(topic)
        try:
            self._listen(found.topic, listening, part, errand)
        finally:
            self._unsubscribe(topic)
            self._report(found.topic, part, listening, has_left=True)
            if not part.complete:
                self._drain(listening, part, errand)
            self._begin("")
        self._tell(listening, part)

    def end(self) -> None:
        """Do nothing: this source keeps nothing open."""

    def _cast(self, part: Part, errand: Errand) -> Cast | None:
        """Return the cast to listen to, if there is one and it is worth it."""
        blob = part.blob
        lacks_most = 2 * len(part.lacking) >= blob.count
        if not errand.asks or blob.chunks is None or blob.size_bytes < self._least_bytes:
            return None
        if not lacks_most or self._clock.monotonic_s() < self._rests_until_s:
            return None
        ways = self._ways.of(blob.sha256, errand)
        if ways is None or not isinstance(ways.cast, Cast) or ways.cast.topic in self._heard:
            return None
        return ways.cast

    def _listen(self, name: str, listening: Listening, part: Part, errand: Errand) -> None:
        wrong = 0
        self._right_bytes = 0
        while not part.complete:
            errand.check()
            now_s = self._clock.monotonic_s()
            if listening.end(now_s):
                return
            if listening.must_report(now_s):
                self._report(name, part, listening)
            wrong += self._take(listening, part, errand, listening.wait_s(now_s))
            self._judge(self._clock.monotonic_s() - now_s, errand)
            if wrong >= MAX_WRONG:
                raise SourceError(f"{wrong} chunks of a cast were wrong")

    def _judge(self, waited_s: float, errand: Errand) -> None:
        """Look whether the cast is too slow, by chunks that are right, whether they lacked or not.

        Raises:
            SlowError: It is, and there is another source.
        """
        watch = self._watch
        if watch is None:
            return
        rate, came_bytes = watch.waited(waited_s), self._right_bytes
        self._right_bytes = 0
        if rate is None and came_bytes:
            rate = watch.came(came_bytes)
        if rate is None:
            return
        slow = Slow(who="a cast", bytes_per_s=rate, least_bytes_per_s=watch.least_bytes_per_s)
        if errand.too_slow(slow):
            raise SlowError(slow)

    def _drain(self, listening: Listening, part: Part, errand: Errand) -> None:
        """Keep what is still on its way."""
        while not part.complete and not listening.is_quiet(self._clock.monotonic_s()):
            errand.check()
            self._take(listening, part, errand, POLL_S)

    def _take(self, listening: Listening, part: Part, errand: Errand, wait_s: float) -> int:
        """Take the next piece if one comes; return 1 if it completes a wrong chunk."""
        with self._came:
            if not self._held:
                self._came.wait(min(wait_s, POLL_S))
            if not self._held:
                return 0
            piece, came_s = self._held.popleft()
            self._held_bytes -= len(piece.data) + PIECE_BYTES
        ready = listening.take(piece, came_s)
        if ready is None:
            return 0
        if not part.blob.is_right(*ready):
            return 1
        self._right_bytes += len(ready.data)
        size_bytes = part.keep(*ready)
        if size_bytes:
            errand.progress(size_bytes, MULTICAST)
        return 0

    def _report(
        self, name: str, part: Part, listening: Listening, *, has_left: bool = False
    ) -> None:
        position = listening.position
        report = CastReport(
            device=self._device,
            topic=name,
            chunk_bytes=part.blob.chunk_bytes,
            lacking="" if has_left else _digits(part.lacking),
            position=msgspec.UNSET if position is None else position,
            lag_s=round(listening.lag_s, 3),
            lost_bytes=listening.lost_bytes,
        )
        topic = up(self._device, "cast_report")
        if self._publish(topic, to_json(report), REPORT_EXPIRY_S):
            listening.lost_bytes = 0

    def _tell(self, listening: Listening, part: Part) -> None:
        """Say why the rest is to come in another way.

        Raises:
            SourceError: For a reason that is worth a line in the log.
        """
        end = listening.end(self._clock.monotonic_s())
        if part.complete or listening.position is None:
            return
        if end == "behind":
            self._rests_until_s = self._clock.monotonic_s() + REST_S
            raise SourceError("this device is slower than most that listen")
        if end == "silence":
            raise SourceError("nothing comes any more")

    def _note_heard(self, name: str) -> None:
        self._heard[name] = None
        if len(self._heard) > MAX_HEARD:
            self._heard.popitem(last=False)

    def _begin(self, wanted: str) -> None:
        with self._came:
            self._wanted = wanted
            self._held.clear()
            self._held_bytes = 0


def _digits(lacking: tuple[int, ...]) -> str:
    """Return numbers of chunks as the digits of a report."""
    bits = bytearray(max(lacking, default=0) // 8 + 1)
    for index in lacking:
        bits[index // 8] |= 1 << index % 8
    return f"{int.from_bytes(bits, 'little'):x}"

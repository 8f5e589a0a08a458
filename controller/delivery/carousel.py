"""Decides about one blob that is sent once for many devices: what next, for whom, until when.

Rules:
- Pure: the caller says what happened and when, and does what is decided.
- The first device that asks is told of no cast and waits for nobody. Who asks while others wait is
  told of one, and it begins when enough listen.
- Pieces go round (a broadcast disk, Acharya and others 1995): a device joins anywhere, and leaves
  when it has all or has heard one round. What few lack is not sent: they ask for it themselves.
- A report is believed only as far as it costs little: nobody is listened to for more than a round,
  and the chunks and the pace are those of most (`controller.delivery.pace`).
- It ends when hardly anybody listens, or nobody lacks what others lack too. The last message says
  so.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from controller.delivery.pace import Pace
from wire.console.sizes import bytes_text
from wire.delivery import CastReport
from wire.errors import WireFormatError

MAX_CHUNKS: Final = 32 * 1024
"""A report names the chunks that lack: 8 KiB at most."""

ASKED_S: Final = 10.0
"""How long a device that has asked counts as one that waits."""

GATHER_S: Final = 0.7
WAIT_S: Final = GATHER_S + 1.0
"""How long a device is to wait for the first piece: a slow link takes its time."""

BEGIN_WITH: Final = 3
"""Devices; the first that asked has begun by itself."""

GO_ON_WITH: Final = 2
SHARE: Final = 4
"""What less than a quarter of the devices lack is not sent to all."""

REPORTS_PER_S: Final = 100
"""Of all devices together."""

REPORT_S: Final = 0.2
SILENT_S: Final = 3.0
SILENT_REPORTS: Final = 4
"""Who is not heard of for so long is not there."""

LOOK_S: Final = 0.1
"""How often it is looked who listens, and what they lack."""

DRAIN_S: Final = 1.0
"""So long reports are waited for when all has been sent."""

MIN_WAIT_S: Final = 0.001
LACKING: Final = re.compile(r"[0-9a-f]{0,8192}")


class CastTurn(NamedTuple):
    """What to send next."""

    name: str
    sha256: str
    offset: int
    size_bytes: int
    """0 for the message that says that the cast is over."""

    position: int
    report_s: float
    says: str
    """What is to be logged; mostly nothing."""


class _Listener(msgspec.Struct):
    joined: int
    """Position at which it joined."""

    position: int
    chunk_bytes: int
    lacking: int
    """Bit n is chunk n."""

    heard_s: float


class Carousel:
    """One blob and those who listen to it.

    Args:
        name: Of its topic.
        sha256: The blob.
        size_bytes: Its size.
        now_s: Monotonic time.
    """

    def __init__(self, name: str, sha256: str, size_bytes: int, now_s: float) -> None:
        self.name = name
        self.sha256 = sha256
        self.touched_s = now_s
        self._size_bytes = size_bytes
        self._asked: OrderedDict[str, float] = OrderedDict()
        self._told: set[str] = set()
        self._had: set[str] = set()
        """Devices that have listened: they lack little, or are too slow."""

        self._published = 0
        self._clear(now_s)

    def _clear(self, now_s: float) -> None:
        """Begin anew, with nobody."""
        self._listeners: dict[str, _Listener] = {}
        self._chunk_bytes = 0
        """How large the chunks are for most; 0 until it begins."""

        self._gathered_s = now_s + GATHER_S
        self._runs = False
        self._pace = Pace(self._published, now_s)
        self._began = self._published
        self._plan, self._looked_s = 0, float("-inf")
        self._round_ends = self._published
        """Position at which the first of the devices has had a round."""

        self._chunk, self._within = 0, 0
        """The chunk that is sent next, and how much of it was sent."""

        self._on_way: deque[tuple[int, int]] = deque()
        """Positions after chunks that were sent, and the chunks."""

        self._sent_s = now_s
        self._took_part, self._wanted_bytes = 0, 0

    def ask(self, device: str, now_s: float) -> bool:
        """Note that a device asks; tell whether it is to listen."""
        self.touched_s = now_s
        self._asked.pop(device, None)
        while self._asked and now_s - next(iter(self._asked.values())) > ASKED_S:
            self._asked.popitem(last=False)
        is_alone = not (self._asked or self._listeners)
        self._asked[device] = now_s
        if is_alone or device in self._had:
            return False
        self._told.add(device)
        return True

    def take(self, report: CastReport, now_s: float) -> bool:
        """Take a report; tell whether somebody listens now.

        Raises:
            WireFormatError: It is out of bounds.
        """
        lacking = self._lacking(report)
        self.touched_s = now_s
        listener = self._listeners.get(report.device)
        is_first = not isinstance(report.position, int)
        if listener is None and lacking and is_first and report.device in self._told:
            listener = self._join(report, lacking, now_s)
        if listener is None:
            return bool(self._listeners)
        if not lacking or report.chunk_bytes != listener.chunk_bytes:
            self._drop(report.device)
            return bool(self._listeners)
        listener.lacking, listener.heard_s = lacking, now_s
        if isinstance(report.position, int):
            listener.position = min(max(report.position, listener.position), self._published)
            lag_s, lost_bytes = max(report.lag_s, 0.0), max(report.lost_bytes, 0)
            self._pace.heard(report.device, listener.position, lag_s, lost_bytes, now_s)
        return True

    def next(self, now_s: float) -> CastTurn | None:
        """Return what to send next, or None."""
        if not self._runs and self._listeners and now_s < self._gathered_s:
            return None
        if not self._chunk_bytes:
            self._agree()
        if now_s - self._looked_s >= LOOK_S or self._published >= self._round_ends:
            self._drop_absent(now_s)
            self._looked_s = now_s
            self._plan = lacked_by(self._missing(), max(GO_ON_WITH, len(self._listeners) // SHARE))
        if len(self._listeners) < (GO_ON_WITH if self._runs else BEGIN_WITH):
            return self._turn(0, 0, self._summary() if self._runs else "")
        chunk = self._chunk if self._within else self._next_chunk()
        if chunk is None:
            waits_s = max(DRAIN_S, 2 * self._report_s)
            is_over = now_s - self._sent_s >= waits_s
            return self._turn(0, 0, self._summary()) if is_over else None
        if self._pace.wait_s(now_s) > 0:
            return None
        offset = chunk * self._chunk_bytes + (self._within if chunk == self._chunk else 0)
        end = min((chunk + 1) * self._chunk_bytes, self._size_bytes)
        begins = "" if self._runs else (f"{self._what} is cast to {len(self._listeners)} devices")
        return self._turn(offset, min(self._pace.piece_bytes, end - offset), begins)

    def sent(self, turn: CastTurn, now_s: float) -> None:
        """Note that it was sent."""
        self.touched_s = self._sent_s = now_s
        if not turn.size_bytes:
            for device in list(self._listeners):
                self._drop(device)
            self._clear(now_s)
            return
        self._runs = True
        self._published += turn.size_bytes
        self._pace.sent(turn.size_bytes, now_s)
        end = turn.offset + turn.size_bytes
        self._chunk, self._within = divmod(end, self._chunk_bytes)
        if not self._within or end == self._size_bytes:
            chunk = turn.offset // self._chunk_bytes
            self._chunk, self._within = chunk + 1, 0
            self._plan &= ~(1 << chunk)
            self._on_way.append((self._published, chunk))

    def wait_s(self, now_s: float) -> float:
        """Return how long nothing is to be done if no report comes."""
        if not self._runs and now_s < self._gathered_s:
            return self._gathered_s - now_s
        if not (self._plan or self._within):
            return max(self._looked_s + LOOK_S - now_s, MIN_WAIT_S)
        return max(self._pace.wait_s(now_s), MIN_WAIT_S)

    @property
    def _report_s(self) -> float:
        return max(REPORT_S, len(self._listeners) / REPORTS_PER_S)

    @property
    def _what(self) -> str:
        return f"the blob {self.sha256} of {bytes_text(self._size_bytes)}"

    def _summary(self) -> str:
        cast_bytes = self._published - self._began
        return (
            f"{self._what} was cast to {self._took_part} devices: {bytes_text(cast_bytes)} for "
            f"{bytes_text(self._wanted_bytes)} that they lacked"
        )

    def _turn(self, offset: int, size_bytes: int, says: str) -> CastTurn:
        position, report_s = self._published, self._report_s
        return CastTurn(self.name, self.sha256, offset, size_bytes, position, report_s, says)

    def _lacking(self, report: CastReport) -> int:
        """Return the chunks that a device lacks, one bit each.

        Raises:
            WireFormatError: They are more than there are.
        """
        count = -(-self._size_bytes // max(report.chunk_bytes, 1))
        if report.chunk_bytes < 1 or count > MAX_CHUNKS or not LACKING.fullmatch(report.lacking):
            raise WireFormatError("a report on a cast is out of bounds")
        lacking = int(report.lacking or "0", 16)
        if lacking >> count:
            raise WireFormatError("a report on a cast names chunks that there are not")
        return lacking

    def _join(self, report: CastReport, lacking: int, now_s: float) -> _Listener | None:
        if not self._listeners and not self._runs:
            self._clear(now_s)
        if self._chunk_bytes not in {0, report.chunk_bytes}:
            return None
        position = self._published
        listener = _Listener(position, position, report.chunk_bytes, lacking, now_s)
        self._listeners[report.device] = listener
        self._pace.listeners += 1
        if self._chunk_bytes:
            self._count(listener)
        return listener

    def _agree(self) -> None:
        """Take the chunks of most for those of the blob: one device may say what it likes."""
        sizes_bytes = Counter(each.chunk_bytes for each in self._listeners.values())
        if not sizes_bytes:
            return
        self._chunk_bytes = sizes_bytes.most_common(1)[0][0]
        for device, listener in list(self._listeners.items()):
            if listener.chunk_bytes == self._chunk_bytes:
                self._count(listener)
            else:
                self._drop(device)

    def _count(self, listener: _Listener) -> None:
        self._took_part += 1
        wanted_bytes = listener.lacking.bit_count() * self._chunk_bytes
        self._wanted_bytes += min(wanted_bytes, self._size_bytes)

    def _drop(self, device: str) -> None:
        del self._listeners[device]
        self._pace.listeners -= 1
        self._pace.gone(device)
        self._told.discard(device)
        self._had.add(device)

    def _drop_absent(self, now_s: float) -> None:
        """Forget who has had a round, and who is not heard of."""
        silent_s = max(SILENT_S, SILENT_REPORTS * self._report_s)
        # A device that joins within a chunk misses its beginning.
        round_bytes = self._size_bytes + self._chunk_bytes
        for device, listener in list(self._listeners.items()):
            had_round = self._published - listener.joined >= round_bytes
            if had_round or now_s - listener.heard_s >= silent_s:
                self._drop(device)
        joined = min((each.joined for each in self._listeners.values()), default=0)
        self._round_ends = joined + round_bytes

    def _next_chunk(self) -> int | None:
        """Return the chunk whose turn it is, or None if nothing is left."""
        if not self._plan:
            return None
        rest = self._plan >> self._chunk
        if not rest:
            rest, self._chunk = self._plan, 0
        return self._chunk + (rest & -rest).bit_length() - 1

    def _missing(self) -> Iterator[int]:
        """Yield what each device lacks and is not on its way to it."""
        if not self._listeners:
            return
        listeners = sorted(self._listeners.values(), key=lambda each: each.position)
        while self._on_way and self._on_way[0][0] <= listeners[0].position:
            self._on_way.popleft()
        sent = list(self._on_way)
        on_way = 0
        for listener in reversed(listeners):
            while sent and sent[-1][0] > listener.position:
                on_way |= 1 << sent.pop()[1]
            yield listener.lacking & ~on_way


def lacked_by(lacking: Iterable[int], least: int) -> int:
    """Return the bits that at least so many numbers have.

    Args:
        lacking: Numbers, each a set of bits.
        least: How many; at least 1.

    Returns:
        The set of bits.
    """
    planes: list[int] = []
    """A counter for each bit; plane n has the bit n of all counters."""

    for carry in lacking:
        for place, plane in enumerate(planes):
            planes[place], carry = plane ^ carry, plane & carry  # noqa: PLW2901 - a full adder
        if carry:
            planes.append(carry)
    more, same = 0, -1
    for place in reversed(range(max(len(planes), least.bit_length()))):
        plane = planes[place] if place < len(planes) else 0
        if least >> place & 1:
            same &= plane
        else:
            more |= same & plane
            same &= ~plane
    return more | same

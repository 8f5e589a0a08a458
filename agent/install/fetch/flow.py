"""Decides how much of a transfer may be under way, and when what is under way is taken for lost.

Rules:
- Pure: the caller says what happened and when, and does what is decided.
- The patience (the retransmission time-out of RFC 6298) comes from measured round trips and doubles
  whenever it runs out without an answer. An answer that comes after all says which request it
  answers, so it is measured too (what Karn's algorithm forbids where that is not known).
- The window starts small, doubles each round trip (slow start, RFC 5681), then grows by one piece a
  round trip, and shrinks by a factor when answers are lost or when they wait on the way: additive
  increase and multiplicative decrease, which lets transfers that share a link converge to equal
  shares (Chiu and Jain 1989).
- Answers also wait where processors are busy, and a smaller window does not help there. So delay
  alone does not end the doubling while more comes with each round trip, and it does not shrink the
  window below what comes at the best rate of the last seconds (BBR, Cardwell and others 2016).
- A way may become longer, or processors busy for long. So before the window is shrunk by a shortest
  round trip that was measured some time ago, it is measured again, with one smallest piece under
  way (ProbeRTT of BBR).
- What a smallest piece waits with nothing beside it does not come from the device's own window.
  Where the delay varies (radio, busy brokers) that is much, and no sign of a full link. So it is
  allowed for. It is measured when the window is smallest, and when shrinking has not helped. The
  queue of others on a shared link counts for it too: to allow for twice as much made that grow.
- If an answer shows that the device was only impatient, its window is what it was before (the Eifel
  response, RFC 4015).
- Below MQTT lies TCP, which loses nothing and queues instead. So the sign of a full link is delay,
  as in LEDBAT (RFC 6817): how much longer a round trip takes than the shortest did. The time that a
  request waited for its turn at the controller is no delay of the link, and is subtracted, as QUIC
  subtracts the acknowledgement delay (RFC 9002, 5.3).
- Pieces are small on slow links, so that one is there soon and control messages do not wait long
  behind it; and large on fast ones, because each message costs time.
"""

from __future__ import annotations

from typing import Final

import msgspec

MIN_PIECE_BYTES: Final = 8 * 1024
INITIAL_WINDOW_BYTES: Final = 2 * MIN_PIECE_BYTES
"""As TCP begins (RFC 6928: ten segments, 14,600 bytes), in whole pieces."""

MAX_WINDOW_BYTES: Final = 2 * 1024 * 1024
"""The device may have to hold all of it."""

NEAR_WINDOW_BYTES: Final = 512 * 1024
BASE_GAIN: Final = 2
"""A connection that breaks costs what is under way. So only a long way gets more than the first:
twice what comes in the shortest round trip (the gain of BBR). On one machine twice the first was
hardly faster, and cost twice as much; half of it took half the speed (benchmarks/transfer.py)."""

INITIAL_PATIENCE_S: Final = 3.0
"""Nothing is known yet. RFC 6298 says 1 s; a first piece takes 1 s at 8 KB/s alone."""

MIN_PATIENCE_S: Final = 2.0
MAX_PATIENCE_S: Final = 120.0
"""RFC 6298, 2.4 and 2.5: not below 1 s, and a maximum of at least 60 s. On a busy machine a process
may not run for a second."""

LONGEST_PATIENCE_S: Final = 900.0
"""Where answers have taken so long. A smallest piece takes more than the maximum where many devices
share a link of 1 KB/s, and without this each would ask again before the answer comes, for ever."""

SRTT_GAIN: Final = 1 / 8
RTTVAR_GAIN: Final = 1 / 4
RTTVAR_WEIGHT: Final = 4
"""RFC 6298, 2.3: alpha, beta and K."""

TARGET_DELAY_S: Final = 0.5
"""How long the first piece of a round may wait on the way. LEDBAT allows 0.1 s, which a Python
process on a busy machine takes for itself. It bounds what a control message waits for."""

LONG_DELAY_S: Final = 2.0
"""So long nothing waits where only processors are busy."""

DECREASE: Final = 0.7
"""RFC 9438, 4.6: beta of CUBIC."""

SLOW_START_DECREASE: Final = 0.5
"""The window has doubled since what met the delay was asked for."""

PIECE_S: Final = 2.0
"""A piece is at most what arrives in this time, and half a window. Where many devices share one
controller, small pieces would be all that it does."""

RATE_GAIN: Final = 0.5
AGE_S: Final = 30.0
"""The best rate is that of the last 30 to 60 s: until the shortest round trip is measured again. So
is the longest time of a piece alone."""

GROWTH: Final = 1.25
"""Of the rate, in one round trip, while the way is not full (BBR, 4.2)."""

LEAST_S: Final = 1e-6
"""Clocks may not tell two instants apart."""

SHRUNK_IN_VAIN: Final = 3
"""Rounds in a row, each with too much delay, after which it is measured what a piece alone takes.
The window is then a quarter of what it was, and a queue of its own would have gone."""

BASE_AGE_S: Final = 30.0
"""How long the shortest round trip is relied on. BBR takes 10 s, which costs a long way a tenth of
its rate."""


class _Round(msgspec.Struct):
    """What came since the last round trip ended."""

    ends_with: int
    """The first answer to a request with this number or a greater one ends the round."""

    began_s: float
    came_bytes: int = 0
    longest_s: float = 0.0
    """Longest time from request to answer, the wait at the controller included."""

    waited_s: float = 0.0
    """What of that was the wait at the controller."""

    quickest_s: float = float("inf")
    """Shortest time on the way."""

    lost: bool = False


class _Greatest:
    """The greatest value of the last one to two ages."""

    def __init__(self) -> None:
        self._values: list[tuple[float, float]] = []

    def add(self, value: float, now_s: float) -> None:
        """Take a value."""
        recent = [each for each in self._values if now_s - each[0] < 2 * AGE_S]
        if recent and now_s - recent[-1][0] < AGE_S:
            recent[-1] = (recent[-1][0], max(recent[-1][1], value))
        else:
            recent.append((now_s, value))
        self._values = recent

    @property
    def value(self) -> float:
        """The greatest value; 0 if there is none."""
        return max((value for _, value in self._values), default=0.0)


class Flow:
    """The window and the patience of one device.

    Args:
        initial_patience_s: The patience before the first round trip is measured.
    """

    def __init__(self, initial_patience_s: float = INITIAL_PATIENCE_S) -> None:
        self._initial_patience_s = initial_patience_s
        self._asked_s: dict[int, float] = {}
        """When each request was sent that may still be answered, in order."""

        self._round: _Round | None = None
        self.last = 0
        """The number of the request that was sent last."""

        self.reset()

    def reset(self) -> None:
        """Forget the way: the connection is new."""
        self._window_bytes = INITIAL_WINDOW_BYTES
        self.patience_s = self._initial_patience_s
        self._slow_start = True
        self._mean_s: float | None = None
        self._variation_s = 0.0
        self._bytes_per_s = 0.0
        self._best = _Greatest()
        self._base_s = float("inf")
        """The shortest time on the way, and when it was measured."""

        self._base_at_s = 0.0
        self._alone_s = _Greatest()
        """The longest time on the way of a smallest piece with nothing beside it."""

        self._alone_after: int | None = None
        """While the window is smallest: the last request that had something beside it."""

        self._shrunk = 0
        """Rounds in a row that had too much delay."""

        self._drained: int | None = None
        """While the shortest time is measured again: the last request before that."""

        self._doubted_s = 0.0
        """And the time on the way that looked too long."""

        self._before: tuple[int, int, bool] | None = None
        """When the patience has run out: the last request, the window and the slow start then."""

        self._asked_s.clear()
        self._round = None

    @property
    def window_bytes(self) -> int:
        """How much may be under way."""
        return self._window_bytes if self._drained is None else MIN_PIECE_BYTES

    @property
    def piece_bytes(self) -> int:
        """The size of the next piece, at most: the caller may have to take a smaller one."""
        most_bytes = self.window_bytes // 2
        if self._bytes_per_s:
            most_bytes = min(most_bytes, int(self._bytes_per_s * PIECE_S))
        return max(most_bytes, MIN_PIECE_BYTES)

    def asked(self, number: int, now_s: float) -> None:
        """Note that a request was sent.

        Args:
            number: Of the request; grows.
            now_s: Monotonic time.
        """
        if not self._asked_s:
            self._round = _Round(ends_with=number + 1, began_s=now_s)
        self._asked_s[number] = now_s
        self.last = number

    def arrived(self, number: int, size_bytes: int, waited_s: float, now_s: float) -> None:
        """Note an answer that the device can use.

        Args:
            number: Of the request that it answers.
            size_bytes: How much came.
            waited_s: How long the request waited at the controller.
            now_s: Monotonic time.
        """
        asked_s = self._asked_s.get(number)
        if asked_s is None or self._round is None:
            return
        self._undo(number)
        if number >= self._round.ends_with:
            self._end_round(self._round, now_s)
            self._round = _Round(ends_with=self.last + 1, began_s=now_s)
        took_s = now_s - asked_s
        if not 0 <= waited_s <= took_s:  # nor is it a number, perhaps
            waited_s = 0.0
        on_the_way_s = took_s - waited_s
        self._round.came_bytes += size_bytes
        if took_s > self._round.longest_s:
            self._round.longest_s, self._round.waited_s = took_s, waited_s
        self._round.quickest_s = min(self._round.quickest_s, on_the_way_s)
        if self._mean_s is None:  # the first answer ever: know the order of magnitude at once
            self._measure(took_s)
        self._set_patience()
        self._measure_base(number, on_the_way_s, now_s)

    def settled(self, number: int) -> None:
        """Note that no request below a number will be answered any more."""
        for old in [each for each in self._asked_s if each < number]:
            del self._asked_s[old]

    def lost(self) -> None:
        """Note that pieces are lost, as answers to later requests show."""
        if self._round is not None:
            self._round.lost = True

    def ran_out(self) -> None:
        """Note that no answer came within the patience."""
        self._before = self._before or (self.last, self._window_bytes, self._slow_start)
        self._window_bytes, self._drained = MIN_PIECE_BYTES, None
        self._alone_after = self.last + 1  # the request that the caller sends now
        self._slow_start = True
        self.patience_s = max(min(2 * self.patience_s, MAX_PATIENCE_S), self.patience_s)

    def _undo(self, number: int) -> None:
        """Take back what an impatience did, if an answer to a request before it comes after all."""
        if self._before is not None:
            last, window_bytes, slow_start = self._before
            self._before = None
            if number <= last:
                self._window_bytes, self._slow_start = window_bytes, slow_start
                self._alone_after = None
            else:
                self._best = _Greatest()

    def _measure_base(self, number: int, on_the_way_s: float, now_s: float) -> None:
        """Take the time of a piece on the way as the shortest, if it is or if it is to be."""
        measured = self._drained is not None and number > self._drained
        if measured or (self._alone_after is not None and number > self._alone_after):
            self._alone_s.add(on_the_way_s, now_s)
        if measured or on_the_way_s <= self._base_s:
            self._base_s, self._base_at_s = on_the_way_s, now_s
        if measured:
            self._drained = None
            if self._delay_s(self._doubted_s) > TARGET_DELAY_S:
                self._shrink(int(self._best.value * TARGET_DELAY_S))

    def _delay_s(self, on_the_way_s: float) -> float:
        """Return how much of a time on the way the device's own window may have caused."""
        return on_the_way_s - max(self._base_s, self._alone_s.value)

    def _end_round(self, ended: _Round, now_s: float) -> None:
        if not ended.came_bytes:
            return
        self._measure(ended.longest_s)
        known, best_before = self._bytes_per_s > 0, self._best.value
        rate = ended.came_bytes / max(now_s - ended.began_s, LEAST_S)
        self._bytes_per_s += (rate - self._bytes_per_s) * (RATE_GAIN if known else 1.0)
        self._best.add(rate, now_s)
        best = self._best.value
        seen_s = ended.longest_s - ended.waited_s if self._slow_start else ended.quickest_s
        delay_s = self._delay_s(seen_s)
        is_growing = self._slow_start and rate >= GROWTH * best_before and delay_s < LONG_DELAY_S
        if self._drained is not None:
            return
        if ended.lost:
            self._shrink(0)
        elif delay_s <= TARGET_DELAY_S or is_growing:
            self._shrunk = 0
            # A window that was not used says nothing about the way (RFC 7661): small files.
            if 2 * ended.came_bytes >= self._window_bytes:
                self._grow(best)
        elif self._shrunk == SHRUNK_IN_VAIN or now_s - self._base_at_s > BASE_AGE_S:
            self._drained, self._doubted_s, self._shrunk = self.last, seen_s, 0
        else:
            self._shrunk += 1
            self._shrink(int(best * TARGET_DELAY_S))

    def _grow(self, best_bytes_per_s: float) -> None:
        grown_bytes = self._window_bytes if self._slow_start else self.piece_bytes
        far_bytes = min(BASE_GAIN * best_bytes_per_s * self._base_s, MAX_WINDOW_BYTES)
        most_bytes = max(NEAR_WINDOW_BYTES, int(far_bytes))
        self._window_bytes = min(self._window_bytes + grown_bytes, most_bytes)
        self._alone_after = None

    def _shrink(self, least_bytes: int) -> None:
        factor = SLOW_START_DECREASE if self._slow_start else DECREASE
        self._slow_start = False
        shrunk = max(int(self._window_bytes * factor), least_bytes, MIN_PIECE_BYTES)
        self._window_bytes = min(self._window_bytes, shrunk)
        if self._window_bytes == MIN_PIECE_BYTES and self._alone_after is None:
            self._alone_after = self.last

    def _measure(self, round_trip_s: float) -> None:
        """Take a round trip into the patience (RFC 6298, 2.2 and 2.3)."""
        if self._mean_s is None:
            self._mean_s, self._variation_s = round_trip_s, round_trip_s / 2
        else:
            self._variation_s += RTTVAR_GAIN * (
                abs(self._mean_s - round_trip_s) - self._variation_s
            )
            self._mean_s += SRTT_GAIN * (round_trip_s - self._mean_s)

    def _set_patience(self) -> None:
        """Forget how often it was doubled: something has come (RFC 6298, 5.7)."""
        patience_s = (self._mean_s or 0.0) + RTTVAR_WEIGHT * self._variation_s
        self.patience_s = min(max(patience_s, MIN_PATIENCE_S), LONGEST_PATIENCE_S)

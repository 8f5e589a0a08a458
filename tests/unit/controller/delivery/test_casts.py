"""What is cast to many: when, to whom, what, how fast, and that it ends."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.delivery.carousel import (
    DRAIN_S,
    GATHER_S,
    SILENT_S,
    CastTurn,
    lacked_by,
)
from controller.delivery.casts import KEPT_S, LEAST_BYTES, MAX_CASTS, Casts
from controller.delivery.lanes import MESSAGE_BYTES, Piece, Turn, Wanted
from controller.delivery.pace import LEAST_BYTES_PER_S, START_BYTES_PER_S, Pace
from controller.delivery.shares import Shares
from wire.delivery import CastReport
from wire.errors import WireFormatError

PIECE_BYTES = 8 * 1024
CHUNK = 64 * 1024
COUNT = 20
SIZE = COUNT * CHUNK - 5
ALL = (1 << COUNT) - 1
BLOB = "a" * 64


class Fleet:
    """Devices whose reports come at once, and a clock that the test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.names = 0
        self.casts = Casts(self._name)
        self.topic = ""
        self.turns: list[CastTurn] = []

    def _name(self) -> str:
        self.names += 1
        return f"{self.names:032x}"

    def ask(self, device: str, blob: str = BLOB, size_bytes: int = SIZE) -> bool:
        offer = self.casts.offer(device, blob, size_bytes, self.now_s)
        if offer is not None:
            self.topic = offer.topic
        return offer is not None

    def report(self, device: str, lacking: int = ALL, position: int | None = None) -> None:
        report = CastReport(
            device=device,
            topic=self.topic,
            chunk_bytes=CHUNK,
            lacking=f"{lacking:x}",
            position=msgspec.UNSET if position is None else position,
        )
        self.casts.report(report, self.now_s)

    def join(self, *devices: str, lacking: int = ALL) -> None:
        for device in devices:
            self.ask(device)
        for device in devices:
            self.report(device, lacking)

    def send(self, seconds: float, *heard_by: str, lacking: int = ALL) -> list[CastTurn]:
        """Let time pass and send what may be sent; these devices report at once what came."""
        sent: list[CastTurn] = []
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            self.now_s += 0.01
            while turn := self.casts.next(self.now_s):
                self.casts.sent(turn, self.now_s)
                sent.append(turn)
                for device in heard_by if turn.size_bytes else ():
                    self.report(device, lacking, turn.position + turn.size_bytes)
        self.turns += sent
        return sent


@pytest.fixture
def fleet() -> Fleet:
    return Fleet()


def gathered(fleet: Fleet, count: int = 4) -> list[str]:
    """Let devices join and wait until the cast is about to begin."""
    names = [f"d{number}" for number in range(count)]
    fleet.ask("first")
    fleet.join(*names)
    return names


def test_the_first_that_asks_waits_for_nobody(fleet: Fleet) -> None:
    assert not fleet.ask("d0")
    assert fleet.ask("d1")
    assert not fleet.ask("d0", "b" * 64)


def test_who_asked_long_ago_does_not_count(fleet: Fleet) -> None:
    assert not fleet.ask("d0")
    fleet.now_s += 11
    assert not fleet.ask("d1")


def test_a_small_blob_is_not_cast(fleet: Fleet) -> None:
    fleet.ask("d0", size_bytes=LEAST_BYTES - 1)
    assert not fleet.ask("d1", size_bytes=LEAST_BYTES - 1)


def test_nothing_is_sent_before_others_had_time_to_join(fleet: Fleet) -> None:
    names = gathered(fleet)
    assert fleet.send(GATHER_S - 0.05, *names) == []
    first = fleet.send(0.1, *names)[0]
    assert (first.offset, first.size_bytes) == (0, PIECE_BYTES)
    assert "is cast to 4 devices" in first.says


def test_too_few_are_told_at_once_that_nothing_comes(fleet: Fleet) -> None:
    gathered(fleet, 2)
    [turn] = fleet.send(GATHER_S + 0.1)
    assert (turn.size_bytes, turn.says) == (0, "")


def test_every_byte_is_cast_once_and_then_it_ends(fleet: Fleet) -> None:
    names = gathered(fleet)
    turns = fleet.send(30, *names)
    assert turns[-1].size_bytes == 0
    assert "was cast to 4 devices" in turns[-1].says
    position = 0
    for turn in turns[:-1]:
        assert turn.position == position
        assert turn.offset == position % SIZE
        assert turn.offset // CHUNK == (turn.offset + turn.size_bytes - 1) // CHUNK
        position += turn.size_bytes
    # They say that they lack all of it still, and nobody is listened to for longer.
    assert SIZE <= position <= SIZE + 2 * CHUNK


def test_chunks_that_few_lack_are_left_to_them(fleet: Fleet) -> None:
    fleet.ask("first")
    names = ["d0", "d1", "d2", "d3"]
    fleet.join(*names, lacking=0b1111)
    fleet.ask("d4")
    fleet.report("d4", 0b110000)
    turns = fleet.send(5, *names, lacking=0b1111)
    sent = {turn.offset // CHUNK for turn in turns if turn.size_bytes}
    assert sent == {0, 1, 2, 3}


def test_who_joins_in_the_middle_hears_the_beginning_later(fleet: Fleet) -> None:
    names = gathered(fleet)
    fleet.send(GATHER_S + 1.0, *names)
    joined = fleet.turns[-1].position + fleet.turns[-1].size_bytes
    assert CHUNK < joined < SIZE - CHUNK
    late = ["late-1", "late-2"]
    fleet.join(*late)
    for name in names:
        fleet.report(name, 0, joined)
    lacking = (1 << joined // CHUNK + 1) - 1
    fleet.send(20, *late, lacking=lacking)
    offsets = [turn.offset for turn in fleet.turns if turn.position >= joined and turn.size_bytes]
    assert offsets[0] == joined % SIZE
    again = [turn for turn in fleet.turns if turn.position >= SIZE and turn.size_bytes]
    assert sum(turn.size_bytes for turn in again) >= joined
    assert fleet.turns[-1].size_bytes == 0


def test_without_reports_it_stops_and_then_ends(fleet: Fleet) -> None:
    gathered(fleet)
    turns = fleet.send(60)
    assert sum(turn.size_bytes for turn in turns) < 10 * PIECE_BYTES + 4 * 1024 * 1024
    assert turns[-1].size_bytes == 0
    assert fleet.send(60) == []


def test_nobody_is_listened_to_twice(fleet: Fleet) -> None:
    names = gathered(fleet)
    fleet.send(30, *names)
    assert not any(map(fleet.ask, names))
    for name in names:
        fleet.report(name)
    assert fleet.send(30, *names) == []


def test_who_was_not_told_of_it_cannot_start_or_stop_anything(fleet: Fleet) -> None:
    names = gathered(fleet)
    for number in range(50):
        fleet.report(f"stranger-{number}", 0)
        fleet.report(f"stranger-{number}", ALL)
    first = fleet.send(GATHER_S + 0.1, *names)[0]
    assert "is cast to 4 devices" in first.says


@pytest.mark.parametrize(
    "wrong",
    [
        {"lacking": f"{1 << COUNT:x}"},
        {"lacking": "-1"},
        {"lacking": "1_0"},
        {"lacking": "f" * 8193},
        {"chunk_bytes": 0},
        {"chunk_bytes": -5},
        {"chunk_bytes": 1},
    ],
    ids=str,
)
def test_a_report_out_of_bounds_is_refused(fleet: Fleet, wrong: dict[str, object]) -> None:
    gathered(fleet)
    plain = {"device": "d0", "topic": fleet.topic, "chunk_bytes": CHUNK, "lacking": "1"}
    with pytest.raises(WireFormatError):
        fleet.casts.report(CastReport(**{**plain, **wrong}), fleet.now_s)  # type: ignore[arg-type]


def test_topics_are_forgotten(fleet: Fleet) -> None:
    for number in range(MAX_CASTS + 10):
        fleet.ask("d0", f"{number:064x}")
    assert fleet.names == MAX_CASTS + 10
    fleet.now_s += KEPT_S
    fleet.casts.sweep(fleet.now_s)
    assert not fleet.ask("d1", f"{MAX_CASTS:064x}")
    assert fleet.names == MAX_CASTS + 11


def test_two_casts_take_turns(fleet: Fleet) -> None:
    names = gathered(fleet)
    one = fleet.topic
    fleet.ask("first", "b" * 64)
    for name in names:
        fleet.ask(name, "b" * 64)
    for name in names:
        fleet.report(name)
    both = [turn.name for turn in fleet.send(GATHER_S + 0.6) if turn.size_bytes]
    assert abs(both.count(one) - both.count(fleet.topic)) <= 1
    assert len(both) > 2


@given(st.lists(st.integers(0, 2**70), max_size=30), st.integers(1, 40))
def test_what_many_lack(lacking: list[int], least: int) -> None:
    expected = sum(
        1 << bit for bit in range(71) if sum(each >> bit & 1 for each in lacking) >= least
    )
    assert lacked_by(lacking, least) == expected


class Paced:
    """A pace with devices that get so much each second."""

    def __init__(self, *rates: float) -> None:
        self.pace = Pace(0, 0.0)
        self.pace.listeners = len(rates)
        self.rates = rates
        self.sent: list[tuple[float, int]] = []
        self.free_s = [0.0] * len(rates)
        self.now_s = 0.0
        self.arrivals: list[list[tuple[float, int, float]]] = [[] for _ in rates]

    def run(self, seconds: float) -> float:
        """Let time pass; return the pace at its end."""
        position = self.sent[-1][1] if self.sent else 0
        end_s, report_s = self.now_s + seconds, self.now_s
        while self.now_s < end_s:
            self.now_s += 0.01
            while not self.pace.wait_s(self.now_s):
                size_bytes = self.pace.piece_bytes
                position += size_bytes
                self.pace.sent(size_bytes, self.now_s)
                self.sent.append((self.now_s, position))
                for number, rate in enumerate(self.rates):
                    self.free_s[number] = max(self.free_s[number], self.now_s) + size_bytes / rate
                    lag_s = self.free_s[number] - self.now_s - size_bytes / rate
                    self.arrivals[number].append((self.free_s[number], position, lag_s))
            if self.now_s >= report_s:
                report_s += 0.2
                for number, arrivals in enumerate(self.arrivals):
                    come = [each for each in arrivals if each[0] <= self.now_s]
                    if come:
                        self.pace.heard(f"d{number}", come[-1][1], come[-1][2], 0, self.now_s)
        return self.pace.bytes_per_s


def test_the_pace_finds_what_most_keep_up_with() -> None:
    paced = Paced(2e6, 2e6, 2e6, 100e3)
    paced.run(20)
    assert 0.7e6 <= paced.sent[-1][1] / 20 <= 2.1e6


def test_a_slow_majority_is_waited_for() -> None:
    paced = Paced(100e6, 100e3, 100e3, 100e3)
    paced.run(30)
    assert paced.sent[-1][1] / 30 <= 250e3
    assert paced.sent[-1][1] / 30 >= 70e3


def test_the_pace_shrinks_when_most_lose_something() -> None:
    pace = Pace(0, 0.0)
    pace.listeners = 3
    pace.sent(PIECE_BYTES, 0.0)
    for name in ("a", "b", "c"):
        pace.heard(name, PIECE_BYTES, 0.0, PIECE_BYTES, 1.0)
    assert LEAST_BYTES_PER_S <= pace.bytes_per_s < START_BYTES_PER_S


def test_an_end_is_not_waited_for_longer_than_reports_take(fleet: Fleet) -> None:
    names = gathered(fleet)
    fleet.send(5, *names[:2], lacking=0b11)
    before_s = fleet.now_s
    fleet.send(SILENT_S + DRAIN_S + 1, *names[:2], lacking=0b11)
    assert fleet.turns[-1].size_bytes == 0
    assert fleet.now_s - before_s < 10


@pytest.mark.parametrize("piece_bytes", [8 * 1024, 128 * 1024])
def test_who_asks_by_himself_gets_half_beside_casts(piece_bytes: int) -> None:
    shares = Shares()
    wanted = Wanted(Piece(BLOB, piece_bytes, 0), piece_bytes, 1, 0.0, 0.0, 1.0)
    lane = Turn("d0", wanted)
    cast = CastTurn("0" * 32, BLOB, 0, 32 * 1024, 0, 0.2, "")
    lane_bytes = cast_bytes = 0
    for _ in range(1000):
        turn = shares.choose(lane, cast)
        assert turn is not None
        shares.sent(turn)
        if turn is lane:
            lane_bytes += max(piece_bytes, MESSAGE_BYTES)
        else:
            cast_bytes += cast.size_bytes
    assert lane_bytes >= cast_bytes - cast.size_bytes
    assert cast_bytes >= lane_bytes / 4


def test_alone_each_sends_all_that_it_has() -> None:
    shares = Shares()
    cast = CastTurn("0" * 32, BLOB, 0, 32 * 1024, 0, 0.2, "")
    for _ in range(10):
        assert shares.choose(None, cast) is cast
        shares.sent(cast)
    lane = Turn("d0", Wanted(Piece(BLOB, 8192, 0), 8192, 1, 0.0, 0.0, 1.0))
    assert shares.choose(lane, None) is lane
    assert shares.choose(None, None) is None

"""One enrolled device that lies keeps no blob from being cast, and no thread busy."""

from __future__ import annotations

from itertools import count

import pytest

from controller.delivery.carousel import GATHER_S
from controller.delivery.casts import Casts
from wire.delivery import CastReport

SHA = "a" * 64
SIZE = 8 * 1024 * 1024
CHUNK = 128 * 1024
ALL = format((1 << 64) - 1, "x")
OTHERS = [f"cam-{number:02}" for number in range(20)]


class Many:
    """Casts of one blob, for which somebody has asked."""

    def __init__(self) -> None:
        numbers = count()
        self.casts = Casts(lambda: f"{next(numbers):032x}")
        self.casts.offer("first", SHA, SIZE, 0.0)
        self.topic = ""

    def tell(self, device: str, at_s: float) -> None:
        offer = self.casts.offer(device, SHA, SIZE, at_s)
        assert offer is not None
        self.topic = offer.topic

    def report(
        self, device: str, at_s: float, chunk_bytes: int = CHUNK, lacking: str = ALL
    ) -> None:
        report = CastReport(
            device=device, topic=self.topic, chunk_bytes=chunk_bytes, lacking=lacking
        )
        self.casts.report(report, at_s)


@pytest.fixture
def many() -> Many:
    return Many()


def test_one_device_with_other_chunks_does_not_end_a_cast_for_twenty(many: Many) -> None:
    for name in ("liar", *OTHERS):
        many.tell(name, 0.01)
    many.report("liar", 0.03, CHUNK // 2, "f")
    for name in OTHERS:
        many.report(name, 0.05)
    turn = many.casts.next(1.0)
    assert turn is not None
    assert turn.size_bytes > 0
    assert "is cast to 20 devices" in turn.says


def test_who_joins_later_with_other_chunks_is_not_listened_to(many: Many) -> None:
    for name in ("liar", *OTHERS[:3]):
        many.tell(name, 0.01)
    for name in OTHERS[:3]:
        many.report(name, 0.05)
    turn = many.casts.next(1.0)
    assert turn is not None
    many.casts.sent(turn, 1.0)
    many.report("liar", 1.1, CHUNK // 2, "f")
    turn = many.casts.next(1.2)
    assert turn is not None
    assert turn.size_bytes > 0


def test_who_has_listened_does_not_listen_again(many: Many) -> None:
    many.tell("liar", 0.01)
    ends = 0
    for step in range(20):
        now_s = 0.02 + step
        many.report("liar", now_s, lacking="f")
        turn = many.casts.next(now_s + GATHER_S + 0.1)
        if turn is not None:
            ends += 1
            many.casts.sent(turn, now_s + GATHER_S + 0.1)
    assert ends == 1


def test_devices_that_lack_nothing_in_common_keep_the_sender_not_busy(many: Many) -> None:
    for number in range(3):
        many.tell(f"cam-{number}", 0.1)
    for number in range(3):
        many.report(f"cam-{number}", 0.1, lacking=format(1 << number, "x"))
    now_s, looks = 0.1 + GATHER_S, 0
    while many.casts.next(now_s) is None:
        now_s += many.casts.wait_s(now_s)
        looks += 1
    assert looks < 20

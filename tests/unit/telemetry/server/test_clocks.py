"""What is told of a device's clock: each change once, and nothing of what is no clock."""

from __future__ import annotations

import math

import pytest

from telemetry.server.clocks import Judged, judged, marked, off_text
from wire.batch_clock import BatchClock

TOLERANCE_S = 120.0


def test_a_clock_is_told_of_once_for_each_change() -> None:
    known, told = None, []
    for ahead_s in (100.0, 130.0, 140.0, 115.0, 500.0, 130.0, None, 50.0, 100.0):
        known, news = marked(known, ahead_s, TOLERANCE_S)
        told += [news] if news else []
    assert known is None
    assert [news.partition(":")[0] for news in told] == [
        "the clock is 2m10s ahead",
        "the clock is 8m20s ahead, and was 2m10s ahead",
        "the clock is 2m10s ahead, and was 8m20s ahead",
        "the clock is right again; it was 2m10s ahead",
    ]


@pytest.mark.parametrize("ahead_s", [math.nan, math.inf, -1e300])
def test_what_is_no_difference_of_clocks_shifts_nothing(ahead_s: float) -> None:
    clock = BatchClock(
        made_at_s=0.0, made_steady_s=1.0, sent_steady_s=2.0, shown_s=0.0, ahead_s=ahead_s
    )
    assert judged(clock, 1e9, TOLERANCE_S) == Judged()


@pytest.mark.parametrize(
    ("ahead_s", "text"),
    [
        (10_801.0, "3h ahead"),
        (-150.0, "2m30s behind"),
        (-1.1e6, "1w6d behind"),
        (3.2e8, "10 years ahead"),
    ],
)
def test_people_read_how_wrong_a_clock_is(ahead_s: float, text: str) -> None:
    assert off_text(ahead_s) == text

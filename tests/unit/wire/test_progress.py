"""Figures of a transfer for people."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.console.progress import about_text, done_text, progress_text
from wire.progress import DELTA, HTTP, LOCAL, LONGEST_S, MQTT, TransferProgress

MIB = 2**20
RUNNING = TransferProgress(
    done_bytes=int(12.4 * MIB),
    total_bytes=42 * MIB,
    rate_bytes_per_s=1.2 * MIB,
    bytes_by_source={MQTT: int(12.4 * MIB)},
)


@pytest.mark.parametrize(
    ("progress", "shown"),
    [
        (RUNNING, "12.4 of 42.0 MiB (29 %), 1.2 MiB/s by mqtt, about 25 s left"),
        (
            TransferProgress(
                done_bytes=30 * MIB, total_bytes=42 * MIB, rate_bytes_per_s=2048.0,
                bytes_by_source={LOCAL: 20 * MIB, HTTP: 3 * MIB, DELTA: 7 * MIB}, news_age_s=9.0,
            ),
            "30.0 of 42.0 MiB (71 %), 2.0 KiB/s by delta and http, about 1 h 42 min left",
        ),
        (
            TransferProgress(
                done_bytes=12 * MIB, total_bytes=42 * MIB, rate_bytes_per_s=9.0,
                bytes_by_source={"odd\x1b[2J": 1}, news_age_s=40.0,
            ),
            "12.0 of 42.0 MiB (28 %) by odd\ufffd[2J, no news for 40 s",
        ),
        (TransferProgress(done_bytes=0, total_bytes=900), "0 of 900 B (0 %)"),
        (
            TransferProgress(
                done_bytes=900, total_bytes=900, rate_bytes_per_s=50.0, bytes_by_source={LOCAL: 900}
            ),
            "900 of 900 B (100 %), 50 B/s",
        ),
    ],
)  # fmt: skip
def test_a_transfer_in_one_line(progress: TransferProgress, shown: str) -> None:
    assert progress_text(progress) == shown


@pytest.mark.parametrize(
    ("duration_s", "shown"),
    [
        (0.0, "1 s"), (7.6, "8 s"), (59.4, "59 s"), (59.6, "1 min"), (151.0, "2 min 30 s"),
        (598.0, "10 min"), (720.0, "12 min"), (3590.0, "1 h"), (4800.0, "1 h 20 min"),
        (1e6, "277 h"), (1e15, "277777777777 h"),
    ],
)  # fmt: skip
def test_an_estimate_is_told_coarsely(duration_s: float, shown: str) -> None:
    assert about_text(duration_s) == shown


@given(st.integers(0, 2**53), st.integers(0, 2**53))
def test_both_sizes_have_one_unit_and_no_share_is_above_all(done: int, total: int) -> None:
    text = done_text(done, total)
    if total > 0:
        assert 0 <= int(text.partition("(")[2].partition(" %")[0]) <= 100
    assert sum(unit in text.split() for unit in ("B", "KiB", "MiB", "GiB")) == 1


@given(st.integers(0, 2**53), st.integers(0, 2**53), st.floats(0, 1e12), st.floats(0, 1e6))
def test_an_end_is_told_only_where_it_can_be_known(
    done: int, total: int, rate: float, age_s: float
) -> None:
    progress = TransferProgress(
        done_bytes=done, total_bytes=total, rate_bytes_per_s=rate, news_age_s=age_s
    )
    assert progress_text(progress)
    if done >= total:
        assert progress.rest_s == 0
    elif age_s > 30 or rate == 0 or (total - done) / rate - age_s > LONGEST_S:
        assert progress.rest_s is None
    else:
        assert progress.rest_s == max(0.0, (total - done) / rate - age_s)

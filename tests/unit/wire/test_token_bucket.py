"""A rate in the long run, and a burst."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.token_bucket import TokenBucket


@given(
    per_s=st.integers(1, 50),
    burst=st.integers(1, 50),
    waits_s=st.lists(st.sampled_from([0.0, 0.125, 1.0, 60.0]), max_size=60),
)
def test_never_more_is_granted_than_the_burst_and_the_rate(
    per_s: int, burst: int, waits_s: list[float]
) -> None:
    bucket, now_s, granted = TokenBucket(per_s, burst, 100.0), 100.0, 0
    for wait_s in waits_s:
        now_s += wait_s
        granted += bucket.take(now_s)
        assert granted <= burst + (now_s - 100.0) * per_s


@given(spent=st.integers(0, 1000), amount=st.integers(1, 200))
def test_after_the_wait_there_is_enough(spent: int, amount: int) -> None:
    bucket = TokenBucket(4.0, 128.0, 0.0)
    bucket.spend(spent, 0.0)
    wait_s = bucket.wait_s(amount, 0.0)
    assert bucket.wait_s(amount, wait_s) == 0.0
    assert bucket.left(wait_s) >= min(amount, 128.0)


def test_a_bucket_that_was_overdrawn_fills_up_again() -> None:
    bucket = TokenBucket(2.0, 10.0, 0.0)
    bucket.spend(30.0, 0.0)
    assert bucket.left(0.0) == -20.0
    assert not bucket.take(10.0)
    assert bucket.take(10.5)
    assert not bucket.is_full(14.0)
    assert bucket.is_full(16.0)


def test_a_time_before_the_last_one_gives_nothing() -> None:
    bucket = TokenBucket(1.0, 2.0, 50.0)
    bucket.spend(2.0, 50.0)
    assert bucket.left(10.0) == 0.0
    assert bucket.left(11.0) == pytest.approx(1.0)

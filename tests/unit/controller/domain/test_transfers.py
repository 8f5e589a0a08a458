"""The figures of transfers as devices report them, and several of them together."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.domain.transfers import (
    MAX_SOURCE_CHARS,
    MAX_SOURCES,
    is_fetching,
    together,
    transfer_of,
)
from wire.desired import MAX_REVISION
from wire.installs import InstallReport
from wire.progress import TransferProgress

NUMBERS = st.one_of(st.integers(), st.integers(-(2**70), 2**70))
TRANSFERS = st.builds(
    TransferProgress,
    done_bytes=st.integers(0, 2**40),
    total_bytes=st.integers(1, 2**40),
    rate_bytes_per_s=st.none() | st.floats(0, 1e9),
    news_age_s=st.floats(0, 100),
)


def report(**changes: Any) -> InstallReport:
    known: dict[str, Any] = {
        "device": "d", "revision": 1, "digest": None, "phase": "fetching", "outcome": "running",
        "active": None, "total_bytes": 10,
    }  # fmt: skip
    return InstallReport(**(known | changes))


@given(
    NUMBERS,
    NUMBERS,
    st.floats() | st.just(msgspec.UNSET),
    st.dictionaries(st.text(max_size=80), NUMBERS, max_size=40) | st.just(msgspec.UNSET),
)
def test_whatever_a_device_says_is_bounded(done: int, total: int, rate: Any, sources: Any) -> None:
    said = report(
        done_bytes=done, total_bytes=total, rate_bytes_per_s=rate, bytes_by_source=sources
    )
    kept = transfer_of(said)
    assert 0 <= kept.done_bytes <= kept.total_bytes <= MAX_REVISION
    assert kept.rate_bytes_per_s is None or 0 <= kept.rate_bytes_per_s <= 1e12
    assert len(kept.bytes_by_source) <= MAX_SOURCES
    for name, size_bytes in kept.bytes_by_source.items():
        assert len(name) <= MAX_SOURCE_CHARS
        assert all(char.isprintable() for char in name)
        assert 0 <= size_bytes <= MAX_REVISION


def test_a_source_of_a_later_version_is_kept() -> None:
    said = report(bytes_by_source={"mqtt": 1, "multicast": 5})
    assert transfer_of(said).bytes_by_source == {"mqtt": 1, "multicast": 5}


@pytest.mark.parametrize(
    "changes",
    [{"phase": "verifying"}, {"outcome": "failed"}, {"outcome": "succeeded"}, {"total_bytes": 0}],
)
def test_only_a_fetch_that_runs_is_a_transfer(changes: dict[str, Any]) -> None:
    assert is_fetching(report())
    assert not is_fetching(report(**changes))


def test_none_together_are_none() -> None:
    assert together([]) is None


@given(st.lists(TRANSFERS, min_size=1, max_size=20))
def test_an_end_of_many_is_told_only_if_as_many_are_known(
    transfers: list[TransferProgress],
) -> None:
    found = together(transfers)
    assert found is not None
    assert found.devices == len(transfers)
    assert found.done_bytes == sum(t.done_bytes for t in transfers)
    known = [t.rest_s for t in transfers if t.rest_s is not None]
    if found.rest_s is not None:
        assert found.rest_s == max(known)
        assert len(known) == len(transfers)
    if found.half_rest_s is not None:
        through = sum(rest_s <= found.half_rest_s for rest_s in known)
        assert 2 * through >= len(transfers)
        assert found.rest_s is None or found.half_rest_s <= found.rest_s
    else:
        assert 2 * len(known) < len(transfers)

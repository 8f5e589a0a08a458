"""Which hosts are this machine alone."""

from __future__ import annotations

import pytest

from wire.hosts import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_what_only_this_machine_reaches(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "192.0.2.1", "broker.lan", "localhost.example", "127.0.0.1.nip.io"],  # noqa: S104
)
def test_what_others_may_reach_or_answer_for(host: str) -> None:
    assert not is_loopback(host)

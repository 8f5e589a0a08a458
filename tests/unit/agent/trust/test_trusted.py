"""Whether metadata, a list and a desired state count at a moment."""

from __future__ import annotations

import secrets

import pytest

from agent.trust.trusted import (
    NOTHING,
    Clocked,
    Release,
    Trusted,
    not_fresh,
    not_listed,
    not_timely,
)
from wire.metadata import MetadataVersions
from wire.trust.root import Role

END_S = 1_000_000.0
DAY_S = 86_400.0
DIGEST = secrets.token_hex(32)
TRUSTED = Trusted(
    versions=MetadataVersions(root=1, timestamp=7),
    director=Role(keys=()),
    issued_at_s=END_S - DAY_S,
    expires_at_s=END_S,
    expires_first="timestamp",
    models=("digits",),
    releases={"digits/1.0.0": Release(sha256=DIGEST, size_bytes=1, expires_at_s=END_S)},
)
BEFORE, AT = END_S - 1.0, END_S


@pytest.mark.parametrize(
    ("clock", "counts"),
    [
        (Clocked(now_s=BEFORE), True),
        (Clocked(now_s=AT), False),
        (Clocked(now_s=0.0, floor_s=AT), False),
        (Clocked(now_s=AT, grace_s=DAY_S), True),
        (Clocked(now_s=AT + DAY_S, grace_s=DAY_S), False),
        (Clocked(now_s=0.0, floor_s=AT + DAY_S, grace_s=DAY_S), False),
    ],
    ids=["before", "at its end", "clock set back", "grace", "after grace", "set back and grace"],
)
def test_nothing_counts_from_its_end_on_and_a_clock_that_is_set_back_does_not_help(
    clock: Clocked, counts: bool
) -> None:
    why = (
        not_fresh(TRUSTED, clock),
        not_listed(TRUSTED, "digits", "1.0.0", DIGEST, clock),
        not_timely(expires_at_s=END_S, timestamp=None, known=0, clock=clock),
    )
    assert [each is None for each in why] == [counts] * 3, why


@pytest.mark.parametrize(
    ("late_s", "text"),
    [
        (0.0, "a moment ago"),
        (120.0, "2 minutes ago"),
        (3599.0, "59 minutes ago"),
        (2 * 3600.0, "2 hours ago"),
        (47 * 3600.0, "47 hours ago"),
        (2 * DAY_S, "2 days ago"),
    ],
)
def test_it_is_told_how_late_it_is(late_s: float, text: str) -> None:
    why = not_timely(
        expires_at_s=END_S, timestamp=None, known=0, clock=Clocked(now_s=END_S + late_s)
    )
    assert why == f"the desired state expired {text}"


@pytest.mark.parametrize(("timestamp", "counts"), [(None, True), (7, True), (8, False)])
def test_a_desired_state_waits_for_metadata_that_its_director_knows(
    timestamp: int | None, counts: bool
) -> None:
    why = not_timely(expires_at_s=None, timestamp=timestamp, known=7, clock=Clocked(now_s=BEFORE))
    assert (why is None) is counts


def test_a_release_is_listed_by_name_version_and_digest() -> None:
    clock = Clocked(now_s=BEFORE)
    assert not_listed(TRUSTED, "digits", "1.0.0", DIGEST, clock) is None
    assert "no trusted list" in str(not_listed(TRUSTED, "digits", "1.0.1", DIGEST, clock))
    assert "another package" in str(not_listed(TRUSTED, "digits", "1.0.0", "0" * 64, clock))


def test_a_device_without_metadata_takes_nothing() -> None:
    clock = Clocked(now_s=BEFORE)
    assert not_fresh(None, clock) == NOTHING
    assert not_listed(None, "digits", "1.0.0", DIGEST, clock) == NOTHING

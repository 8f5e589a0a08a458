"""Topics and identifiers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire import topics
from wire.errors import TopicError

names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)


@given(names)
def test_up_round_trip(device: str) -> None:
    assert topics.parse_up(topics.up(device, "report")) == (device, "report")
    assert topics.parse_enrol_request(topics.enrol_request(device)) == device
    assert topics.down_kind(topics.down(device, "chunk")) == "chunk"


@given(names)
def test_a_device_is_known_by_its_own_topics_alone(device: str) -> None:
    assert topics.sender_of(topics.up(device, "report")) == device
    assert not topics.sender_of(topics.enrol_request(device))
    assert not topics.sender_of(f"x/{topics.up(device, 'report')}")


@pytest.mark.parametrize("device", ["", "a/b", "+", "#", "A", "-a", "a" * 64, "a b", "ä"])
def test_unsafe_identifiers_are_refused(device: str) -> None:
    with pytest.raises(TopicError, match="not a device identifier"):
        topics.up(device, "hello")


@pytest.mark.parametrize(
    "topic",
    [
        "edgefleet/v1/dev/a/down/hello",
        "edgefleet/v1/dev/a/up/other",
        "edgefleet/v1/dev/a/up",
        "edgefleet/v1/dev/a/up/hello/x",
        "edgefleet/v2/dev/a/up/hello",
        "edgefleet/v1/dev/A/up/hello",
        "",
    ],
)
def test_foreign_topics_are_refused(topic: str) -> None:
    with pytest.raises(TopicError):
        topics.parse_up(topic)


def test_a_foreign_down_topic_is_refused() -> None:
    with pytest.raises(TopicError):
        topics.down_kind("edgefleet/v1/dev/a/down/other")
    with pytest.raises(TopicError):
        topics.parse_enrol_request("edgefleet/v1/enrol/a/reply")

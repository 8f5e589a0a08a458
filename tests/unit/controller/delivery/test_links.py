"""A link is for one device and one blob, and for a time."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.delivery.links import MAX_QUERY_BYTES, Links
from controller.errors import LinkError
from wire.profile import NAME_PATTERN

NOW_S = 1_750_000_000
BLOB, OTHER = "a" * 64, "b" * 64
LINKS = Links(b"s" * 32)
DEVICES = st.from_regex(NAME_PATTERN, fullmatch=True)


def query(device: str = "cam-1", sha256: str = BLOB, until_s: int = NOW_S + 60) -> bytes:
    return LINKS.path_of(device, sha256, until_s).partition("?")[2].encode()


@given(device=DEVICES, lasts_s=st.integers(1, 10**9))
def test_every_link_that_is_made_is_valid_until_it_expires(device: str, lasts_s: int) -> None:
    made = query(device, until_s=NOW_S + lasts_s)
    assert LINKS.check(BLOB, made, NOW_S) == (device, NOW_S + lasts_s)
    assert LINKS.check(BLOB, made, NOW_S + lasts_s - 0.5).device == device
    with pytest.raises(LinkError, match="has expired"):
        LINKS.check(BLOB, made, NOW_S + lasts_s)


def test_a_link_is_for_one_blob_of_one_device_and_one_secret() -> None:
    made = query()
    changed = {
        "blob": (LINKS, OTHER, made),
        "secret": (Links(b"t" * 32), BLOB, made),
        "device": (LINKS, BLOB, made.replace(b"cam-1", b"cam-2")),
        "time": (LINKS, BLOB, made.replace(str(NOW_S + 60).encode(), str(NOW_S + 61).encode())),
    }
    for links, sha256, shown in changed.values():
        with pytest.raises(LinkError, match="not for this blob"):
            links.check(sha256, shown, NOW_S)


@given(data=st.data())
def test_a_link_with_any_byte_changed_is_refused(data: st.DataObject) -> None:
    made = bytearray(query())
    place = data.draw(st.integers(0, len(made) - 1))
    made[place] = data.draw(st.integers(0, 255).filter(lambda byte: byte != made[place]))
    with pytest.raises(LinkError):
        LINKS.check(BLOB, bytes(made), NOW_S)


@given(shown=st.binary(max_size=2 * MAX_QUERY_BYTES))
def test_what_is_no_link_is_refused(shown: bytes) -> None:
    with pytest.raises(LinkError) as caught:
        LINKS.check(BLOB, shown, NOW_S)
    assert "new link" in caught.value.remedy


@pytest.mark.parametrize(
    "shown",
    [
        query() + b"&device=cam-2",
        query() + b"\n",
        b"&" + query(),
        query().replace(b"until=", b"until=0"),
        query().replace(b"until=", b"until=%31"),
        query().upper(),
        query() + b"0" * 10_000,
    ],
    ids=["twice", "line", "empty", "zero", "encoded", "upper", "long"],
)
def test_a_link_has_one_form_only(shown: bytes) -> None:
    with pytest.raises(LinkError):
        LINKS.check(BLOB, shown, NOW_S)


def test_a_link_shows_no_secret() -> None:
    path = LINKS.path_of("cam-1", BLOB, NOW_S)
    assert re.fullmatch(
        rf"/blobs/{BLOB}\?device=cam-1&until={NOW_S}&signature=[0-9a-f]{{64}}", path
    )

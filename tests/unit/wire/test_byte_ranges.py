"""Which part of a file a request asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.byte_ranges import Part, RangeNotSatisfiableError, wanted_part

ETAG = b'"digest"'
SIZES = st.integers(0, 2**40)


def wanted(*ranges: bytes, if_range: bytes | None = None, size_bytes: int = 100) -> Part | None:
    return wanted_part(ranges, if_range, size_bytes=size_bytes, etag=ETAG)


@given(size_bytes=SIZES, first=SIZES, length=st.integers(1, 2**40))
def test_a_range_gives_what_there_is_of_it(size_bytes: int, first: int, length: int) -> None:
    header = b"bytes=%d-%d" % (first, first + length - 1)
    if first >= size_bytes:
        with pytest.raises(RangeNotSatisfiableError):
            wanted(header, size_bytes=size_bytes)
    else:
        end = min(first + length, size_bytes)
        assert wanted(header, size_bytes=size_bytes) == Part(first, end)


@given(size_bytes=st.integers(1, 2**40), count=st.integers(1, 2**40))
def test_the_last_bytes(size_bytes: int, count: int) -> None:
    part = wanted(b"bytes=-%d" % count, size_bytes=size_bytes)
    assert part == Part(max(size_bytes - count, 0), size_bytes)


@given(size_bytes=st.integers(1, 2**40), data=st.data())
def test_all_from_a_byte_on(size_bytes: int, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, size_bytes - 1))
    assert wanted(b"bytes=%d-" % first, size_bytes=size_bytes) == Part(first, size_bytes)


@given(header=st.binary(max_size=60), size_bytes=SIZES)
def test_whatever_is_asked_for_lies_in_the_file(header: bytes, size_bytes: int) -> None:
    for text in (header, b"bytes=" + header):
        try:
            part = wanted(text, size_bytes=size_bytes)
        except RangeNotSatisfiableError:
            continue
        assert part is None or 0 <= part.first < part.end <= size_bytes


@pytest.mark.parametrize(
    "header",
    [
        b"bytes=",
        b"bytes=-",
        b"bytes=-0",
        b"bytes=5-4",
        b"bytes=100-",
        b"bytes=0-1,5-6",
        b"bytes=0-0," * 5000 + b"0-0",
        b"bytes=0x1-2",
        b"bytes=+1-2",
        b"bytes=1 - 2",
        b"bytes=\xb2-3",
        b"bytes=" + b"9" * 20 + b"-",
    ],
    ids=range(12),
)
def test_what_is_not_one_range_of_the_file_is_refused(header: bytes) -> None:
    with pytest.raises(RangeNotSatisfiableError):
        wanted(header)


def test_two_fields_are_two_ranges() -> None:
    with pytest.raises(RangeNotSatisfiableError):
        wanted(b"bytes=0-1", b"bytes=2-3")


def test_no_range_or_another_unit_is_the_whole_file() -> None:
    assert wanted() is None
    assert wanted(b"lines=1-2") is None
    assert wanted(b"BYTES=1-2") == Part(1, 3)


def test_a_range_of_another_version_is_the_whole_file() -> None:
    assert wanted(b"bytes=1-2", if_range=ETAG) == Part(1, 3)
    for other in (b'"other"', b'W/"digest"', b"Tue, 15 Nov 1994 08:12:31 GMT", b""):
        assert wanted(b"bytes=1-2", if_range=other) is None

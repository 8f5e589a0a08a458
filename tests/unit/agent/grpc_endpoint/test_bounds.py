"""A request is bounded by its bytes, before anything is made of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.grpc_endpoint.bounds import MAX_FIELDS, MAX_PARSED_BYTES, check_bounds
from agent.grpc_endpoint.statuses import RefusedCallError

RAW = b"\x3a"
INPUT = b"\x2a"


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def field(key: bytes, content: bytes) -> bytes:
    return key + varint(len(content)) + content


def code_of(content: bytes) -> str:
    try:
        check_bounds(content)
    except RefusedCallError as exc:
        return exc.code
    return ""


def test_a_raw_tensor_may_be_as_long_as_a_message() -> None:
    content = field(RAW, bytes(MAX_PARSED_BYTES + 1)) * 2
    assert not code_of(content)


def test_what_is_parsed_may_not_be_long() -> None:
    half = field(INPUT, bytes(MAX_PARSED_BYTES // 2))
    assert not code_of(half)
    assert code_of(half * 2) == "RESOURCE_EXHAUSTED"


def test_fields_are_counted() -> None:
    assert not code_of(field(INPUT, b"") * MAX_FIELDS)
    assert code_of(field(INPUT, b"") * (MAX_FIELDS + 1)) == "RESOURCE_EXHAUSTED"
    assert code_of(field(RAW, b"") * (MAX_FIELDS + 1)) == "RESOURCE_EXHAUSTED"


@pytest.mark.parametrize(
    "content",
    [
        b"\x80",
        b"\xff" * 11,
        b"\x2a\x05ab",
        b"\x2a",
        b"\x09\x00",
        b"\x0d\x00",
        b"\x0b",
        b"\x0e",
    ],
)
def test_what_is_broken_off_is_no_message(content: bytes) -> None:
    assert code_of(content) == "INVALID_ARGUMENT"


@given(st.binary(max_size=200))
def test_any_bytes_are_judged(content: bytes) -> None:
    assert code_of(content) in {"", "INVALID_ARGUMENT"}

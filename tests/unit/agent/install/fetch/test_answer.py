"""The heads of answers, of which a device reads whatever a neighbour sends."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.install.fetch.answer import END, MAX_FIELDS, AnswerError, answer_head

PARTIAL = b"HTTP/1.1 206 Partial Content\r\nContent-Length: 5\r\nContent-Range: bytes 2-6/9"
TYPE = b"Content-Type: multipart/x; boundary*=a; boundary*0=b"
"""Python's own reader of headers fails with a TypeError at it."""


def test_what_a_range_needs_is_read_and_nothing_else() -> None:
    head = answer_head(PARTIAL + b"\r\n" + TYPE + b"\r\nX: " + b"\xff" * 2000 + END)
    assert (head.status, head.length, head.span) == (206, 5, (2, 6))
    assert (head.retry_s, head.is_coded, head.keeps_alive) == (None, False, True)


@pytest.mark.parametrize(
    ("head", "keeps_alive"),
    [
        (b"HTTP/1.1 200", True),
        (b"HTTP/1.1 200 OK\r\nConnection: Keep-Alive, Close", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", False),
    ],
)
def test_a_connection_is_kept_only_where_both_want_it(head: bytes, keeps_alive: bool) -> None:
    assert answer_head(head + END).keeps_alive is keeps_alive


def test_a_time_to_ask_again_is_a_number_of_seconds() -> None:
    busy = b"HTTP/1.1 503 Busy\r\nretry-after:\t3 "
    assert answer_head(busy + END).retry_s == 3
    assert (
        answer_head(busy.replace(b"\t3 ", b"Mon, 23 Nov 2026 10:00:00 GMT") + END).retry_s is None
    )


@pytest.mark.parametrize(
    "head",
    [
        b"",
        b"SSH-2.0-nothing",
        b"HTTP/2 200",
        b"HTTP/1.1 099 x",
        b"HTTP/1.1  200 OK",
        b"HTTP/1.1 200OK",
        PARTIAL + b"\r\nContent-Length: 5",
        PARTIAL + b"\r\nContent-Length: 6",
        PARTIAL + b"\r\nX : a",
        PARTIAL + b"\r\nX: a\r\n folded",
        PARTIAL + b"\r\nX: a\nY: b",
        PARTIAL + b"\r\nX: a\rb",
        PARTIAL + b"\r\nX: \x00",
        PARTIAL + b"\r\nno colon",
        PARTIAL + b"\r\n: no name",
        PARTIAL + b"\r\nX: a" * MAX_FIELDS,
        b"HTTP/1.1 200 OK\r\nContent-Length: +5",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5, 5",
        b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000,
    ],
)
def test_what_two_readers_could_understand_differently_is_refused(head: bytes) -> None:
    with pytest.raises(AnswerError):
        answer_head(head + END)


names = st.from_regex(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]{1,20}", fullmatch=True).map(lambda x: b"x" + x)
values = st.from_regex(rb"[\t\x20-\x7e\x80-\xff]{0,40}", fullmatch=True)


@given(
    st.integers(100, 599),
    st.integers(0, 10**15),
    st.lists(st.tuples(names, values), max_size=20),
    st.randoms(use_true_random=False),
)
def test_a_good_head_means_the_same_whatever_stands_beside_it(
    status: int, length: int, others: list[tuple[bytes, bytes]], rng: object
) -> None:
    lines = [b"CONTENT-length:%d" % length, *(name + b": " + value for name, value in others)]
    rng.shuffle(lines)  # type: ignore[attr-defined]
    head = answer_head(b"\r\n".join([b"HTTP/1.1 %d x" % status, *lines]) + END)
    assert (head.status, head.length, head.is_coded) == (status, length, False)


@given(st.binary(max_size=300))
def test_any_bytes_are_a_head_or_refused(head: bytes) -> None:
    with contextlib.suppress(AnswerError):
        answer_head(head + END)


@given(st.data())
def test_a_head_with_any_changed_bytes_is_a_head_or_refused(data: st.DataObject) -> None:
    head = bytearray(PARTIAL + b"\r\n" + TYPE + b"\r\nRetry-After: 3\r\nTransfer-Encoding: x")
    for _ in range(data.draw(st.integers(1, 5))):
        at = data.draw(st.integers(0, len(head) - 1))
        head[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with contextlib.suppress(AnswerError):
        assert answer_head(bytes(head) + END).status >= 100

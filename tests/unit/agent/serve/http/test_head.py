"""Which heads of requests are understood, and that no head has two readings."""

from __future__ import annotations

import http.client
import io
import re
import socket

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from agent.serve.http.request import Head, Incoming, RefusedRequestError, head_of_request
from agent.timed_socket import TimedSocket
from tests.simulators.patience import PATIENCE_S
from wire.clock import SystemClock

TOKEN = "!#$%&'*+-.^_`|~abcXYZ019"


def understood(data: bytes) -> Head:
    return head_of_request(iter(data.splitlines(keepends=True)), 1000)


def refusal(data: bytes) -> int:
    with pytest.raises(RefusedRequestError) as info:
        # Not splitlines: what a bare CR does is the question.
        head_of_request(iter(re.findall(rb"[^\n]*\n", data)), 1000)
    return info.value.status


def test_a_whole_head() -> None:
    head = understood(
        b"POST /v2/models/a/infer?b=c HTTP/1.1\r\nHOST: \t x \r\nContent-length:7\r\n"
        b"A: 1\r\na:\r\nA: \xe9 2\r\nExpect: 100-Continue\r\n"
    )
    assert head == Head(
        method="POST",
        target="/v2/models/a/infer?b=c",
        headers={
            "host": "x",
            "content-length": "7",
            "a": "1, , \xe9 2",
            "expect": "100-Continue",
        },
        length=7,
        keeps_alive=True,
        waits=True,
    )


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/v2", "/v2"),
        ("http://a:1/v2?x", "/v2?x"),
        ("HTTPS://a", "/"),
        ("http://a?x", "?x"),
        ("*", "*"),
        ("a:80", "a:80"),
        ("http:///v2", "http:///v2"),
        ("//a/v2", "//a/v2"),
    ],
)
def test_absolute_targets_lose_their_host(target: str, path: str) -> None:
    assert understood(f"GET {target} HTTP/1.1\r\nHost: x\r\n".encode()).target == path


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"\r\n",
        b"GET /\r\n",
        b"GET / HTTP/1.1\n",
        b"GET / HTTP/1.1\r\r\n",
        b"GET  / HTTP/1.1\r\n",
        b"GET / HTTP/1.1 \r\n",
        b" GET / HTTP/1.1\r\n",
        b"GET\t/ HTTP/1.1\r\n",
        b"GET / http/1.1\r\n",
        b"GET / HTTP/1.10\r\n",
        b"GET / HTTP/2.0\r\n",
        b"GET / HTTP/0.9\r\n",
        b"GET /a b HTTP/1.1\r\n",
        b"GET /\x00 HTTP/1.1\r\n",
        b"GET /\xe9 HTTP/1.1\r\n",
        b"GET /\x7f HTTP/1.1\r\n",
        b"G(T / HTTP/1.1\r\n",
        b"G" * 41 + b" / HTTP/1.1\r\n",
    ],
)
def test_request_lines_that_are_none(line: bytes) -> None:
    assert refusal(line + b"Host: x\r\n") == 400


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        (b"", 400),
        (b"Host: x\r\nHost: x\r\n", 400),
        (b"Host: x\n", 400),
        (b"Host: x\r\n folded\r\n", 400),
        (b"Host: x\r\n\tfolded\r\n", 400),
        (b"Host: x\r\nA : b\r\n", 400),
        (b"Host: x\r\n: b\r\n", 400),
        (b"Host: x\r\nA\r\n", 400),
        (b"Host: x\r\nA: b\rContent-Length: 5\r\n", 400),
        (b"Host: x\r\nA: b\x00\r\n", 400),
        (b"Host: x\r\nA\x00: b\r\n", 400),
        (b"Host: x\r\nA: b\x0bc\r\n", 400),
        (b"Host: x\r\nContent-Length: 5\r\nContent-Length: 5\r\n", 400),
        (b"Host: x\r\nContent-Length: 5, 5\r\n", 400),
        (b"Host: x\r\nContent-Length: +5\r\n", 400),
        (b"Host: x\r\nContent-Length: -5\r\n", 400),
        (b"Host: x\r\nContent-Length: 0x5\r\n", 400),
        (b"Host: x\r\nContent-Length: 5_0\r\n", 400),
        (b"Host: x\r\nContent-Length: \xb2\r\n", 400),
        (b"Host: x\r\nContent-Length:\r\n", 400),
        (b"Host: x\r\nContent-Length: " + b"9" * 30 + b"\r\n", 400),
        (b"Host: x\r\nContent-Length: 1001\r\n", 413),
        (b"Host: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n", 400),
        (b"Host: x\r\nTransfer-Encoding: gzip, chunked\r\n", 411),
        (b"Host: x\r\nTransfer-Encoding: identity\r\n", 411),
        (b"Host: x\r\nTransfer-Encoding:\x0bchunked\r\n", 400),
        (b"Host: x\r\nExpect: tea\r\nContent-Length: 5\r\n", 417),
    ],
)
def test_fields_that_are_malformed_or_ambiguous(fields: bytes, status: int) -> None:
    assert refusal(b"POST / HTTP/1.1\r\n" + fields) == status


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_request_without_a_length_has_no_body(version: str) -> None:
    assert understood(f"POST / HTTP/{version}\r\nHost: x\r\n".encode()).length == 0


def test_http_1_0_needs_no_host_and_knows_no_transfer_encoding() -> None:
    assert not understood(b"GET / HTTP/1.0\r\n").keeps_alive
    assert not understood(b"GET / HTTP/1.0\r\nExpect: 100-continue\r\n").waits
    assert refusal(b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n") == 400


@given(
    st.lists(
        st.tuples(
            st.text(TOKEN, min_size=1, max_size=10).map(lambda name: "X" + name),
            st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF), max_size=20).filter(
                lambda value: "\x7f" not in value and not re.search("[\x80-\x9f]", value)
            ),
        ),
        max_size=8,
    )
)
def test_what_was_sent_is_what_is_understood(fields: list[tuple[str, str]]) -> None:
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
    data = f"GET / HTTP/1.1\r\nHost: h\r\n{lines}".encode("latin-1")
    head = head_of_request(iter(re.findall(rb"[^\n]*\n", data)), 1000)
    expected: dict[str, list[str]] = {"host": ["h"]}
    for name, value in fields:
        expected.setdefault(name.lower(), []).append(value.strip(" \t"))
    assert head.headers == {name: ", ".join(values) for name, values in expected.items()}


evil = st.sampled_from(
    [
        b"\r",
        b"\n",
        b"\r\n",
        b" ",
        b"\t",
        b":",
        b"\x00",
        b"\x0b",
        b"\x85",
        b"\xa0",
        b"\r\n ",
        b"\r\n\t",
        b"Content-Length: 3",
        b"Content-Length:3\r\n",
        b"\rContent-Length: 3\r",
        b"Transfer-Encoding: x",
    ]
)


@given(st.lists(st.tuples(evil | st.binary(max_size=4), st.integers(0, 70)), max_size=3))
def test_what_is_understood_has_no_other_reading(noise: list[tuple[bytes, int]]) -> None:
    data = b"POST /v2 HTTP/1.1\r\nHost: x\r\nContent-Length: 12\r\nA: b\r\n"
    for piece, place in noise:
        data = data[:place] + piece + data[place:]
    assume(data.endswith(b"\n"))
    try:
        head = head_of_request(iter(re.findall(rb"[^\n]*\n", data)), 10**16)
    except RefusedRequestError:
        return
    fields = io.BytesIO(data.partition(b"\n")[2] + b"\r\n")
    other = http.client.parse_headers(fields)
    assert not other.defects
    for name in ("Content-Length", "Transfer-Encoding"):
        values = [head.headers[name.lower()]] if name.lower() in head.headers else []
        # Blanks around a value do not count (RFC 9110, 5.5); the other parser keeps the last ones.
        assert [value.strip(" \t") for value in other.get_all(name, [])] == values


def test_a_head_that_comes_again_is_read_as_before_and_another_one_is_not() -> None:
    def head_with(length: int) -> bytes:
        return b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % length

    ours, theirs = socket.socketpair()
    with ours, theirs:
        incoming = Incoming(TimedSocket(ours), SystemClock())

        def read(sent: bytes) -> tuple[Head, bytes]:
            theirs.sendall(sent)
            incoming.waits_for_request(PATIENCE_S)
            head = incoming.request(PATIENCE_S, 100)
            return head, bytes(incoming.body(head.length or 0, PATIENCE_S, lambda _: None))

        first, again = read(head_with(2) + b"ab"), read(head_with(2) + b"cd")
        assert again[0] is first[0]
        assert [first[1], again[1]] == [b"ab", b"cd"]
        other = read(head_with(3) + b"efg")
        assert (other[0].length, other[1]) == (3, b"efg")
        # A head of which only a part has come is no other head.
        theirs.sendall(head_with(2)[:30])
        incoming.waits_for_request(PATIENCE_S)
        theirs.sendall(head_with(2)[30:] + b"hi")
        assert incoming.request(PATIENCE_S, 100).length == 2
        assert bytes(incoming.body(2, PATIENCE_S, lambda _: None)) == b"hi"
        theirs.sendall(b"POST /a HTTP/1.1\r\nHost: h\n\r\n")
        incoming.waits_for_request(PATIENCE_S)
        with pytest.raises(RefusedRequestError):
            incoming.request(PATIENCE_S, 100)

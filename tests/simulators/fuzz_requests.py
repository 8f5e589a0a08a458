"""Requests that no endpoint should suffer from, by kind, made by a random generator.

`KINDS` makes a case of each kind from a `random.Random`: a seeded one, or hypothesis's, which then
finds the least example.

Rules:
- A case says what has to come of it. A malformed one never means more than one refusal, whatever it
  carries behind: that is how requests are smuggled.
- `SLOW` kinds take as long as the endpoint waits; the others are over at once.
"""

from __future__ import annotations

import gzip
import json
import random
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from tests.simulators import fuzz_bodies
from tests.simulators.fuzz_client import Case, Verdict

PATH = "/v2/models/digits/infer"
VALUES = (0.0, 1.0, 2.0, 3.0)
GIB = 1024**3
EVIL_BYTES = (b"\r", b"\n", b"\x00", b"\x0b", b"\x7f", b"\r\r\n", b"\n\r\n")
OK: Verdict = "ok"
REFUSED: Verdict = "refused"
EITHER: Verdict = "either"
Make: TypeAlias = Callable[[random.Random], Case]


def request(body: bytes, *fields: str, path: str = PATH, method: str = "POST") -> bytes:
    """Return a well-framed request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x", f"Content-Length: {len(body)}", *fields]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def good(rng: random.Random, *fields: str) -> bytes:
    """Return a request whose right answer is known, in one of its many forms."""
    tensor: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 4]}
    document: dict[str, Any] = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    form = rng.choice(["flat", "nested", "raw", "gzip", "deflate"])
    if form in {"flat", "nested"}:
        values = list(VALUES)
        tensor |= {"data": values if form == "flat" else [values]}
        return request(json.dumps(document).encode(), *fields)
    tensor |= {"parameters": {"binary_data_size": 16}}
    head = json.dumps(document).encode()
    body = head + struct.pack("<4f", *VALUES)
    fields = (*fields, f"Inference-Header-Content-Length: {len(head)}")
    if form == "raw":
        return request(body, *fields)
    squeezed = gzip.compress(body, 1, mtime=0) if form == "gzip" else zlib.compress(body)
    return request(squeezed, *fields, f"Content-Encoding: {form}")


def valid(rng: random.Random) -> Case:
    count = rng.choice([1, 1, 1, 2, 5])
    data = b"".join(good(rng) for _ in range(count))
    at = rng.randrange(len(data)) if rng.random() < 0.3 else 0
    return Case(
        kind="valid",
        sends=(data[:at], data[at:]) if at else (data,),
        answers=(OK,) * count,
        hangs_up=rng.random() < 0.3,
    )


def request_line(rng: random.Random) -> Case:
    lines = (
        b"GET", b"GET /v2", b"GET /v2 HTTP/0.9", b"GET /v2 HTTP/1.", b"GET /v2 HTTP/11",
        b"GET /v2 HTTP/2.0", b"GET /v2 HTTP/9.9", b"GET /v2 http/1.1", b"GET  /v2 HTTP/1.1",
        b" GET /v2 HTTP/1.1", b"GET /v2 HTTP/1.1 x", b"GET\t/v2\tHTTP/1.1", b"GET /v 2 HTTP/1.1",
        b"GET /v2\x00 HTTP/1.1", b"GET /\xff HTTP/1.1", b"\x00", b"{}", b"<html>", b"\r\n",
        b"HTTP/1.1 200 OK", b"SSH-2.0-x", b"G@T /v2 HTTP/1.1", b"G" * 500 + b" /v2 HTTP/1.1",
        b"PRI * HTTP/2.0\r\n\r\nSM", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    )  # fmt: skip
    return Case(kind="request line", sends=(rng.choice(lines) + b"\r\nHost: x\r\n\r\n",))


def binary_hello(rng: random.Random) -> Case:
    junk = bytes(rng.randrange(256) for _ in range(rng.randrange(1, 400)))
    return Case(kind="binary hello", sends=(b"\x16" + junk + b"\n",), hangs_up=True)


def evil_byte(rng: random.Random) -> Case:
    """A byte in the head that one reader could take for the end of a line and another not."""
    body, evil = b"{}", rng.choice(EVIL_BYTES)
    lines = [b"POST " + PATH.encode() + b" HTTP/1.1", b"Host: x", b"Content-Length: 2", b"A: bcd"]
    chosen = rng.randrange(len(lines))
    at = rng.randrange(1, len(lines[chosen]))
    lines[chosen] = lines[chosen][:at] + evil + lines[chosen][at:]
    sends = (b"\r\n".join([*lines, b"", b""]) + body,)
    return Case(kind="evil byte", sends=sends, hangs_up=True)


def field(rng: random.Random) -> Case:
    wrong = (
        b" folded", b"\tfolded", b"no colon", b": no name", b"A : b", b"A\x00: b", b"A: \x00",
        b"(A): b", b"A:b\rC: d", b"\xff: b", b"Host: y", b"Expect: tea", b"Content-Length : 2",
        b"A" * 9000 + b": b", b"A: " + b"b" * 9000, b"A: b\r\n" * 120, b"A: b\n" * 5,
    )  # fmt: skip
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n".encode()
    return Case(kind="field", sends=(head + rng.choice(wrong) + b"\r\n\r\n{}",))


def long_line(rng: random.Random) -> Case:
    size = rng.choice([8193, 20_000, 200_000])
    head = rng.choice([b"GET /", b"GET / HTTP/1.1\r\nHost: ", b"", b"GET / HTTP/1.1\r\n"])
    return Case(kind="long line", sends=(head + b"a" * size,), hangs_up=rng.random() < 0.5)


def length(rng: random.Random) -> Case:
    """A length that is none, or not the only one, with another request behind."""
    wrong = (
        "-1", "+2", "0x2", "2.0", "2e0", "two", "", "2, 2", "2,3", "2 2", "\xb2", "2_0", "9" * 30,
        "1073741824", str(2**63), "2\r\nContent-Length: 2", "2\r\nContent-Length: 200",
        "2\r\nTransfer-Encoding: chunked", "2\r\nTransfer-Encoding: x\r\nTransfer-Encoding: y",
        "2\r\nTransfer-Encoding: identity", "2\r\ntransfer-encoding:\tchunked",
    )  # fmt: skip
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {rng.choice(wrong)}\r\n\r\n"
    return Case(kind="length", sends=(head.encode("latin-1") + b"{}" + good(rng),))


def chunked(rng: random.Random) -> Case:
    """A chunked body, good or bad, with another request inside or behind."""
    coding = rng.choice(["chunked", "Chunked", "gzip, chunked", "xchunked", "chunked, identity"])
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: {coding}\r\n\r\n".encode()
    size = rng.choice([b"2", b"ffffffffffffffff", b"-1", b"2;x=y", b"0", b""])
    # A whole body of chunks is no fault; what it holds is refused alone.
    whole = coding.lower() == "chunked" and size[:1] == b"2"
    answers = (REFUSED, OK) if whole else (REFUSED,)
    data = head + size + b"\r\n{}\r\n0\r\n\r\n" + good(rng)
    return Case(kind="chunked", sends=(data,), answers=answers)


def declared(rng: random.Random) -> Case:
    fields = rng.choice(["", "Expect: 100-continue\r\n"])
    size = rng.choice([GIB, 64 * 1024**2 + 1, 2**40])
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {size}\r\n\r\n"
    return Case(kind="declared", sends=(head.encode(),))


def flood(rng: random.Random) -> Case:
    """A body of 1 GiB that is really sent, until the client hears that it need not."""
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: {GIB}\r\n\r\n"
    return Case(kind="flood", sends=(head.encode(),), flood_bytes=GIB)


def broken_off(rng: random.Random) -> Case:
    """A client that stops in the middle of a request and still listens."""
    data = good(rng)
    return Case(kind="broken off", sends=(data[: rng.randrange(1, len(data))],), hangs_up=True)


def gone(rng: random.Random) -> Case:
    """A client that goes away, with or without a request."""
    data = good(rng) * rng.choice([1, 3])
    at = rng.choice([0, rng.randrange(len(data)), len(data)])
    return Case(kind="gone", sends=(data[:at],) if at else (), answers=(), leaves=True)


def silent(rng: random.Random) -> Case:
    return Case(kind="silent", sends=(), answers=(), hangs_up=True)


def pipelined(rng: random.Random) -> Case:
    """Good requests, then a malformed one, then good ones that nobody may believe."""
    before = rng.randrange(4)
    bad = rng.choice([request_line, field, length, chunked, compressed_body, declared])(rng)
    data = [good(rng) for _ in range(before)]
    behind = good(rng) * rng.randrange(3)
    head = bad.sends[0]
    if not isinstance(head, bytes):
        raise TypeError(head)
    if bad.answers == (REFUSED, OK):
        return Case(
            kind="pipelined",
            sends=(b"".join(data) + head,),
            answers=(*(OK,) * before, *bad.answers),
        )
    sends = (b"".join(data) + head + behind,)
    return Case(kind="pipelined", sends=sends, answers=(*(OK,) * before, REFUSED))


def method(rng: random.Random) -> Case:
    names = ["GET", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "BREW", "post", "!#$"]
    data = request(b"{}", method=rng.choice(names))
    return Case(kind="method", sends=(data + good(rng),), answers=(REFUSED, OK))


def target(rng: random.Random) -> Case:
    wrong = (
        "/", "*", "//v2", "/v2/", "/v1/models/digits:predict", "/v2/models/digits/infer/",
        "/v2/models/digits/INFER", "/v2/models//infer", "/v2/models/../../etc/passwd",
        "/v2/models/%2e%2e/infer", "/v2/models/..%2f..%2fetc%2fpasswd/infer",
        "/v2/models/%64igits/infer", "/v2/models/digits%00/infer", "/v2/models/digits%/infer",
        "/v2/models/digits/versions/9/infer", "/v2/models/digits/versions/../infer",
        "/v2/models/" + "a" * 5000 + "/infer", "/v2/models/digits;x/infer", "x:80", "?x",
        "http://x", "http://x/v2/models/other/infer", "http://", "ftp://x/v2", "/v2#x",
        "/v2/models/digits\\infer", "/v2/models/${x}/infer", "/v2/models/digits/infer%3f",
    )  # fmt: skip
    data = request(b"{}", path=rng.choice(wrong))
    return Case(kind="target", sends=(data + good(rng),), answers=(REFUSED, OK))


def header_length(rng: random.Random) -> Case:
    body = json.dumps(fuzz_bodies.good(rng, parameters={}, data=[1, 2, 3, 4])).encode()
    text = rng.choice(
        ["-1", "x", "", "1e3", "0", "1", "9" * 12, "9" * 40, f"{len(body) + 1}", f"{len(body) - 1}"]
    )
    data = request(body, f"Inference-Header-Content-Length: {text}")
    return Case(kind="header length", sends=(data + good(rng),), answers=(REFUSED, OK))


def compressed_body(rng: random.Random) -> Case:
    """A body that is not what its coding says, or far more than it seems."""
    content, coding = b'{"inputs": []}', rng.choice(["gzip", "deflate"])
    whole = gzip.compress(content, mtime=0) if coding == "gzip" else zlib.compress(content)
    wrong = (whole[:-1], whole + b"x", whole * 2, b"x", whole[:5], whole[:12] + b"\xff" * 9)
    name = rng.choice([coding] * 5 + ["br", "gzip, gzip", "zstd", "x", "chunked", ""])
    data = request(rng.choice(wrong), f"Content-Encoding: {name}")
    return Case(kind="compressed", sends=(data,))


def bomb(rng: random.Random) -> Case:
    """As the bound allows, or beyond it; either way it is no request."""
    size = rng.choice([1024**2, 70 * 1024**2])
    stream = zlib.compressobj(9, wbits=31)
    block = rng.choice([b" ", b"[", b"\x00"]) * 1024**2
    data = b"".join(stream.compress(block) for _ in range(size // 1024**2)) + stream.flush()
    return Case(kind="bomb", sends=(request(data, "Content-Encoding: gzip"),))


def slow_header(rng: random.Random) -> Case:
    data = good(rng)[:40]
    pieces = [data[at : at + 1] for at in range(len(data))]
    sends = tuple(part for piece in pieces for part in (piece, 0.05))
    return Case(kind="slow header", sends=sends)


def slow_body(rng: random.Random) -> Case:
    head = f"POST {PATH} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n"
    sends = (head.encode(), *(part for _ in range(40) for part in (b" ", 0.05)))
    return Case(kind="slow body", sends=sends)


def stalled(rng: random.Random) -> Case:
    data = good(rng)
    return Case(kind="stalled", sends=(data[: rng.randrange(1, len(data))],))


def _with_body(kind: str, make: Callable[[random.Random], fuzz_bodies.Body]) -> Make:
    """Return what sends a wrong body, well framed, and a good request behind it."""

    def case(rng: random.Random) -> Case:
        body, head_length = make(rng)
        fields = () if head_length is None else (f"Inference-Header-Content-Length: {head_length}",)
        verdict = EITHER if kind in fuzz_bodies.PERHAPS else REFUSED
        sends = (request(body, *fields) + good(rng),)
        return Case(kind=kind, sends=sends, answers=(verdict, OK))

    return case


SLOW: Mapping[str, Make] = {
    "slow header": slow_header,
    "slow body": slow_body,
    "stalled": stalled,
    "flood": flood,
    "bomb": bomb,
}
BODIES: Mapping[str, Make] = {
    kind: _with_body(kind, make)
    for kind, make in {**fuzz_bodies.WRONG, **fuzz_bodies.PERHAPS}.items()
}
QUICK: Mapping[str, Make] = {
    "request line": request_line,
    "binary hello": binary_hello,
    "evil byte": evil_byte,
    "field": field,
    "long line": long_line,
    "length": length,
    "chunked": chunked,
    "declared": declared,
    "broken off": broken_off,
    "gone": gone,
    "silent": silent,
    "pipelined": pipelined,
    "method": method,
    "target": target,
    "header length": header_length,
    "compressed": compressed_body,
    **BODIES,
}
KINDS: Mapping[str, Make] = {"valid": valid, **QUICK, **SLOW}

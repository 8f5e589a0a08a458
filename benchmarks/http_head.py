"""Whether the endpoint's own reading of an HTTP head is worth its lines, beside h11's.

h11 is the reading that httpx and uvicorn use. Both read the same heads from the same bytes; the
rounds alternate. What both have to do for a request is counted: find the lines, check them, and say
method, target, fields, length of the body, and whether the connection goes on. h11 does less than
is needed here: which status a refusal has, that chunked bodies are refused, and how long a client
may take would stay ours. It also begins anew with each head here, because it is faster so than
where it goes on to the next request. So the figures are in favour of h11.

The heads are those of tritonclient, curl, a browser and a minimal client. The memory is what the
import adds to a process that has imported what the supervisor has anyway; with h11 most of ours
would still be imported beside it.
"""

from __future__ import annotations

import inspect
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

import h11

from agent.serve.http import request
from agent.serve.http.request import Incoming, head_of_request
from benchmarks.harness import Row, against, alone, main
from benchmarks.programs import program
from wire.clock import SystemClock

HEADS: Final[Mapping[str, bytes]] = {
    "minimal client": (
        b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: 127.0.0.1:8500\r\n"
        b"Content-Length: 0\r\n\r\n"
    ),
    "tritonclient": (
        b"POST /v2/models/digits/infer HTTP/1.1\r\n"
        b"Host: 127.0.0.1:8500\r\n"
        b"User-Agent: Python-geventhttpclient/2.3.4\r\n"
        b"Inference-Header-Content-Length: 243\r\n"
        b"Content-Type: application/octet-stream\r\n"
        b"Connection: keep-alive\r\n"
        b"Content-Length: 0\r\n\r\n"
    ),
    "curl with a token": (
        b"POST /v2/models/digits/versions/1.0/infer HTTP/1.1\r\n"
        b"Host: kiosk-17.example.org:8500\r\n"
        b"User-Agent: curl/8.5.0\r\n"
        b"Accept: */*\r\n"
        b"Authorization: Bearer 9f8e7d6c5b4a39281706f5e4d3c2b1a0\r\n"
        b"Content-Type: application/json\r\n"
        b"Content-Length: 0\r\n\r\n"
    ),
    "browser": (
        b"GET /v2/models/digits HTTP/1.1\r\n"
        b"Host: 127.0.0.1:8500\r\n"
        b"Connection: keep-alive\r\n"
        b'sec-ch-ua: "Chromium";v="126", "Not.A/Brand";v="24"\r\n'
        b"sec-ch-ua-mobile: ?0\r\n"
        b'sec-ch-ua-platform: "Linux"\r\n'
        b"Upgrade-Insecure-Requests: 1\r\n"
        b"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) "
        b"Chrome/126.0.0.0 Safari/537.36\r\n"
        b"Accept: text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8\r\n"
        b"Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
        b"Accept-Encoding: gzip, deflate, br, zstd\r\n"
        b"Accept-Language: en-US,en;q=0.9\r\n"
        b"Cookie: session=b1946ac92492d2347c6235b4d2611184; theme=dark\r\n\r\n"
    ),
}
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
TIMEOUT_S: Final = 10.0
KIB: Final = 1024.0


def measure(quick: bool) -> list[Row]:
    """Read the heads with both, alternately.

    Args:
        quick: Fewer and shorter rounds.

    Returns:
        The rows.
    """
    rounds, round_s = (5, 0.1) if quick else (20, 0.5)
    rows = []
    for name, head in HEADS.items():
        _check(head)
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(_rate(_read_with_ours(head), round_s))
            theirs.append(_rate(_read_with_h11(head), round_s))
        rows.append(
            against(f"heads of a {name}", ours, theirs, unit="1/s", peer="h11", at_least=1.0)
        )
    modules = ("agent.serve.http.request", "h11")
    memory: dict[str, list[float]] = {module: [] for module in modules}
    for _ in range(rounds):
        for module in modules:
            memory[module].append(_imported_kib(module))
    rows.append(
        against("memory of the import", *(memory[m] for m in modules), unit="KiB", peer="h11")
    )
    rows.append(alone("lines that h11 would save", [_lines_saved()], unit="lines"))
    return rows


class _Bytes:
    """A connection on which the same head comes again and again, without the kernel."""

    def __init__(self, head: bytes) -> None:
        self._head = head

    def receive(self, _count: int, _timeout_s: float | None) -> bytes:
        """Return the head."""
        return self._head

    def send(self, content: memoryview, _timeout_s: float | None) -> int:
        """Send nothing."""
        return len(content)


def _read_with_ours(head: bytes) -> Callable[[], object]:
    incoming = Incoming(_Bytes(head), SystemClock())

    def read() -> object:
        incoming.waits_for_request(TIMEOUT_S)
        return head_of_request(incoming.head(TIMEOUT_S), MAX_BODY_BYTES)

    return read


def _read_with_h11(head: bytes) -> Callable[[], object]:
    """Return a reading with a connection each time: going on to the next request costs h11 more."""

    def read() -> object:
        connection = h11.Connection(h11.SERVER)
        connection.receive_data(head)
        event = connection.next_event()
        if not isinstance(event, h11.Request):
            raise TypeError(event)
        headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
        length = int(headers.get("content-length", "0"))
        return event.method.decode(), event.target.decode(), headers, length

    return read


def _check(head: bytes) -> None:
    """See to it that both read the same.

    Raises:
        RuntimeError: They do not.
    """
    ours, theirs = _read_with_ours(head)(), _read_with_h11(head)()
    if (ours.method, ours.target, ours.headers, ours.length) != theirs:  # type: ignore[attr-defined]  # a `Head`
        raise RuntimeError(f"they read {head!r} as {ours} and {theirs}")


def _rate(read: Callable[[], object], round_s: float) -> float:
    count, start_s = 0, time.perf_counter()
    while (took_s := time.perf_counter() - start_s) < round_s:
        for _ in range(50):
            read()
        count += 50
    return count / took_s


def _imported_kib(module: str) -> float:
    command = [sys.executable, "-P", program("import_memory"), module]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _lines_saved() -> float:
    """Return how many lines of our reading h11 would stand for: those that find and check lines."""
    parts = (head_of_request, request._headers, Incoming.head, Incoming._line)  # noqa: SLF001 - counted, not called
    counts: list[int] = [len(inspect.getsourcelines(part)[0]) for part in parts]
    return float(sum(counts))


if __name__ == "__main__":
    sys.exit(main("Reading an HTTP head", measure))

"""How fast the controller's download listener gives a blob to one client, beside other servers.

The peers are bare TCP by sendfile, bare TLS, `python -m http.server` and nginx. Server and client
are processes on loopback, and the file is in the memory of the kernel, so that neither a disk nor
a network hides the server. The client is the same for all: it reads and checks nothing.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from benchmarks.harness import Row, against, main, not_measured
from benchmarks.programs import program
from benchmarks.transfers.peers import nginx, raw_server
from controller.services.blobs import BlobStore
from examples.digits.box import free_port
from tests.simulators.certificates import Authority
from tests.simulators.patience import PATIENCE_S, until

HOST: Final = "127.0.0.1"
SIZE_BYTES: Final = 200_000_000
PART_BYTES: Final = 1_000_000
BUFFER_BYTES: Final = 1024 * 1024
ROUNDS, QUICK_ROUNDS = 9, 3
ROOT: Final = Path(__file__).resolve().parents[1]

Measure = Callable[[], float]
"""Fetches the file once; returns MB/s."""


def measure(quick: bool) -> list[Row]:
    """Measure one client at a time.

    Args:
        quick: Fewer rounds.

    Returns:
        The rows.
    """
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as running:
        folder = Path(name)
        blobs = BlobStore(folder / "blobs")
        sha256 = blobs.put(os.urandom(SIZE_BYTES))
        file = folder / "blobs" / sha256[:2] / sha256
        authority = Authority(folder, "bench")
        files = authority.issue("server")
        tls = authority.client(None)
        pair = (str(files.cert_file), str(files.key_file))
        (raw,) = running.enter_context(raw_server([file]))
        own, link = running.enter_context(_program("download_server", str(blobs_of(file)), sha256))
        own_tls, link_tls = running.enter_context(
            _program("download_server", str(blobs_of(file)), sha256, *pair)
        )
        (raw_tls,) = running.enter_context(_program("tls_file_server", str(file), *pair))
        simple = running.enter_context(_http_server(file.parent))
        other = running.enter_context(nginx(file.parent, folder / "nginx"))
        rounds = QUICK_ROUNDS if quick else ROUNDS
        figures: dict[str, Measure] = {
            "ours": lambda: _whole(int(own), link),
            "tcp": lambda: _whole(raw, None),
            "http.server": lambda: _whole(simple, f"/{sha256}"),
            "ours, TLS": lambda: _whole(int(own_tls), link_tls, tls),
            "tls": lambda: _whole(int(raw_tls), "/", tls),
            "ours, parts": lambda: _in_parts(int(own), link),
        }
        if other is not None:
            figures["nginx"] = functools.partial(_whole, other.port, f"/{sha256}")
            figures["nginx, parts"] = functools.partial(_in_parts, other.port, f"/{sha256}")
        got: dict[str, list[float]] = {kind: [] for kind in figures}
        for _ in range(rounds):
            for kind, once in figures.items():
                got[kind].append(once())
    return _rows(got)


def blobs_of(file: Path) -> Path:
    """Return the directory of blobs in which a blob lies.

    Args:
        file: The blob.
    """
    return file.parents[1]


def _rows(got: dict[str, list[float]]) -> list[Row]:
    whole, parts = "one client, 200 MB", "one client, 200 MB in ranges of 1 MB"
    rows = [
        against(whole, got["ours"], got["tcp"], unit="MB/s", peer="bare TCP", at_least=0.5),
        against(whole, got["ours"], got["http.server"], unit="MB/s", peer="python -m http.server"),
    ]
    if "nginx" in got:
        rows += [
            against(whole, got["ours"], got["nginx"], unit="MB/s", peer="nginx"),
            against(parts, got["ours, parts"], got["nginx, parts"], unit="MB/s", peer="nginx"),
        ]
    else:
        rows.append(not_measured(parts, "nginx is not installed", peer="nginx"))
    tls = f"{whole}, TLS"
    return [*rows, against(tls, got["ours, TLS"], got["tls"], unit="MB/s", peer="bare TLS")]


@contextlib.contextmanager
def _program(name: str, *arguments: str) -> Iterator[list[str]]:
    """Run a server; yield the words that it prints."""
    command = [sys.executable, "-P", program(name), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield (process.stdout.readline() if process.stdout else "").split()


@contextlib.contextmanager
def _http_server(folder: Path) -> Iterator[int]:
    """Serve a folder as Python alone does; yield the port."""
    port = free_port()
    command = [sys.executable, "-I", "-m", "http.server", str(port), "--bind", HOST]
    with subprocess.Popen(
        [*command, "--directory", str(folder), "--protocol", "HTTP/1.1"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            until(lambda: _listens(port), "http.server")
            yield port
        finally:
            process.terminate()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((HOST, port)) == 0


def _dial(port: int, tls: ssl.SSLContext | None) -> socket.socket:
    plain = socket.create_connection((HOST, port), PATIENCE_S)
    return plain if tls is None else tls.wrap_socket(plain, server_hostname=HOST)


def _whole(port: int, path: str | None, tls: ssl.SSLContext | None = None) -> float:
    """Fetch the file over a new connection; return MB/s. Without a path it comes unasked.

    Raises:
        RuntimeError: Less than the file has come.
    """
    buffer, size_bytes = bytearray(BUFFER_BYTES), 0
    start_s = time.perf_counter()
    with _dial(port, tls) as sock:
        if path is not None:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
        while count := sock.recv_into(buffer):
            size_bytes += count
    if size_bytes < SIZE_BYTES:
        raise RuntimeError(f"{size_bytes} bytes of {SIZE_BYTES} came from port {port}")
    return size_bytes / (time.perf_counter() - start_s) / 1e6


def _in_parts(port: int, path: str) -> float:
    """Fetch the file in ranges over one connection; return MB/s."""
    buffer = bytearray(BUFFER_BYTES)
    start_s = time.perf_counter()
    with _dial(port, None) as sock:
        for first in range(0, SIZE_BYTES, PART_BYTES):
            wanted = f"Range: bytes={first}-{first + PART_BYTES - 1}"
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n{wanted}\r\n\r\n".encode())
            head = b""
            while b"\r\n\r\n" not in head:
                head += sock.recv(4096)
            left = PART_BYTES - len(head.partition(b"\r\n\r\n")[2])
            while left > 0:
                left -= sock.recv_into(buffer, min(left, BUFFER_BYTES))
    return SIZE_BYTES / (time.perf_counter() - start_s) / 1e6


if __name__ == "__main__":
    sys.exit(main("Downloads: the controller's listener beside other servers", measure))

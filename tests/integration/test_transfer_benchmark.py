"""The parts of the benchmark of transfers that touch processes and sockets."""

from __future__ import annotations

import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from agent.install.fetch.part import Blob
from benchmarks.transfers.crowd import Crowd
from benchmarks.transfers.link import Link
from benchmarks.transfers.orders import Order, Setup
from benchmarks.transfers.pace import LinkShape
from benchmarks.transfers.peers import raw_server
from benchmarks.transfers.usage import (
    busy_neighbours,
    cpu_s,
    forget_peak,
    peak_mb,
    traffic_bytes,
)
from tests.simulators.broker import RunningBroker, running_broker
from tests.simulators.chunk_server import ChunkServer
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.mqtt import MqttTransport
from wire.package.index import entry_for
from wire.topics import ALL_UP

CHUNK_BYTES = 16 * 1024
CONTENT = random.Random(7).randbytes(40 * CHUNK_BYTES + 5)
BLOB = Blob.of_file(entry_for("file", CONTENT, chunk_bytes=CHUNK_BYTES), CHUNK_BYTES)


class EchoServer:
    """Sends back what it gets."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        for _ in range(2):
            sock, _ = self._server.accept()
            with sock:
                while block := sock.recv(65536):
                    sock.sendall(block)

    def close(self) -> None:
        finished(self._thread)
        self._server.close()


@pytest.fixture
def echo() -> Iterator[EchoServer]:
    server = EchoServer()
    yield server
    server.close()


def through(port: int, content: bytes) -> bytes:
    """Send something and return what comes back until the end."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        sender = threading.Thread(target=send, args=(sock, content))
        sender.start()
        got = b""
        while block := sock.recv(65536):
            got += block
        finished(sender)
    return got


def send(sock: socket.socket, content: bytes) -> None:
    try:
        sock.sendall(content)
        sock.shutdown(socket.SHUT_WR)
    except OSError:
        return  # cut


def test_a_link_that_is_cut_ends_its_connections_and_takes_new_ones(echo: EchoServer) -> None:
    shape = LinkShape(bytes_per_s=4e6, latency_s=0.001)
    with Link(echo.port, shape, cut_at_bytes=100_000) as link:
        got = through(link.port, CONTENT)
        assert CONTENT.startswith(got)
        assert 100_000 <= link.down_bytes < len(CONTENT)
        before = link.down_bytes
        assert through(link.port, CONTENT) == CONTENT
        assert link.down_bytes == before + len(CONTENT)
        assert link.cuts == 1


def test_a_shared_link_has_its_rate_for_all_its_connections_together(tmp_path: Path) -> None:
    file = tmp_path / "content"
    file.write_bytes(CONTENT)
    shape = LinkShape(bytes_per_s=10e6)
    with raw_server([file]) as (port,), Link(port, shape, is_shared=True) as link:
        began_s = time.monotonic()
        with ThreadPoolExecutor() as pool:
            got = list(pool.map(read_all, [link.port] * 4))
        took_s = time.monotonic() - began_s
    assert got == [CONTENT] * 4
    assert link.down_bytes == 4 * len(CONTENT)
    assert took_s >= 4 * len(CONTENT) / shape.bytes_per_s


def read_all(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
        return b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.fixture
def broker() -> Iterator[RunningBroker]:
    with running_broker() as running:
        yield running


@pytest.fixture
def server(broker: RunningBroker) -> Iterator[ChunkServer]:
    transport = MqttTransport(broker.address, client_id="controller")
    chunks = ChunkServer(transport)
    chunks.add(CONTENT)
    transport.subscribe(ALL_UP)
    up = threading.Event()
    transport.start(chunks.hear, lambda _connection: up.set())
    assert up.wait(PATIENCE_S)
    yield chunks
    transport.close()


def crowd(broker: RunningBroker, folder: Path, *names: str) -> Crowd:
    devices = dict.fromkeys(names, broker.address)
    return Crowd(Setup(devices=devices, blobs={"file": BLOB}, folder=str(folder)))


def test_devices_fetch_at_once_and_say_what_they_asked_for(
    broker: RunningBroker, server: ChunkServer, tmp_path: Path
) -> None:
    with crowd(broker, tmp_path, "a", "b", "c") as devices:
        began_s, results = devices.fetch("file", count=2, limit_s=PATIENCE_S)
        assert [result.device for result in results] == ["a", "b"]
        for result in results:
            assert result.fault == ""
            assert result.useful_bytes == len(CONTENT)
            assert result.asked_bytes >= len(CONTENT)
            assert result.ended_s > began_s
        assert devices.cpu_s > 0
    assert [path.name for path in tmp_path.iterdir()] == ["setup-a.json"]


def test_a_device_that_died_goes_on_with_what_it_had(
    broker: RunningBroker, server: ChunkServer, tmp_path: Path
) -> None:
    half_bytes = 20 * CHUNK_BYTES
    order = Order(device="a", blob="file", limit_s=PATIENCE_S, die_at_bytes=half_bytes)
    with crowd(broker, tmp_path, "a") as devices:
        _, (died,) = devices.carry_out([order])
    assert died.fault == "its process died"
    with crowd(broker, tmp_path, "a") as devices:
        _, (result,) = devices.fetch("file", limit_s=PATIENCE_S)
    assert result.fault == ""
    assert result.useful_bytes == len(CONTENT) - half_bytes


def test_a_device_gives_up_at_its_limit_and_says_what_it_got(
    broker: RunningBroker, server: ChunkServer, tmp_path: Path
) -> None:
    server.tamper = lambda chunk: chunk if chunk.index < 3 else None
    with crowd(broker, tmp_path, "a") as devices:
        _, (result,) = devices.fetch("file", limit_s=0.5)
    assert result.fault == "not complete after 0.5 s"
    assert result.useful_bytes <= 3 * CHUNK_BYTES


def test_the_same_devices_read_bare_tcp(
    broker: RunningBroker, server: ChunkServer, tmp_path: Path
) -> None:
    file = tmp_path / "content"
    file.write_bytes(CONTENT)
    with raw_server([file]) as (port,), crowd(broker, tmp_path, "a", "b") as devices:
        _, results = devices.fetch("file", count=2, limit_s=PATIENCE_S, raw_port=port)
    assert [(result.useful_bytes, result.fault) for result in results] == [(len(CONTENT), "")] * 2
    assert server.sent == []


@pytest.mark.usefixtures("server")
def test_the_bytes_that_the_broker_read_are_those_that_were_sent_to_it(
    broker: RunningBroker, tmp_path: Path
) -> None:
    with crowd(broker, tmp_path, "a") as devices:
        read_bytes, written_bytes = traffic_bytes(broker.pid)
        devices.fetch("file", limit_s=PATIENCE_S)
        sent_bytes = len(CONTENT)
        now_read, now_written = traffic_bytes(broker.pid)
    for moved_bytes in (now_read - read_bytes, now_written - written_bytes):
        assert sent_bytes <= moved_bytes <= 1.05 * sent_bytes + 20_000


def test_a_peak_of_memory_is_counted_from_when_it_was_forgotten() -> None:
    large = bytearray(os.urandom(1)) * 64_000_000
    assert peak_mb(os.getpid()) > 64
    del large
    forget_peak(os.getpid())
    assert peak_mb(os.getpid()) <= psutil.Process().memory_info().rss / 1e6 + 1


def test_busy_neighbours_are_busy_and_end_with_the_block() -> None:
    own = psutil.Process()
    before = {child.pid for child in own.children()}
    with busy_neighbours(per_core=1, limit_s=PATIENCE_S):
        busy = [child for child in own.children() if child.pid not in before]
        assert len(busy) == os.cpu_count()
        until(lambda: all(cpu_s(each) > 0 for each in busy), "busy processes")
    assert not any(each.is_running() for each in busy)

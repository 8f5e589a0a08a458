"""One device of the benchmark: the agent's own fetcher and connection, without the rest of it.

Rules:
- It does with a failed transfer what the agent does: it waits for the broker and goes on.
- It leaves no finished file behind; an unfinished one stays, to be continued.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.http import HttpSource
from agent.install.fetch.messages import MessageSource
from agent.install.fetch.multicast import MulticastSource
from agent.install.fetch.offers import Offers
from agent.install.fetch.sources import Errand, SourceName
from benchmarks.transfers.orders import Order, Result, Setup
from wire.clock import SystemClock
from wire.delivery import BlobSources, Chunk, ChunkRequest
from wire.errors import FleetError, WireFormatError
from wire.messages import decode_message
from wire.mqtt import MqttTransport
from wire.progress import MULTICAST
from wire.topics import all_down, cast_name
from wire.transport import Connection, Received
from wire.trust.root import trust_from_bytes

CONNECT_S: Final = 30.0
PAUSE_S: Final = 0.1
"""Between two attempts of a transfer."""

BLOCK_BYTES: Final = 256 * 1024


class LimitError(Exception):
    """The time of an order is over."""


class OneLink:
    """The one way to a blob.

    Args:
        url: Where it is.
    """

    def __init__(self, url: str) -> None:
        self._url = url

    def of(self, sha256: str, _errand: Errand) -> BlobSources:
        """Return it."""
        return BlobSources(sha256=sha256, urls=(self._url,))

    def forget(self, sha256: str) -> None:
        """Do nothing: there is no other."""


class Device:
    """A device that fetches what it is told.

    Args:
        name: The device.
        setup: Where its broker is, and what there is to fetch.
    """

    def __init__(self, name: str, setup: Setup) -> None:
        self._name = name
        self._setup = setup
        self._sizes_bytes = {blob.sha256: blob.size_bytes for blob in setup.blobs.values()}
        self._up = threading.Event()
        self._asked_bytes = 0
        self._useful_bytes = 0
        self._transport = MqttTransport(setup.devices[name], client_id=name)
        self._messages = MessageSource(name, self._publish, SystemClock())
        self._fetcher = Fetcher((self._messages,), SystemClock())
        self._multicast: MulticastSource | None = None
        self._offers: Offers | None = None
        self._cast_bytes = 0
        if setup.trust:
            trust = trust_from_bytes(Path(setup.trust).read_bytes())
            self._offers = Offers(name, self._publish, trust, SystemClock())
            self._multicast = MulticastSource(
                name,
                self._offers,
                publish=self._publish,
                subscribe=self._transport.subscribe,
                unsubscribe=self._transport.unsubscribe,
                clock=SystemClock(),
            )

    def connect(self) -> None:
        """Connect with the broker.

        Raises:
            TimeoutError: It does not answer.
        """
        self._transport.subscribe(all_down(self._name))
        self._transport.start(self._hear, self._on_connection)
        if not self._up.wait(CONNECT_S):
            raise TimeoutError(f"{self._name} has no connection after {CONNECT_S:g} s")

    def close(self) -> None:
        """Disconnect."""
        self._transport.close()

    def carry_out(self, order: Order) -> Result:
        """Fetch what an order names.

        Args:
            order: For this device.

        Returns:
            How it went.
        """
        self._asked_bytes = self._useful_bytes = self._cast_bytes = 0
        part = Path(self._setup.folder) / f"{self._name}-{order.blob}.part"
        fault = ""
        try:
            if order.how == "raw":
                self._read_raw(order, part)
            else:
                self._fetch(order, part)
        except (LimitError, FleetError, OSError) as exc:
            fault = str(exc) or type(exc).__name__
        return Result(
            device=self._name,
            ended_s=time.monotonic(),
            useful_bytes=self._useful_bytes,
            asked_bytes=self._asked_bytes,
            cast_bytes=self._cast_bytes,
            fault=fault,
        )

    def _fetcher_for(self, order: Order) -> Fetcher:
        if order.how == "http":
            return Fetcher((HttpSource(OneLink(order.url), SystemClock()),), SystemClock())
        if order.how == "multicast" and self._multicast is not None:
            return Fetcher((self._multicast, self._messages), SystemClock())
        return self._fetcher

    def _fetch(self, order: Order, part: Path) -> None:
        end_s = time.monotonic() + order.limit_s
        target = (part.parent, part.stem)

        def check() -> None:
            if time.monotonic() > end_s:
                raise LimitError(f"not complete after {order.limit_s:g} s")

        def progress(size_bytes: int, source: SourceName) -> None:
            self._useful_bytes += size_bytes
            self._cast_bytes += size_bytes if source == MULTICAST else 0
            if order.die_at_bytes is not None and self._useful_bytes >= order.die_at_bytes:
                os.kill(os.getpid(), signal.SIGKILL)

        errand = Errand(progress=progress, check=check, asks=order.how == "multicast")
        fetcher = self._fetcher_for(order)
        while True:
            try:
                fetcher.fetch(self._setup.blobs[order.blob], part, target, errand)
            except FleetError as exc:
                if not exc.retryable:
                    raise
                check()
                time.sleep(PAUSE_S)
                self._up.wait(max(end_s - time.monotonic(), 0.0))
            else:
                (part.parent / part.stem).unlink()
                return

    def _read_raw(self, order: Order, part: Path) -> None:
        """Do what nobody can do faster: receive, write, check nothing.

        Raises:
            ConnectionError: The server gave less than the file.
        """
        end_s = time.monotonic() + order.limit_s
        buffer = memoryview(bytearray(BLOCK_BYTES))
        size_bytes = self._setup.blobs[order.blob].size_bytes
        address = ("127.0.0.1", order.raw_port)
        with socket.create_connection(address, order.limit_s) as sock, part.open("wb") as file:
            while self._useful_bytes < size_bytes:
                sock.settimeout(max(end_s - time.monotonic(), 0.001))
                got = sock.recv_into(buffer)
                if got == 0:
                    raise ConnectionError("the server ended the connection")
                file.write(buffer[:got])
                self._useful_bytes += got
        part.unlink()

    def _publish(self, topic: str, payload: bytes, expiry_s: int | None) -> bool:
        try:
            request = decode_message(payload, ChunkRequest)
        except WireFormatError:
            pass  # another kind of message
        else:
            size_bytes = self._sizes_bytes[request.sha256]
            self._asked_bytes += sum(
                min(request.chunk_bytes, size_bytes - index * request.chunk_bytes)
                for index in request.indices
            )
        return self._transport.publish(topic, payload, expiry_s=expiry_s)

    def _hear(self, received: Received) -> None:
        if (name := cast_name(received.topic)) is not None and self._multicast is not None:
            self._multicast.deliver(name, received.payload)
        elif received.topic.endswith("/sources") and self._offers is not None:
            self._offers.hear(received.payload)
        else:
            self._messages.deliver(decode_message(received.payload, Chunk, packed=True))

    def _on_connection(self, connection: Connection) -> None:
        if connection.up:
            self._messages.reconnected()
            self._up.set()
        else:
            self._up.clear()


def serve(name: str, setup: Setup, orders: int, results: int) -> None:
    """Be a device: carry out orders until their pipe ends.

    Args:
        name: The device.
        setup: What it has to know.
        orders: Descriptor from which a line for each order is read.
        results: Descriptor to which a line for each result is written; first one when connected.
    """
    device = Device(name, setup)
    with os.fdopen(orders, "rb") as lines, os.fdopen(results, "wb", buffering=0) as answers:
        try:
            device.connect()
            answers.write(msgspec.json.encode(Result(device=name)) + b"\n")
            for line in lines:
                result = device.carry_out(msgspec.json.decode(line, type=Order))
                answers.write(msgspec.json.encode(result) + b"\n")
        finally:
            device.close()

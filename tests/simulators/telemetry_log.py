"""What takes telemetry with a log, without a broker and a whole controller around it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from controller.jetstream import Logged, TelemetryLog
from controller.services.telemetry_batches import TelemetryBatches
from controller.store.database import Database
from controller.telemetry_settings import LogConfig
from telemetry.errors import TelemetryStoreError, UnknownMetricError
from telemetry.server.query import parse, run
from telemetry.server.store import TelemetryStore
from tests.simulators.clock import FakeClock
from tests.simulators.jetstream import NatsServer
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stored_fleet import add_device
from wire.clock import SystemClock
from wire.codec import from_json, to_msgpack
from wire.errors import FleetError
from wire.telemetry import SumPoint, TelemetryAck, TelemetryBatch

REAL = SystemClock()
TRIES = 60
SENT_AGAIN_S = 2.0
STORE_S = 2.0
DEVICES = ("pi-1", "pi.2", "pi..3")

READER = """
import os, signal, sys
url, address, before, root = sys.argv[1:]
sys.path[:0] = [root]
from tests.simulators.telemetry_log import Controller
from controller.telemetry_settings import LogConfig

controller = Controller(url, LogConfig(servers=(address,)), fresh=False)

def store(logged):
    if before == "acknowledgement":
        controller.taking.store_logged(logged)
    os.kill(os.getpid(), signal.SIGKILL)

controller.start(store)
signal.pause()
"""


class Controller:
    """What takes telemetry of three devices, with a log."""

    def __init__(self, database_url: str, config: LogConfig, *, fresh: bool = True) -> None:
        self.database, self.clock = Database(database_url), FakeClock()
        self.counts: Counter[str] = Counter()
        self.acks: list[tuple[str, TelemetryAck]] = []
        self.store = TelemetryStore(self.database.engine, self.clock)
        if fresh:
            with self.database.transaction() as transaction:
                for name in DEVICES:
                    add_device(transaction, name)
        self.log = TelemetryLog(config, store_s=STORE_S)
        self.taking = TelemetryBatches(
            *(self.database, self.store, self, self.clock, self.counts, self._refuse), self.log
        )
        self.may_store = threading.Event()
        self.may_store.set()

    def publish(self, topic: str, payload: bytes, *, expiry_s: int | None = None) -> bool:
        del expiry_s
        self.acks.append((topic.split("/")[3], from_json(payload, TelemetryAck)))
        return True

    def _refuse(self, code: str, _where: str, _why: str) -> None:
        self.counts[code] += 1

    def start(self, store: Callable[[Sequence[Logged]], set[int]] | None = None) -> None:
        self.log.start(store or self.store_logged)

    def store_logged(self, logged: Sequence[Logged]) -> set[int]:
        if not self.may_store.is_set():
            raise TelemetryStoreError("the database does not answer")
        return self.taking.store_logged(logged)

    def works(self) -> None:
        until(lambda: not self.log.needs(), "the log")

    def acknowledged(self) -> set[tuple[str, int]]:
        return {(name, sequence) for name, ack in self.acks for sequence in ack.sequences}

    def send(self, wanted: set[tuple[str, int]]) -> None:
        """Send batches as devices do: again and again, until they are acknowledged."""
        for _ in range(TRIES):
            missing = wanted - self.acknowledged()
            if not missing:
                return
            again_s = REAL.monotonic_s() + SENT_AGAIN_S
            with suppress(FleetError):
                self.taking.take(
                    [(name, batch(self.clock, name, n)) for name, n in sorted(missing)]
                )
            until(partial(self._is_done, wanted, again_s), "answers")
        raise AssertionError(f"{len(wanted - self.acknowledged())} are not acknowledged")

    def _is_done(self, wanted: set[tuple[str, int]], again_s: float) -> bool:
        return wanted <= self.acknowledged() or REAL.monotonic_s() > again_s

    def total(self) -> int:
        query = parse("n_total", statistics="total", since="0", now_s=self.clock.now_s() + 60)
        try:
            rows = run(self.store, query).rows
        except UnknownMetricError:
            return 0
        return int(str(rows[0][0])) if rows else 0

    def stored(self, count: int) -> None:
        until(lambda: self.total() >= count, lambda: f"{count} batches, not {self.total()}")
        assert self.total() == count

    def close(self) -> None:
        self.log.stop(PATIENCE_S)
        self.database.close()


def batch(now: FakeClock, device: str, sequence: int, **more: Any) -> bytes:
    point = SumPoint(metric="n_total", minute=int(now.now_s() // 60), attributes={}, value=1)
    return to_msgpack(
        TelemetryBatch(device=device, boot_id="b t", sequence=sequence, points=(point,), **more)
    )


def some(count: int) -> set[tuple[str, int]]:
    return {(name, number) for name in DEVICES for number in range(count)}


@contextmanager
def controlled(url: str, config: LogConfig, **more: bool) -> Iterator[Controller]:
    made = Controller(url, config, **more)
    try:
        yield made
    finally:
        made.close()


def asked(server: NatsServer, question: Callable[[Any], Coroutine[Any, Any, Any]]) -> Any:
    """Ask the server's JetStream something, as another client."""
    import nats

    async def ask() -> Any:
        client = await nats.connect(f"nats://127.0.0.1:{server.port}")
        try:
            return await question(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(ask())


def left(server: NatsServer) -> int:
    """Return how many batches are in the log."""
    info = asked(server, lambda jetstream: jetstream.stream_info("EDGEFLEET_TELEMETRY"))
    return int(info.state.messages)


async def hand_over_again(jetstream: Any) -> None:
    """Begin anew with all that is in the log, rather than wait for the end of the patience."""
    await jetstream.delete_consumer("EDGEFLEET_TELEMETRY", "store")


def killing_reader(url: str, server: NatsServer, before: str) -> subprocess.Popen[bytes]:
    """Start a further reader that takes batches and kills itself.

    Args:
        url: Of the database.
        server: The log.
        before: `commit` or `acknowledgement`.
    """
    root = str(Path(__file__).parents[2])
    address = f"nats://127.0.0.1:{server.port}"
    return subprocess.Popen([sys.executable, "-P", "-c", READER, url, address, before, root])

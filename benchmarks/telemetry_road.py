"""Telemetry from a device's message to its acknowledgement: broker, controller and store together.

Devices that were away send what they kept, all at once, over TLS: batches of eight points, each of
another minute. The broker and the controller are processes as users start them, on SQLite. Beside
it stands the store alone (`TelemetryStore.ingest_all`) with the same batches, 200 at a time. The
devices take a part of the same two cores.

A device alone on an idle fleet shows the lag: from a batch that is sent until it is acknowledged,
which is after it is stored.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import Row, against, alone, main
from benchmarks.telemetry_rows.minutes import histograms, minute_batches
from benchmarks.telemetry_store import stored_s
from controller.app.collecting import collect_seldom
from controller.store.database import Database, migrate
from telemetry.server.store import TelemetryStore
from tests.simulators.patience import PATIENCE_S
from tests.simulators.stack import Puppet, Stack, running_stack
from wire import topics
from wire.clock import SystemClock
from wire.codec import to_msgpack
from wire.messages import decode_message
from wire.telemetry import TelemetryAck, TelemetryBatch
from wire.transport import Received

DEVICES: Final = 8
POINTS: Final = 8
ROUNDS, QUICK_ROUNDS = 5, 2
BATCHES, QUICK_BATCHES = 400, 50
"""Of each device in a round."""

LONE: Final = 30


class Sender(Puppet):
    """A device that sends what it is given and knows what was acknowledged."""

    def __init__(self, stack: Stack, name: str, token: str) -> None:
        self.acknowledged: set[int] = set()
        self.wanted: frozenset[int] = frozenset()
        self.is_done = threading.Event()
        super().__init__(stack, name, token, "succeeded")

    def _on_message(self, received: Received) -> None:
        if not received.topic.endswith("/telemetry_ack"):
            return
        self.acknowledged.update(decode_message(received.payload, TelemetryAck).sequences)
        if self.wanted <= self.acknowledged:
            self.is_done.set()

    def send(self, batches: Sequence[TelemetryBatch]) -> None:
        """Send batches without waiting for acknowledgements."""
        self.wanted = frozenset(batch.sequence for batch in batches)
        self.is_done.clear()
        topic = topics.up(self.name, "telemetry")
        for batch in batches:
            while not self.transport.publish(topic, to_msgpack(batch)):
                time.sleep(0.001)  # what the connection keeps is bounded

    def wait(self) -> None:
        """Wait for the acknowledgement of all.

        Raises:
            SystemExit: It did not come.
        """
        if not self.is_done.wait(PATIENCE_S):
            raise SystemExit(f"{self.name}: {len(self.wanted - self.acknowledged)} are missing")


def measure(quick: bool) -> list[Row]:
    """Send what devices kept, and the same into a store alone."""
    rounds, number = (QUICK_ROUNDS, QUICK_BATCHES) if quick else (ROUNDS, BATCHES)
    collect_seldom()  # as the controller does
    whole: list[float] = []
    bare: list[float] = []
    with running_stack() as stack, tempfile.TemporaryDirectory() as name:
        url = f"sqlite:///{Path(name) / 'bare.db'}"
        migrate(url)
        database = Database(url)
        store = TelemetryStore(database.engine, reading_engine=database.reading_engine)
        token = stack.ok("token", "create", "--uses", str(DEVICES), "--json").json["token"]
        senders = [Sender(stack, f"device-{at:05d}", token) for at in range(DEVICES)]
        first = int(SystemClock().now_s() // 60) - rounds * number - LONE
        for at in range(rounds):
            kept = kept_by(first + at * number, number)
            rows = number * DEVICES * POINTS
            bare.append(
                rows / stored_s(store, [one for each in zip(*kept, strict=True) for one in each])
            )
            whole.append(rows / _sent_s(senders, kept))
        lone = kept_by(first + rounds * number, LONE)[0]
        lags = [_sent_s(senders[:1], [[batch]]) * 1e3 for batch in lone]
        for sender in senders:
            sender.transport.close()
        database.close()
    return [
        against("rows stored a second, through the broker", whole, bare, unit="rows/s",
                peer="the store alone"),
        alone("a batch sent until it is acknowledged, idle", lags, unit="ms"),
    ]  # fmt: skip


def kept_by(first_minute: int, number: int) -> list[list[TelemetryBatch]]:
    """Return what each device kept: a batch for each of some minutes.

    Args:
        first_minute: The first of them.
        number: How many.
    """
    pool, chance = histograms(3), random.Random(first_minute)
    minutes = [
        minute_batches(first_minute + at, DEVICES, pool, chance, POINTS - 1) for at in range(number)
    ]
    return [
        [
            TelemetryBatch(
                device=batch.device, boot_id="b", sequence=batch.points[0].minute,
                points=batch.points,
            )
            for batch in each
        ]
        for each in zip(*minutes, strict=True)
    ]  # fmt: skip


def _sent_s(senders: Sequence[Sender], kept: Sequence[Sequence[TelemetryBatch]]) -> float:
    """Let devices send; return how long it took until all was acknowledged."""
    start_s = time.perf_counter()
    threads = [
        threading.Thread(target=sender.send, args=(batches,))
        for sender, batches in zip(senders, kept, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for sender in senders:
        sender.wait()
    return time.perf_counter() - start_s


if __name__ == "__main__":
    sys.exit(main("Telemetry through the broker", measure))

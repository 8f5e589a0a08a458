"""What a log between taking and storing costs and gives: telemetry with NATS JetStream and without.

Two fleets run side by side, each a broker and a controller as users start them, on SQLite; one has
`[telemetry.log]` and a nats-server. Devices of one of them send at a time, by turns, the same
batches of eight points over TLS. A device has so many on the way at one time as several agents have
together, which send eight each. All share the same cores.

- "Until acknowledged": the devices are told to forget the last batch. With a log that is when the
  log has it.
- "Until stored": the database has counted the last batch.
- The lag is that of one batch of a fleet that is idle otherwise. The controller lets telemetry
  gather for a tenth of a second, which is in both.
"""

from __future__ import annotations

import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa

from benchmarks.harness import Row, against, main, not_measured
from benchmarks.telemetry_road import kept_by
from controller.app.home import DATABASE_FILE
from telemetry.server import tables
from tests.simulators.jetstream import NO_SERVER, PROGRAM, NatsServer
from tests.simulators.patience import PATIENCE_S
from tests.simulators.stack import Puppet, Stack, running_stack
from wire import topics
from wire.clock import SystemClock
from wire.codec import to_msgpack
from wire.messages import decode_message
from wire.telemetry import TelemetryAck, TelemetryBatch
from wire.transport import Received

DEVICES: Final = 8
ON_THE_WAY: Final = 50
ROUNDS, QUICK_ROUNDS = 5, 2
BATCHES, QUICK_BATCHES = 400, 50
"""Of each device in a round."""

LONE, QUICK_LONE = 30, 5
KEEP_BYTES: Final = 32 * 1024 * 1024
AGAIN_S: Final = 5.0
TRIES: Final = 30
LOOK_S: Final = 0.02
LONE_LOOK_S: Final = 0.001


class Sender(Puppet):
    """A device that sends what it is given, a bounded number at one time."""

    def __init__(self, stack: Stack, name: str, token: str) -> None:
        self._room = threading.Semaphore(ON_THE_WAY)
        self._missing: dict[int, bytes] = {}
        self._lock = threading.Lock()
        self._is_done = threading.Event()
        super().__init__(stack, name, token, "succeeded")

    def _on_message(self, received: Received) -> None:
        if not received.topic.endswith("/telemetry_ack"):
            return
        ack = decode_message(received.payload, TelemetryAck)
        with self._lock:
            heard = self._missing.keys() & set(ack.sequences)
            for sequence in heard:
                del self._missing[sequence]
            is_done = not self._missing
        if heard:
            self._room.release(len(heard))
        if is_done:
            self._is_done.set()

    def send(self, batches: Sequence[TelemetryBatch]) -> None:
        """Send batches; returns when the last one is on the way.

        Raises:
            SystemExit: The controller does not acknowledge.
        """
        with self._lock:
            self._missing = {batch.sequence: to_msgpack(batch) for batch in batches}
            payloads = list(self._missing.values())
        self._is_done.clear()
        for at, payload in enumerate(payloads):
            for _ in range(TRIES):
                if self._room.acquire(timeout=AGAIN_S):
                    break
                self._send_again(set(payloads[:at]))
            else:
                raise SystemExit(f"{self.name}: nothing is acknowledged")
            self._publish(payload)

    def wait(self) -> None:
        """Wait until all is acknowledged.

        Raises:
            SystemExit: It is not.
        """
        for _ in range(TRIES):
            if self._is_done.wait(AGAIN_S):
                return
            with self._lock:
                left = set(self._missing.values())
            self._send_again(left)
        raise SystemExit(f"{self.name}: {len(self._missing)} are missing")

    def _send_again(self, sent: set[bytes]) -> None:
        """Send what is not acknowledged once more, as agents do."""
        with self._lock:
            missing = [payload for payload in self._missing.values() if payload in sent]
        for payload in missing:
            self._publish(payload)

    def _publish(self, payload: bytes) -> None:
        while not self.transport.publish(topics.up(self.name, "telemetry"), payload):
            time.sleep(0.001)  # what the connection keeps is bounded


class Took(NamedTuple):
    """How long it took from the first batch that was sent."""

    acknowledged_s: float
    stored_s: float


class Fleet:
    """A fleet whose devices send.

    Args:
        stack: Its broker and controller.
    """

    def __init__(self, stack: Stack) -> None:
        token = stack.ok("token", "create", "--uses", str(DEVICES), "--json").json["token"]
        self._senders = [Sender(stack, f"device-{at:05d}", token) for at in range(DEVICES)]
        self._engine = sa.create_engine(f"sqlite:///{stack.home / DATABASE_FILE}")

    def send(self, kept: Sequence[Sequence[TelemetryBatch]], look_s: float) -> Took:
        """Let the first devices send; return how long it took.

        Args:
            kept: What each of them sends.
            look_s: Between two looks into the database.
        """
        wanted = self._count() + sum(map(len, kept))
        pairs = list(zip(self._senders, kept, strict=False))
        threads = [
            threading.Thread(target=sender.send, args=(batches,), daemon=True)
            for sender, batches in pairs
        ]
        storing: list[float] = []
        start_s = time.perf_counter()
        looking = threading.Thread(
            target=lambda: storing.append(self._stored_s(wanted, look_s)), daemon=True
        )
        for thread in (*threads, looking):
            thread.start()
        for thread in threads:
            thread.join()
        for sender, _ in pairs:
            sender.wait()
        acknowledged_s = time.perf_counter() - start_s
        looking.join()
        return Took(acknowledged_s, storing[0] - start_s)

    def close(self) -> None:
        """End the connections."""
        for sender in self._senders:
            sender.transport.close()
        self._engine.dispose()

    def _stored_s(self, wanted: int, look_s: float) -> float:
        end_s = time.perf_counter() + PATIENCE_S
        while self._count() < wanted and time.perf_counter() < end_s:
            time.sleep(look_s)
        return time.perf_counter()

    def _count(self) -> int:
        with self._engine.connect() as connection:
            return int(connection.scalar(sa.select(sa.func.sum(tables.device.c.batches))) or 0)


def measure(quick: bool) -> list[Row]:
    """Send the same with a log and without, by turns."""
    if PROGRAM is None:
        return [not_measured("telemetry through a log", NO_SERVER, peer="without a log")]
    rounds, number = (QUICK_ROUNDS, QUICK_BATCHES) if quick else (ROUNDS, BATCHES)
    lone = QUICK_LONE if quick else LONE
    chance = random.Random(1)
    many: tuple[list[Took], list[Took]] = ([], [])
    single: tuple[list[Took], list[Took]] = ([], [])
    first = int(SystemClock().now_s() // 60) - (rounds + 1) * number - lone
    with _fleets() as fleets:
        for at in range(rounds + 1):
            kept = kept_by(first + at * number, number)
            for one in chance.sample((0, 1), 2):
                took = fleets[one].send(kept, LOOK_S)
                if at:  # what is made once is made in the first
                    many[one].append(took)
        alone = kept_by(first + (rounds + 1) * number, lone)[0]
        for batch in alone:
            for one in chance.sample((0, 1), 2):
                single[one].append(fleets[one].send([[batch]], LONE_LOOK_S))
    sent = DEVICES * number
    with_log, without = many
    lone_with, lone_without = single
    return [
        against("batches a second, until acknowledged",
                [sent / took.acknowledged_s for took in with_log],
                [sent / took.acknowledged_s for took in without],
                unit="batches/s", peer="without a log"),
        against("batches a second, until stored",
                [sent / took.stored_s for took in with_log],
                [sent / took.stored_s for took in without],
                unit="batches/s", peer="without a log"),
        against("a batch sent until it is acknowledged, idle",
                [took.acknowledged_s * 1e3 for took in lone_with],
                [took.acknowledged_s * 1e3 for took in lone_without],
                unit="ms", peer="without a log"),
        against("a batch sent until it is stored, idle",
                [took.stored_s * 1e3 for took in lone_with],
                [took.stored_s * 1e3 for took in lone_without],
                unit="ms", peer="without a log"),
    ]  # fmt: skip


@contextmanager
def _fleets() -> Iterator[tuple[Fleet, Fleet]]:
    """Run a fleet with a log, and one without."""
    with ExitStack() as ending:
        folder = Path(ending.enter_context(tempfile.TemporaryDirectory(prefix="edgefleet-log-")))
        server = NatsServer(folder)
        ending.callback(server.kill)
        server.start()
        servers = f'servers = ["nats://127.0.0.1:{server.port}"]'
        settings = f"\n[telemetry.log]\n{servers}\nkeep_bytes = {KEEP_BYTES}\n"
        made: list[Fleet] = []
        for text in (settings, ""):
            fleet = Fleet(ending.enter_context(running_stack(text)))
            ending.callback(fleet.close)
            made.append(fleet)
        yield made[0], made[1]


if __name__ == "__main__":
    sys.exit(main("Telemetry with a log and without", measure))

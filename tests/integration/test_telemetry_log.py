"""Telemetry waits in a real NATS JetStream until it is stored: none is lost, none counts twice."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from controller.app.service import Controller as ControllerAsAWhole
from controller.errors import SettingsError
from controller.jetstream import CAME_HEADER, DEVICE_HEADER, Logged, TelemetryLog
from controller.services.telemetry_batches import TelemetryBatches
from controller.store.database import Database
from controller.telemetry_settings import LogConfig, TelemetryConfig
from telemetry.errors import TelemetryStoreError, UnknownMetricError
from telemetry.server.query import parse, run
from telemetry.server.store import TelemetryStore
from tests.simulators.certificates import Authority
from tests.simulators.clock import FakeClock
from tests.simulators.controller_fleet import MemoryAccess, make_home
from tests.simulators.jetstream import NatsServer
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stored_fleet import add_device
from tests.simulators.transport import MemoryHub
from wire.batch_clock import BatchClock
from wire.clock import SystemClock
from wire.codec import from_json, to_msgpack
from wire.telemetry import SumPoint, TelemetryAck, TelemetryBatch

REAL = SystemClock()
TRIES = 60
SENT_AGAIN_S = 2.0
STORE_S = 2.0
DEVICES = ("pi-1", "pi.2", "pi..3")


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
            self.taking.take([(name, batch(self.clock, name, n)) for name, n in sorted(missing)])
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


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path)
    yield made
    made.kill()


@pytest.fixture
def url(sqlite_template: Path, tmp_path: Path) -> str:
    made = tmp_path / "fleet.db"
    made.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{made}"


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


def test_what_is_acknowledged_is_in_the_log_and_what_is_stored_leaves_it(
    server: NatsServer, database_url: str
) -> None:
    server.start()
    with controlled(database_url, server.config()) as controller:
        controller.may_store.clear()
        controller.start()
        controller.works()
        controller.send(some(20))
        assert left(server) == 60
        assert controller.total() == 0
        controller.may_store.set()
        controller.stored(60)
        until(lambda: left(server) == 0, "an empty log")
        ack = controller.acks[-1][1]
        assert ack.reads
        assert ack.at_s == controller.clock.now_s()
        assert ack.boot_id == "b t"


def test_a_batch_that_comes_again_counts_once(server: NatsServer, url: str) -> None:
    server.start()
    with controlled(url, server.config()) as controller:
        controller.start()
        controller.works()
        one = ("pi-1", batch(controller.clock, "pi-1", 1))
        controller.taking.take([one, one])
        controller.taking.take([one])
        until(lambda: sum(len(ack.sequences) for _, ack in controller.acks) == 3, "three answers")
        controller.send(some(3))
        controller.stored(9)
        # Of the same two minutes the log itself drops them, so the store never sees them.
        assert controller.counts["ingest.duplicate"] == 0


def test_without_a_log_nothing_is_acknowledged_and_it_is_told_once(
    server: NatsServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with controlled(url, server.config()) as controller:
        controller.start()
        controller.taking.take([("pi-1", batch(controller.clock, "pi-1", 0))])
        until(lambda: "tried again" in caplog.text, "a warning")
        (need,) = controller.log.needs()
        assert "[telemetry.log]" in need
        assert controller.acks == []
        server.start()
        controller.works()
        controller.send(some(1))
        controller.stored(3)
        assert caplog.text.count("is tried again") == 1


def test_nothing_is_lost_when_the_server_is_killed(server: NatsServer, url: str) -> None:
    server.start()
    with controlled(url, server.config()) as controller:
        controller.may_store.clear()
        controller.start()
        controller.works()
        controller.send(some(10))
        server.kill()
        until(lambda: bool(controller.log.needs()), "a need")
        heard = len(controller.acks)
        controller.taking.take([("pi-1", batch(controller.clock, "pi-1", 10))])
        assert len(controller.acks) == heard
        server.start()
        controller.may_store.set()
        controller.works()
        controller.send(some(20))
        controller.stored(60)
        until(lambda: left(server) == 0, "an empty log")


def test_kills_while_devices_send_lose_nothing(server: NatsServer, url: str) -> None:
    server.start()
    with controlled(url, server.config()) as controller:
        controller.start()
        controller.works()
        for turn in range(1, 4):
            for number in range(20 * turn):
                sent = [(name, batch(controller.clock, name, number)) for name in DEVICES]
                controller.taking.take(sent)
            server.kill()  # at whatever it is
            server.start()
            controller.works()
            controller.send(some(20 * turn))
        controller.stored(180)
        until(lambda: left(server) == 0, "an empty log")


READER = """
import os, signal, sys
from pathlib import Path
sys.path[:0] = [sys.argv[3]]
from tests.integration.test_telemetry_log import Controller
from controller.telemetry_settings import LogConfig

controller = Controller(sys.argv[1], LogConfig(servers=(sys.argv[2],)), fresh=False)

def store(logged):
    controller.taking.store_logged(logged)
    os.kill(os.getpid(), signal.SIGKILL)   # committed, and not acknowledged

controller.start(store)
signal.pause()
"""


def test_a_reader_that_is_killed_between_commit_and_ack_counts_nothing_twice(
    server: NatsServer, url: str
) -> None:
    server.start()
    with controlled(url, server.config()) as controller:
        controller.may_store.clear()
        controller.start()
        controller.works()
        controller.send(some(30))
    assert left(server) == 90
    here = str(Path(__file__).parents[2])
    address = f"nats://127.0.0.1:{server.port}"
    killed = subprocess.run([sys.executable, "-P", "-c", READER, url, address, here], check=False)
    assert killed.returncode == -signal.SIGKILL
    with controlled(url, server.config(), fresh=False) as controller:
        assert 0 < controller.total() <= 90
        before = controller.total()
        assert left(server) == 90
        asked(server, hand_over_again)
        controller.start()
        controller.stored(90)
        until(lambda: left(server) == 0, "an empty log")
        assert controller.counts["ingest.duplicate"] == before


async def hand_over_again(jetstream: Any) -> None:
    """Begin anew with all that is in the log, rather than wait for the end of the patience."""
    await jetstream.delete_consumer("EDGEFLEET_TELEMETRY", "store")


def test_what_nobody_can_read_holds_up_nothing(
    server: NatsServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.start()
    with controlled(url, server.config()) as controller:
        controller.may_store.clear()
        controller.start()
        controller.works()

        async def publish(jetstream: Any) -> None:
            ours = {DEVICE_HEADER: "pi-1", CAME_HEADER: "1.0"}
            await jetstream.publish("EDGEFLEET_TELEMETRY.x", b"\xc1", headers=ours)
            await jetstream.publish("EDGEFLEET_TELEMETRY.x", b"not ours")
            other = batch(controller.clock, "pi.2", 7)
            await jetstream.publish("EDGEFLEET_TELEMETRY.x", other, headers=ours)

        asked(server, publish)
        controller.send(some(2))
        controller.may_store.set()
        controller.stored(6)
        until(lambda: left(server) == 0, "an empty log")
        assert controller.counts["wire.format"] == 2
        assert len(controller.store.dead_letters()) == 2
        assert "not of a controller" in caplog.text


class Strict(TelemetryStore):
    """A store with a fault of its own: it fails with batch 3 of one device."""

    def ingest_all(self, batches: Any, came_s: Any = None) -> Any:
        if any((each.device, each.sequence) == ("pi-1", 3) for each in batches):
            raise ValueError("a fault of ours")
        return super().ingest_all(batches, came_s)


def test_a_batch_that_the_controller_fails_with_holds_up_nothing(
    server: NatsServer, url: str
) -> None:
    server.start()
    with controlled(url, server.config()) as controller:
        strict = Strict(controller.database.engine, controller.clock)
        taking = TelemetryBatches(
            *(controller.database, strict, controller, controller.clock, controller.counts),
            controller._refuse,
        )
        controller.start(taking.store_logged)
        controller.works()
        controller.send(some(5))
        controller.stored(14)
        until(lambda: left(server) == 0, "an empty log")
        (letter,) = strict.dead_letters()
        assert letter.device == "pi-1"


def test_a_clock_is_judged_by_when_a_batch_came_not_by_when_it_is_stored(
    server: NatsServer, url: str
) -> None:
    server.start()
    with controlled(url, server.config()) as controller:
        controller.may_store.clear()
        controller.start()
        controller.works()
        now_s = controller.clock.now_s()
        right = BatchClock(made_at_s=now_s, made_steady_s=1, sent_steady_s=1, shown_s=now_s)
        wrong = BatchClock(made_at_s=now_s, made_steady_s=1, sent_steady_s=1, shown_s=now_s - 9000)
        controller.taking.take([
            ("pi-1", batch(controller.clock, "pi-1", 0, clock=right)),
            ("pi.2", batch(controller.clock, "pi.2", 0, clock=wrong)),
        ])  # fmt: skip
        until(lambda: len(controller.acks) == 2, "two answers")
        answers = dict(controller.acks)
        assert answers["pi-1"].sequences == (0,)
        assert (answers["pi.2"].sequences, answers["pi.2"].again) == ((), (0,))
        controller.clock.advance(3600)
        controller.may_store.set()
        controller.stored(1)
        assert controller.counts["ingest.asked_too_late"] == 0


def test_a_full_log_takes_nothing_and_drops_nothing(server: NatsServer, url: str) -> None:
    server.start()
    with controlled(url, server.config(keep_bytes=1024 * 1024)) as controller:
        controller.may_store.clear()
        controller.start()
        controller.works()
        filling = [batch(controller.clock, "pi-1", n, dropped=0, answers="x" * 64 * 1024)
                   for n in range(20)]  # fmt: skip
        controller.taking.take([("pi-1", each) for each in filling])
        until(lambda: bool(controller.log.needs()), "a need")
        until(lambda: bool(controller.acks), "answers")
        taken = len(controller.acknowledged())
        assert 0 < taken < 20
        assert left(server) == taken
        controller.may_store.set()
        controller.stored(taken)
        missing = [each for n, each in enumerate(filling) if ("pi-1", n) not in
                   controller.acknowledged()]  # fmt: skip
        controller.taking.take([("pi-1", each) for each in missing])
        controller.stored(20)
        controller.works()


def test_a_stream_that_may_drop_telemetry_is_refused(
    server: NatsServer, url: str, caplog: pytest.LogCaptureFixture
) -> None:
    server.start()
    asked(server, lambda it: it.add_stream(name="EDGEFLEET_TELEMETRY", subjects=["a.>"]))
    with controlled(url, server.config()) as controller:
        controller.start()
        until(lambda: "may drop what is not stored" in caplog.text, "a warning")
        assert controller.log.needs()


def test_tls_and_a_password(tmp_path: Path, url: str, caplog: pytest.LogCaptureFixture) -> None:
    authority = Authority(tmp_path, "nats-ca")
    certificate = authority.issue("nats")
    server = NatsServer(
        tmp_path,
        tls={"cert_file": str(certificate.cert_file), "key_file": str(certificate.key_file)},
        authorization={"user": "fleet", "password": "not-to-be-seen"},
    )
    server.start()
    password = tmp_path / "nats.password"
    password.write_text("not-to-be-seen\n")
    settings = {
        "servers": (f"tls://127.0.0.1:{server.port}",),
        "user": "fleet",
        "password_file": str(password),
        "ca_file": str(authority.ca_file),
    }
    try:
        with controlled(url, server.config(**settings)) as controller:
            controller.start()
            controller.works()
            controller.send(some(1))
            controller.stored(3)
        password.write_text("not-this-one\n")
        unknown = settings | {"ca_file": None, "password_file": str(password)}
        for more in (settings, unknown):
            caplog.clear()
            log = TelemetryLog(server.config(**more))
            log.start(lambda _: set())
            until(lambda: "is tried again" in caplog.text, "a warning")
            log.stop(PATIENCE_S)
            assert log.needs()
            assert "not-" not in caplog.text.replace("not-yet", "")
    finally:
        server.kill()


def test_a_server_that_says_it_has_no_tls_gets_no_password(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    password = tmp_path / "nats.password"
    password.write_text("not-to-be-seen\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = LogConfig(
            servers=(f"tls://127.0.0.1:{listener.getsockname()[1]}",),
            user="fleet",
            password_file=str(password),
        )
        log = TelemetryLog(config)
        log.start(lambda _: set())
        listener.settimeout(PATIENCE_S)
        near, _ = listener.accept()
        with near:
            near.settimeout(PATIENCE_S)
            near.sendall(b'INFO {"auth_required":true,"max_payload":1048576,"headers":true}\r\n')
            assert near.recv(65536) == b""
        until(lambda: "it has no TLS" in caplog.text, "a warning")
        log.stop(PATIENCE_S)
    assert "not-to-be-seen" not in caplog.text


def test_an_authority_that_cannot_be_read_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"telemetry log in .*missing.pem: no such file"):
        TelemetryLog(LogConfig(servers=("tls://nats",), ca_file=str(tmp_path / "missing.pem")))


def test_a_controller_says_that_its_log_is_away_until_it_is_there(
    server: NatsServer, url: str, tmp_path: Path
) -> None:
    folder = tmp_path / "home"
    folder.mkdir()
    home = make_home(folder, url)
    telemetry = TelemetryConfig(log=server.config())
    config = msgspec.structs.replace(home, telemetry=telemetry)
    controller = ControllerAsAWhole(config, MemoryAccess(), connect=MemoryHub().connect)
    controller.start()
    try:
        assert [each for each in controller.health().needs if "NATS JetStream" in each]
        server.start()
        until(lambda: not controller.health().needs, lambda: str(controller.health().needs))
    finally:
        controller.stop()

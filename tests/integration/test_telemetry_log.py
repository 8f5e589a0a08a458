"""Telemetry waits in a real NATS JetStream until it is stored: none is lost, none counts twice."""

from __future__ import annotations

import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from agent.link.telemetry import BATCHES
from controller.app.service import Controller as ControllerAsAWhole
from controller.errors import SettingsError
from controller.jetstream import (
    CAME_HEADER,
    DEVICE_HEADER,
    MAX_AHEAD,
    Logged,
    TelemetryLog,
    in_turn,
)
from controller.services.telemetry_batches import FAILS, TelemetryBatches
from controller.telemetry_settings import LogConfig, TelemetryConfig
from telemetry.errors import TelemetryStoreError
from telemetry.server.ingest import WINDOW
from telemetry.server.store import TelemetryStore
from tests.simulators.certificates import Authority
from tests.simulators.controller_fleet import MemoryAccess, make_home
from tests.simulators.jetstream import NatsServer
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.telemetry_log import (
    DEVICES,
    asked,
    batch,
    controlled,
    hand_over_again,
    killing_reader,
    left,
    some,
)
from tests.simulators.transport import MemoryHub
from wire.batch_clock import BatchClock


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
    assert killing_reader(url, server, "acknowledgement").wait(PATIENCE_S) == -signal.SIGKILL
    with controlled(url, server.config(), fresh=False) as controller:
        assert 0 < controller.total() <= 90
        before = controller.total()
        assert left(server) == 90
        asked(server, hand_over_again)
        controller.start()
        controller.stored(90)
        until(lambda: left(server) == 0, "an empty log")
        assert controller.counts["ingest.duplicate"] == before


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


class Failing(TelemetryStore):
    """A store whose database fails: with batch 3 of one device, or with all."""

    fails_with_all = False

    def ingest_all(self, batches: Any, came_s: Any = None) -> Any:
        failing = self.fails_with_all or any(
            (each.device, each.sequence) == ("pi-1", 3) for each in batches
        )
        if failing:
            raise TelemetryStoreError("out of something")
        return super().ingest_all(batches, came_s)

    def bury(self, device: str, reason: str, payload: bytes) -> None:
        if self.fails_with_all:
            raise TelemetryStoreError("out of something")
        super().bury(device, reason, payload)


def test_a_batch_that_the_database_fails_with_again_and_again_is_a_dead_letter(
    server: NatsServer, url: str
) -> None:
    with controlled(url, server.config()) as controller:
        failing = Failing(controller.database.engine, controller.clock)
        taking = TelemetryBatches(
            *(controller.database, failing, controller, controller.clock, controller.counts),
            controller._refuse,
        )
        numbers = [0, 1, 2, 3, 4]
        logged = [Logged("pi-1", batch(controller.clock, "pi-1", n), 1.0) for n in numbers]
        failing.fails_with_all = True
        for _ in range(2 * FAILS):  # that is nobody's fault
            with pytest.raises(TelemetryStoreError):
                taking.store_logged(logged)
        failing.fails_with_all = False
        assert taking.store_logged(logged[:3]) == set()
        assert failing.dead_letters() == []
        unreadable: set[int] = set()
        tries = 0
        while not unreadable and tries <= FAILS:
            tries += 1
            try:
                unreadable = taking.store_logged(logged)
            except TelemetryStoreError:
                assert controller.total() >= 3
        assert unreadable == {3}
        assert controller.total() == 4
        (letter,) = failing.dead_letters()
        assert letter.reason == "out of something"


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


def test_more_than_fits_on_the_way_is_taken_as_far_as_it_fits(server: NatsServer, url: str) -> None:
    server.start()
    with controlled(url, server.config(keep_bytes=32 * 1024 * 1024)) as controller:
        controller.start()
        controller.works()
        large = [
            ("pi-1", batch(controller.clock, "pi-1", n, answers="x" * 200 * 1024))
            for n in range(90)
        ]
        controller.taking.take(large)
        until(lambda: bool(controller.acks), "answers")
        assert 0 < len(controller.acknowledged()) < 90
        controller.taking.take(large[len(controller.acknowledged()) :])
        controller.stored(90)


@pytest.mark.parametrize(
    ("more", "fault"),
    [
        ({"retention": "limits"}, "may drop what is not stored"),
        ({"discard": "old"}, "may drop what is not stored"),
        ({"max_age": 3600.0}, "may drop what is not stored"),
        ({"max_msgs_per_subject": 1000}, "may drop what is not stored"),
        ({"storage": "memory"}, "may drop what is not stored"),
        ({"max_msg_size": 100_000}, "the max_msg_size of its stream"),
    ],
)
def test_a_stream_that_may_drop_telemetry_or_not_take_all_is_refused(
    server: NatsServer,
    url: str,
    caplog: pytest.LogCaptureFixture,
    more: dict[str, Any],
    fault: str,
) -> None:
    server.start()
    good = {"retention": "workqueue", "discard": "new", "subjects": ["EDGEFLEET_TELEMETRY.>"]}
    asked(server, lambda it: it.add_stream(name="EDGEFLEET_TELEMETRY", **(good | more)))
    with controlled(url, server.config()) as controller:
        controller.start()
        until(lambda: fault in caplog.text, "a warning")
        assert controller.log.needs()


def test_what_another_stream_took_is_not_acknowledged(server: NatsServer, url: str) -> None:
    server.start()
    good = {"retention": "workqueue", "discard": "new"}
    asked(server, lambda it: it.add_stream(name="OTHER", subjects=["EDGEFLEET_TELEMETRY.>"]))
    asked(
        server, lambda it: it.add_stream(name="EDGEFLEET_TELEMETRY", subjects=["elsewhere"], **good)
    )
    with controlled(url, server.config()) as controller:
        controller.start()
        controller.works()
        controller.taking.take([("pi-1", batch(controller.clock, "pi-1", 0))])
        until(lambda: bool(controller.log.needs()), "a need")
        assert controller.acks == []


def test_a_server_that_answers_nothing_is_told_and_used_when_it_answers(
    server: NatsServer, url: str
) -> None:
    server.start()
    with controlled(url, server.config()) as controller:
        controller.start()
        controller.works()
        server.pause()
        controller.taking.take([("pi-1", batch(controller.clock, "pi-1", 0))])
        until(lambda: bool(controller.log.needs()), "a need")
        assert controller.acks == []
        server.go_on()
        controller.works()
        controller.send(some(3))
        controller.stored(9)


@pytest.mark.parametrize(
    ("oldest", "places", "ready"),
    [
        (1, [1, 2, 3], 3),
        (1, range(1, 500), 499),
        (1, [2, 3, 4], 3),
        (1, range(101, 301), 141),  # up to 241, which is 240 ahead
        (1, [1, 300, 301], 1),
        (1, [300], 0),
        (300, [300, 301], 2),
        (5, [4], 1),
    ],
)
def test_what_is_far_ahead_of_what_another_reader_has_waits(
    oldest: int, places: Sequence[int], ready: int
) -> None:
    assert in_turn(oldest, places) == ready


def test_the_store_knows_of_all_batches_that_may_come_late() -> None:
    assert MAX_AHEAD + 2 * BATCHES <= WINDOW


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

"""Two controllers share a log of telemetry and a PostgreSQL: each batch is stored once.

Both are real. Whatever is killed: a controller between commit and acknowledgement, one that has
taken batches and stored none, nats-server, the connections of PostgreSQL.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.app.home import CONFIG_FILE
from controller.cli.simulation import Simulation
from controller.jetstream import Logged
from controller.jetstream_server import CONSUMER
from examples.digits.box import free_port
from tests.integration.conftest import PostgresServer
from tests.integration.test_two_controllers import DEVICES as SIMULATED
from tests.integration.test_two_controllers import Pair
from tests.simulators.jetstream import NatsServer
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import Stack, fleet, shared, simulated
from tests.simulators.telemetry_log import (
    DEVICES,
    Controller,
    asked,
    batch,
    controlled,
    killing_reader,
    left,
    some,
)
from wire.errors import FleetError

pytestmark = pytest.mark.postgresql
STREAM = "EDGEFLEET_TELEMETRY"
KILL_CONNECTIONS = sa.text(
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    made = NatsServer(tmp_path)
    made.start()
    yield made
    made.kill()


@pytest.fixture
def url(postgres_server: PostgresServer, postgres_template: str) -> Iterator[str]:
    name = postgres_server.create_database(postgres_template)
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    made = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    yield made
    made.dispose()


def kill_connections(engine: sa.Engine) -> None:
    """End all connections with the database, as a restart of PostgreSQL does."""
    with engine.connect() as connection:
        connection.execute(KILL_CONNECTIONS)


class Counting:
    """A controller's reading, counted."""

    def __init__(self, controller: Controller) -> None:
        self.read = 0
        self._controller = controller

    def store(self, logged: Sequence[Logged]) -> set[int]:
        unreadable = self._controller.store_logged(logged)
        self.read += len(logged)
        return unreadable


def test_two_controllers_take_and_read_and_each_batch_is_stored_once_whatever_is_killed(
    server: NatsServer, url: str, engine: sa.Engine
) -> None:
    with (
        controlled(url, server.config()) as one,
        controlled(url, server.config(), fresh=False) as two,
    ):
        both = (one, two)
        counted = [Counting(controller) for controller in both]
        for controller, counting in zip(both, counted, strict=True):
            controller.start(counting.store)
            controller.works()
        for turn in range(6):
            numbers = range(40 * turn, 40 * (turn + 1))
            for number in numbers:
                # As the broker deals messages out; the controllers have the same clock.
                controller = both[number % 2]
                with suppress(FleetError):
                    controller.taking.take([
                        (name, batch(controller.clock, name, number)) for name in DEVICES
                    ])  # fmt: skip
                if number == numbers[20] and turn % 2:
                    kill_connections(engine)
                elif number == numbers[20]:
                    server.kill()
                    server.start()
            for controller in both:
                controller.works()
            for controller, parity in zip(both, (0, 1), strict=True):
                controller.send({(name, n) for name in DEVICES for n in numbers[parity::2]})
        one.stored(720)
        until(lambda: left(server) == 0, "an empty log")
        assert all(counting.read for counting in counted)


@pytest.mark.parametrize("before", ["commit", "acknowledgement"])
def test_a_reader_that_is_killed_loses_nothing_while_others_take_and_read(
    server: NatsServer, url: str, before: str
) -> None:
    with controlled(url, server.config()) as one:
        one.start()
        one.works()
        number = 0

        def went_on() -> bool:
            nonlocal number
            one.taking.take([(name, batch(one.clock, name, number)) for name in DEVICES])
            number += 1
            return killed.poll() is not None

        for _ in range(2):
            killed = killing_reader(url, server, before)
            until(went_on, "a reader that is killed", step_s=0.05)
            assert killed.returncode == -signal.SIGKILL
        one.send(some(number))
        one.stored(number * len(DEVICES))
        until(lambda: left(server) == 0, "an empty log")


def test_what_a_killed_reader_had_is_not_taken_for_stored_when_its_device_is_far_ahead(
    server: NatsServer, url: str
) -> None:
    wanted = {("pi-1", number) for number in range(700)}
    with controlled(url, server.config()) as one:
        one.may_store.clear()
        one.start()
        one.works()
        one.send(wanted)
    killed = killing_reader(url, server, "commit")
    assert killed.wait(PATIENCE_S) == -signal.SIGKILL
    with controlled(url, server.config(), fresh=False) as two:
        two.start()
        two.stored(700)
        until(lambda: left(server) == 0, "an empty log")


def test_a_controller_that_stops_leaves_what_it_was_storing_to_the_other(
    server: NatsServer, url: str
) -> None:
    going_on = threading.Event()
    with ExitStack() as ending:
        one = ending.enter_context(controlled(url, server.config()))
        two = ending.enter_context(controlled(url, server.config(), fresh=False))
        ending.callback(going_on.set)
        begun = threading.Event()

        def waits(logged: Sequence[Logged]) -> set[int]:
            begun.set()
            assert going_on.wait(PATIENCE_S)
            return one.store_logged(logged)

        one.start(waits)
        one.works()
        one.send(some(5))
        until(begun.is_set, "a group that is being stored")
        stopping = threading.Thread(target=one.log.stop, args=(PATIENCE_S,))
        stopping.start()
        two.start()
        two.stored(15)
        going_on.set()
        stopping.join(PATIENCE_S)
        assert not stopping.is_alive()
        until(lambda: left(server) == 0, "an empty log")
        assert two.total() == 15


def test_devices_are_told_to_forget_their_telemetry_while_the_database_is_away(
    server: NatsServer, url: str, postgres_server: PostgresServer
) -> None:
    name = sa.make_url(url).database
    assert name is not None
    with controlled(url, server.config()) as one:
        one.start()
        one.works()
        one.send(some(5))
        one.stored(15)
        postgres_server.shut(name)
        one.taking.take([("stranger", batch(one.clock, "stranger", 0))])
        one.send(some(10))
        assert left(server) == 15
        assert one.counts["ingest.stranger"] == 1
        postgres_server.open(name)
        one.stored(30)
        until(lambda: left(server) == 0, "an empty log")


@pytest.mark.parametrize("what", ["consumer", "stream"])
def test_readers_go_on_when_somebody_deletes_what_they_read_from(
    server: NatsServer, url: str, what: str
) -> None:
    with (
        controlled(url, server.config()) as one,
        controlled(url, server.config(), fresh=False) as two,
    ):
        for controller in (one, two):
            controller.start()
            controller.works()
        one.send(some(5))
        one.stored(15)
        until(lambda: left(server) == 0, "an empty log")
        if what == "consumer":
            asked(server, lambda jetstream: jetstream.delete_consumer(STREAM, CONSUMER))
        else:
            asked(server, lambda jetstream: jetstream.delete_stream(STREAM))
        two.send(some(10))
        one.stored(30)
        until(lambda: left(server) == 0, "an empty log")


@pytest.fixture
def pair(url: str, engine: sa.Engine, server: NatsServer, tmp_path: Path) -> Iterator[Pair]:
    one = Stack(home=tmp_path / "one/home", api_port=free_port(), broker_port=free_port())
    made = fleet(
        "init", str(one.home), "--api-port", str(one.api_port), "--broker-port",
        str(one.broker_port), "--device-port", str(free_port()), "--database", url,
    )  # fmt: skip
    assert made.code == 0, made.err
    two = shared(one, tmp_path / "two", url)
    for stack in (one, two):
        with (stack.home / CONFIG_FILE).open("a") as settings:
            settings.write(
                f'\n[telemetry.log]\nservers = ["nats://127.0.0.1:{server.port}"]\n'
                f"keep_bytes = {16 * 1024**2}\n"
            )
    try:
        one.start()
        two.run("controller", "run")
        until(two.is_healthy, lambda: f"a second controller: {two.log}")
        yield Pair((one, two), engine)
    finally:
        for process in (*one.processes, *two.processes):
            process.kill()
            process.wait(PATIENCE_S)


@pytest.mark.thorough
@pytest.mark.broker
@pytest.mark.xdist_group("two_controllers")
def test_a_fleet_loses_no_telemetry_when_its_parts_are_killed(
    pair: Pair, server: NatsServer, engine: sa.Engine
) -> None:
    one, two = pair.stacks

    def counted() -> int:
        return sum(count for _, count in pair.windows())

    with Simulation([simulated(one, SIMULATED, telemetry_s=0.5)]) as simulation:

        def goes_on(since: int) -> bool:
            simulation.check()
            return counted() >= since + 2 * SIMULATED

        until(lambda: simulation.tally.online == SIMULATED, "all devices")
        for turn in range(4):
            until(partial(goes_on, counted()), lambda: f"telemetry: {one.log}{two.log}")
            if turn == 0:
                server.kill()
                server.start()
            elif turn == 1:
                kill_connections(engine)
            else:
                stack = pair.stacks[turn % 2]
                stack.processes[-1].kill()
                stack.processes.pop().wait(PATIENCE_S)
                until(partial(goes_on, counted()), lambda: f"telemetry of one: {one.log}{two.log}")
                stack.run("controller", "run")
                until(stack.is_healthy, lambda: f"a controller: {one.log}{two.log}")
        until(pair.is_whole, lambda: f"all telemetry: {pair.windows()}")
        assert simulation.tally.batches_lost == 0
    until(lambda: left(server) == 0, "an empty log")
    for window, count in pair.windows():
        held = sum(map(window.holds, range(window.newest + 1)))
        assert count == held, "each batch is counted once"

"""Two controllers share a fleet, each a process, with a real broker and one PostgreSQL.

The one that leads is killed in the middle of a rollout, while telemetry comes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import sqlalchemy as sa

from controller.cli.simulation import Simulation
from controller.domain.states import DeploymentState
from controller.store.rollout_tables import DeploymentRow, RolloutEventRow
from controller.store.sole import Work
from examples.digits.box import free_port
from telemetry.server import tables
from telemetry.server.ingest import Window
from tests.integration.conftest import PostgresServer
from tests.simulators.packages import package, variant
from tests.simulators.patience import PATIENCE_S, until
from tests.simulators.stack import Stack, fleet, shared, simulated
from wire.trust.envelope import SigningKey

pytestmark = [
    pytest.mark.broker,
    pytest.mark.postgresql,
    pytest.mark.xdist_group("two_controllers"),
]
DEVICES = 12


@dataclass
class Pair:
    """Two controllers of one fleet; the first has the broker, too."""

    stacks: tuple[Stack, Stack]
    engine: sa.Engine

    def leader(self) -> Stack | None:
        """Return the one that holds the lock."""
        asked = sa.text(
            "SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) "
            "WHERE locktype = 'advisory' AND objid = :lock AND granted"
        )
        with self.engine.connect() as connection:
            name = connection.execute(asked, {"lock": int(Work.LEAD)}).scalar()
        return next((stack for stack in self.stacks if stack.home.parent.name == name), None)

    def windows(self) -> list[tuple[Window, int]]:
        """Return which batches of each device are counted, and how many were added up."""
        query = sa.select(
            tables.batch.c.newest, tables.batch.c.seen, tables.device.c.batches
        ).join_from(tables.batch, tables.device, tables.batch.c.device == tables.device.c.device)
        with self.engine.connect() as connection:
            rows = connection.execute(query).all()
        return [
            (Window(newest, int.from_bytes(seen, "big")), count) for newest, seen, count in rows
        ]

    def is_whole(self) -> bool:
        """Tell whether no batch is missing before one that is counted."""
        found = self.windows()
        return len(found) == DEVICES and all(
            window.holds(number) for window, _ in found for number in range(window.newest)
        )


@pytest.fixture
def pair(postgres_server: PostgresServer, postgres_template: str, tmp_path: Path) -> Iterator[Pair]:
    url = postgres_server.url(postgres_server.create_database(postgres_template))
    one = Stack(home=tmp_path / "one/home", api_port=free_port(), broker_port=free_port())
    made = fleet(
        "init", str(one.home), "--api-port", str(one.api_port), "--broker-port",
        str(one.broker_port), "--device-port", str(free_port()), "--database", url,
    )  # fmt: skip
    assert made.code == 0, made.err
    two = shared(one, tmp_path / "two", url)
    engine = sa.create_engine(url)
    try:
        one.start()
        two.run("controller", "run")
        until(two.is_healthy, lambda: f"a second controller: {two.log}")
        yield Pair((one, two), engine)
    finally:
        engine.dispose()
        for process in (*one.processes, *two.processes):
            process.kill()
            process.wait(PATIENCE_S)


def test_a_killed_controller_takes_nothing_with_it_and_nothing_is_done_twice(pair: Pair) -> None:
    one, two = pair.stacks
    assert pair.leader() is one
    signed = package(
        "1",
        [(variant("best"), b"model" * 50_000)],
        key=SigningKey(one.release_key.read_bytes()),
        chunk_bytes=65_536,
    )
    signed.write_to(one.home.parent / "1")
    two.ok(
        "release", "publish", str(one.home.parent / "1"), "--key", str(one.release_key),
    )  # fmt: skip
    plan = simulated(one, DEVICES, telemetry_s=1.0, speed=20.0, fetch_bytes=1024 * 1024)
    with Simulation([plan]) as simulation:
        until(lambda: simulation.tally.online == DEVICES, lambda: f"devices: {one.log}{two.log}")
        for stack in pair.stacks:
            enrolled = (stack.home.parent / "stack.log").read_text()
            assert "is enrolled" in enrolled, "the broker deals messages out to both"
        rollout = two.ok(
            "rollout", "create", "digits:1", "--stage", "50%", "--stage", "100%",
            "--max-in-flight", "2", "--json",
        ).json["id"]  # fmt: skip
        until(lambda: simulation.tally.installs_done >= 2, "a first install")
        one.processes[1].kill()
        assert simulation.tally.installs_done < DEVICES

        def ended() -> bool:
            simulation.check()
            return bool(two.ok("rollout", "show", rollout, "--json").json["finished_at_s"])

        until(ended, lambda: f"an end: {two.log}")
        assert pair.leader() is two
        until(pair.is_whole, lambda: f"all telemetry: {pair.windows()}")
        # What devices have done is told by their process each second.
        until(lambda: simulation.tally.installs_done >= DEVICES, "the last install to be told")
        tally = simulation.tally
    assert tally.batches_lost == 0
    assert (tally.installs_begun, tally.installs_done) == (DEVICES, DEVICES)
    with pair.engine.connect() as connection:
        states = connection.execute(
            sa.select(DeploymentRow.state, sa.func.count()).group_by(DeploymentRow.state)
        ).all()
        actions = list(
            connection.scalars(
                sa.select(RolloutEventRow.action).where(
                    RolloutEventRow.action.in_(("advance", "finish"))
                )
            )
        )
    assert [tuple(row) for row in states] == [(DeploymentState.SUCCEEDED, DEVICES)]
    assert sorted(actions) == ["advance", "finish"]
    for window, count in pair.windows():
        assert count == window.seen.bit_count(), "each batch is counted once"

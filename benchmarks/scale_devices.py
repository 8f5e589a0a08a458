"""Whole fleets: a controller, a broker and simulated devices, each a process as users run it.

For each size: devices enrol and connect, take a release in stages, report figures once a minute,
and meet a rollout that halts and one that is aborted. The devices are those of `fleet simulate`,
over TLS with certificates of their own; installs go ten times faster than a device's, so that the
controller has more to do at one time than with devices.

- processor time and memory are those of the controller's process (`/proc`), and of the broker's;
- growth: the slope of log processor time over log devices, from the least size to the greatest; the
  spread is that of the slopes between neighbouring sizes. 1 grows as the fleet does;
- what must hold is not measured but asserted: every device has an outcome, and none begins an
  install after a halt or an abort. The script ends with an error where it does not.

Statements by piece of work are in `benchmarks/scale_rows.py`; here PostgreSQL tells how many
transactions there were.
`EDGEFLEET_BENCH_SIZES` changes the fleets, as `100,1000`, `EDGEFLEET_BENCH_KINDS` leaves out a
database. 10,000 devices need `ulimit -n` above 11,000 for the broker.
"""

from __future__ import annotations

import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import sqlalchemy as sa

from benchmarks.databases.postgres import postgres
from benchmarks.harness import Row, main, not_measured
from benchmarks.scale_rows import slope
from controller.cli.simulation import Simulation, split
from controller.domain.states import DeploymentState
from controller.store.device_tables import DeviceRow
from controller.store.rollout_tables import DeploymentRow, RolloutEventRow, RolloutRow
from examples.digits.box import free_port
from tests.simulators.packages import package, variant
from tests.simulators.stack import Stack, fleet, simulated
from wire.simulation import Tally
from wire.trust.envelope import SigningKey

SIZES: Final = tuple(
    int(each) for each in os.environ.get("EDGEFLEET_BENCH_SIZES", "100,1000,10000").split(",")
)
QUICK_SIZES: Final = (20, 60)
KINDS: Final = os.environ.get("EDGEFLEET_BENCH_KINDS", "SQLite,PostgreSQL").split(",")
PATIENCE_S: Final = 1800.0
SETTLED_S: Final = 10.0
"""So long nothing may begin after a halt."""

REPORTING_S: Final = 120.0
QUICK_REPORTING_S: Final = 60.0
FAULTS: Final = {"crash_after_install": 0.05}
VERSIONS: Final = ("1", "2", "3")
MODEL_BYTES: Final = 400_000
TICKS_PER_S: Final = os.sysconf("SC_CLK_TCK")
WAITING: Final = (DeploymentState.PENDING, DeploymentState.ASSIGNED)
STAGES: Final = ("--stage", "10%", "--stage", "50%", "--stage", "100%")


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a part of the life of a fleet cost."""

    wall_s: float
    controller_s: float
    """Processor time."""

    broker_s: float
    messages: int


@dataclass
class Fleet:
    """A fleet that is being measured."""

    stack: Stack
    simulation: Simulation
    engine: sa.Engine
    devices: int
    phases: dict[str, Phase] = field(default_factory=dict)

    @property
    def tally(self) -> Tally:
        """What the devices have done so far."""
        self.simulation.check()
        return self.simulation.tally

    def measured(self, name: str, work: Callable[[], None]) -> None:
        """Do a part of the work, and note what it cost."""
        began_s, before = time.monotonic(), self._processor_s()
        messages = self._messages()
        work()
        after = self._processor_s()
        self.phases[name] = phase = Phase(
            wall_s=time.monotonic() - began_s,
            controller_s=after[1] - before[1],
            broker_s=after[0] - before[0],
            messages=self._messages() - messages,
        )
        print(f"{self.devices} devices, {name}: {phase}", file=sys.stderr, flush=True)

    def rollout(self, version: str, *options: str) -> str:
        """Create a rollout; return its identifier."""
        made = self.stack.ok(
            "rollout", "create", f"digits:{version}", "--max-in-flight", str(self.devices),
            *STAGES, *options, "--json",
        )  # fmt: skip
        return str(made.json["id"])

    def until_state(self, rollout: str, *states: str) -> None:
        """Wait until a rollout has one of some states."""
        asked = sa.select(RolloutRow.state).where(RolloutRow.id == rollout)

        def is_there() -> bool:
            self.simulation.check()
            with self.engine.connect() as connection:
                return connection.execute(asked).scalar_one() in states

        until(is_there, f"rollout {rollout} to be {' or '.join(states)}")

    def count(self, *where: sa.ColumnElement[bool]) -> int:
        """Return how many deployments there are of a kind."""
        with self.engine.connect() as connection:
            counted = sa.select(sa.func.count()).select_from(DeploymentRow).where(*where)
            return int(connection.execute(counted).scalar_one())

    def online(self) -> int:
        """Return how many devices the controller knows as online."""
        with self.engine.connect() as connection:
            counted = sa.select(sa.func.count()).select_from(DeviceRow).where(DeviceRow.online)
            return int(connection.execute(counted).scalar_one())

    def at_s(self, rollout: str, action: str) -> float:
        """Return when a rollout did something."""
        with self.engine.connect() as connection:
            asked = sa.select(sa.func.max(RolloutEventRow.at_s)).where(
                RolloutEventRow.rollout == rollout, RolloutEventRow.action == action
            )
            return float(connection.execute(asked).scalar_one())

    def stored_bytes(self) -> int:
        """Return the size of the database."""
        with self.engine.connect() as connection:
            if self.engine.dialect.name == "postgresql":
                size = connection.exec_driver_sql("SELECT pg_database_size(current_database())")
            else:
                size = connection.exec_driver_sql(
                    "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
                )
            return int(size.scalar_one())

    def transactions(self) -> int | None:
        """Return how many transactions PostgreSQL has ended; None for SQLite."""
        if self.engine.dialect.name != "postgresql":
            return None
        with self.engine.connect() as connection:
            asked = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"  # noqa: E501
            return int(connection.exec_driver_sql(asked).scalar_one())

    def resident_bytes(self) -> int:
        """Return the greatest memory of the controller so far."""
        status = Path(f"/proc/{self.stack.processes[1].pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    def _processor_s(self) -> tuple[float, float]:
        broker, controller = (processor_s(p.pid) for p in self.stack.processes)
        return broker, controller

    def _messages(self) -> int:
        return self.simulation.tally.sent + self.simulation.tally.received


def processor_s(pid: int) -> float:
    """Return the processor time that a process has had, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def until(question: Callable[[], bool], what: str) -> None:
    """Wait for something.

    Raises:
        SystemExit: It did not come.
    """
    end_s = time.monotonic() + PATIENCE_S
    while not question():
        if time.monotonic() > end_s:
            raise SystemExit(f"waited in vain for {what}")
        time.sleep(0.5)


def must(holds: bool, what: str) -> None:
    """End the script where something does not hold that must.

    Raises:
        SystemExit: It does not hold.
    """
    if not holds:
        raise SystemExit(f"this must hold, and does not: {what}")


@contextmanager
def running(folder: Path, devices: int, url: str) -> Iterator[Fleet]:
    """Start a controller, a broker and devices for the length of a `with` block.

    Args:
        folder: For their files.
        devices: How many.
        url: The database; empty for SQLite in the folder.
    """
    stack = Stack(home=folder / "home", api_port=free_port(), broker_port=free_port())
    made = fleet(
        "init", str(stack.home), "--api-port", str(stack.api_port), "--broker-port",
        str(stack.broker_port), "--device-port", str(free_port()),
        *(("--database", url) if url else ()),
    )  # fmt: skip
    must(made.code == 0, made.err)
    with ExitStack() as ending:
        ending.callback(stack.stop)
        stack.start()
        key = SigningKey(stack.release_key.read_bytes())
        for version in VERSIONS:
            content = version.encode() * MODEL_BYTES
            signed = package(version, [(variant("best"), content)], key=key, chunk_bytes=131_072)
            signed.write_to(folder / version)
            stack.ok("release", "publish", str(folder / version))
        plan = simulated(stack, devices, speed=10.0, faults=FAULTS)
        engine = sa.create_engine(url or f"sqlite:///{stack.home / 'controller.db'}")
        ending.callback(engine.dispose)
        processes = max(1, devices // 2500)
        simulation = ending.enter_context(Simulation(split(plan, processes)))
        yield Fleet(stack, simulation, engine, devices)


def live(on: Fleet, reporting_s: float) -> None:
    """Let a fleet live: enrol, take a release, report, halt, abort."""
    devices, rollouts = on.devices, DeploymentRow.rollout

    on.measured("enrol and connect", lambda: until(lambda: on.online() == devices, "all online"))

    first = ""

    def staged() -> None:
        nonlocal first
        first = on.rollout("1", "--max-failures", str(devices))
        on.until_state(first, "succeeded")

    on.measured("staged rollout", staged)
    ended = on.count(rollouts == first, DeploymentRow.finished_at_s.is_not(None))
    must(ended == devices, f"{ended} of {devices} devices have an outcome")
    must(on.count(rollouts == first, DeploymentRow.state.in_(WAITING)) == 0, "none waits")

    on.measured("telemetry once a minute", lambda: time.sleep(reporting_s))
    must(on.tally.batches_lost == 0, "no batch of telemetry is lost")

    halted = ""

    def halts() -> None:
        nonlocal halted
        halted = on.rollout("2")
        on.until_state(halted, "halted")

    on.measured("rollout that halts", halts)
    _none_begins(on, halted, on.at_s(halted, "halt"))

    aborted = ""

    def aborts() -> None:
        nonlocal aborted
        aborted = on.rollout("3", "--max-failures", str(devices))
        until(lambda: on.count(rollouts == aborted, DeploymentRow.started_at_s.is_not(None)) > 0,
              "a first device that begins")  # fmt: skip
        on.stack.ok("rollout", "abort", aborted)
        until(lambda: on.count(rollouts == aborted, DeploymentRow.state.in_(WAITING)) == 0,
              "none that waits")  # fmt: skip

    on.measured("rollout that is aborted", aborts)
    _none_begins(on, aborted, on.at_s(aborted, "abort"))


def _none_begins(on: Fleet, rollout: str, at_s: float) -> None:
    """Hold that no device begins an install of a rollout that has ended.

    Those that had their order by then go on, and are waited for: on a busy machine it takes long
    until it arrives.
    """
    flying = (DeploymentRow.rollout == rollout, DeploymentRow.state == DeploymentState.ASSIGNED)
    until(lambda: on.count(*flying) == 0, "those in flight")
    time.sleep(SETTLED_S / 2.0)
    begun = on.tally.installs_begun
    time.sleep(SETTLED_S)
    must(on.tally.installs_begun == begun, "no device begins an install after the end")
    late = on.count(DeploymentRow.rollout == rollout, DeploymentRow.started_at_s > at_s)
    must(late == 0, f"{late} installs were begun after the end")


def rows_of(kind: str, server: str, *, quick: bool) -> Iterator[Row]:
    """Measure fleets of all sizes.

    Args:
        kind: The database.
        server: URL of a PostgreSQL server; empty for SQLite.
        quick: Small fleets.

    Yields:
        The rows.
    """
    told: dict[str, dict[int, Phase]] = {}
    for devices in QUICK_SIZES if quick else SIZES:
        with tempfile.TemporaryDirectory(prefix="edgefleet-scale-") as made:
            url = _database(server, f"fleet_{devices}") if server else ""
            with running(Path(made), devices, url) as on:
                live(on, QUICK_REPORTING_S if quick else REPORTING_S)
                for name, phase in on.phases.items():
                    told.setdefault(name, {})[devices] = phase
                ends = list(_end_rows(kind, on))
                print(*ends, sep="\n", file=sys.stderr, flush=True)
                yield from ends
    for name, phases in told.items():
        yield from _phase_rows(kind, name, phases)


def _end_rows(kind: str, on: Fleet) -> Iterator[Row]:
    title = f"{kind}: {on.devices:,} devices, in all"
    tally = on.tally
    yield Row(name=f"{title}: memory", value=on.resident_bytes() / 2**20, unit="MiB")
    yield Row(name=f"{title}: database", value=on.stored_bytes() / 2**20, unit="MiB")
    yield Row(name=f"{title}: messages", value=tally.sent + tally.received, unit="messages")
    if (transactions := on.transactions()) is not None:
        yield Row(name=f"{title}: transactions", value=transactions, unit="transactions")


def _phase_rows(kind: str, name: str, phases: Mapping[int, Phase]) -> Iterator[Row]:
    for devices, phase in phases.items():
        yield Row(
            name=f"{kind}: {name}, {devices:,} devices",
            value=phase.controller_s,
            unit="s processor",
            spread=f"wall {phase.wall_s:.3g} s, broker {phase.broker_s:.3g} s, "
            f"{phase.messages} messages",
        )
    sizes = sorted(phases)
    if len(sizes) > 1 and all(phase.controller_s > 0.0 for phase in phases.values()):
        slopes = [_slope(phases, pair) for pair in itertools.pairwise(sizes)]
        yield Row(
            name=f"{kind}: {name}: growth",
            value=_slope(phases, (sizes[0], sizes[-1])),
            unit="exponent",
            spread=f"{min(slopes):.2f} to {max(slopes):.2f}",
        )


def _slope(phases: Mapping[int, Phase], sizes: Sequence[int]) -> float:
    return slope({size: phases[size].controller_s for size in sizes})


def _database(server: str, name: str) -> str:
    """Make a database on a server; return its URL."""
    url = sa.make_url(server)
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
    return url.set(database=name).render_as_string(hide_password=False)


def measure(quick: bool) -> list[Row]:
    """Measure fleets with SQLite and with PostgreSQL.

    Args:
        quick: Small fleets.

    Returns:
        The rows.
    """
    rows: list[Row] = []
    if "SQLite" in KINDS:
        rows += rows_of("SQLite", "", quick=quick)
    if "PostgreSQL" in KINDS:
        with postgres() as url:
            if url is None:
                rows.append(not_measured("PostgreSQL", "it is not installed"))
            else:
                rows += rows_of("PostgreSQL", url, quick=quick)
    return rows


if __name__ == "__main__":
    sys.exit(main("Whole fleets of simulated devices", measure))

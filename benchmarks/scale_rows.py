"""Rollouts of large fleets: what the controller's work costs, and how that grows with the fleet.

Fleets of rows alone, without devices: 1,000, 10,000 and 100,000 devices with a rollout in progress
(`benchmarks/scale/fleet.py`). Of each piece of work:

- how long it takes and which part of that is processor time, and how many statements it sends;
- the write lock: the longest transaction that may write. SQLite has one at a time, and what waits
  for it longer than `BUSY_TIMEOUT_MS` fails.
- growth: the slope of log time over log devices, by least squares: 0 does not grow with the fleet,
  1 grows as it does. The spread is that of the slopes of the rounds. It is of the processor time
  with SQLite, which works in our process, so that neighbours on the machine change it less.

An order answers before all of it is done in a large fleet: "the rest of" it is what the ticks do
then, all of it at once here.

A tick looks for what has to be looked for in all devices only now and then in a large fleet
(`controller/services/pace.py`): the median is a tick that does not, the most one that does.

`EDGEFLEET_BENCH_SIZES` changes the fleets, as `1000,10000`; `EDGEFLEET_BENCH_WORK` leaves out work
whose name has none of some texts, as `create,abort`, `EDGEFLEET_BENCH_KINDS` a database. PostgreSQL
is left out where it is not installed.
"""

from __future__ import annotations

import math
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from benchmarks.databases.postgres import postgres
from benchmarks.harness import Row, main, not_measured
from benchmarks.scale.fleet import NOW_S, SECOND, fill
from benchmarks.scale.meter import Cost, Meter
from benchmarks.scale.services import Controller
from controller.app.collecting import collect_seldom
from controller.domain.paging import PageRequest
from controller.domain.states import DeploymentState, RolloutState
from controller.rollout_schemas import RollbackRequest
from controller.store.database import Database
from controller.store.device_tables import DeviceRow
from controller.store.rollout_tables import DeploymentRow, RolloutRow

SIZES: Final = tuple(
    int(each) for each in os.environ.get("EDGEFLEET_BENCH_SIZES", "1000,10000,100000").split(",")
)
QUICK_SIZES: Final = (500, 5_000)
ONLY: Final = os.environ.get("EDGEFLEET_BENCH_WORK", "").split(",")
KINDS: Final = os.environ.get("EDGEFLEET_BENCH_KINDS", "SQLite,PostgreSQL").split(",")
AIM_MS: Final = 1000.0
LOCK_AIM_MS: Final = 100.0


ROLLOUT: Final = sa.update(RolloutRow).where(RolloutRow.id == SECOND)
PARTS: Final = sa.update(DeploymentRow).where(DeploymentRow.rollout == SECOND)
DONE: Final = {
    "state": DeploymentState.SUCCEEDED,
    "revision": 2,
    "started_at_s": NOW_S,
    "finished_at_s": NOW_S,
}
NONE_IN_FLIGHT: Final = PARTS.where(DeploymentRow.state == DeploymentState.ASSIGNED).values(DONE)
ALL_ONLINE_DONE: Final = PARTS.where(
    DeploymentRow.state == DeploymentState.PENDING,
    DeploymentRow.device.in_(sa.select(DeviceRow.id).where(DeviceRow.online)),
).values(DONE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """A piece of work of the controller."""

    name: str
    do: Callable[[Controller], object]
    before: tuple[sa.Update, ...] = ()
    """What prepares the fleet."""

    begin: Callable[[Controller], object] | None = None
    """What is done before, and not measured."""

    rounds: int = 3
    """Each with a fleet as it was, unless `is_same`."""

    is_same: bool = False
    """Whether the rounds follow one another in one fleet, after one that does not count."""


ROLLOUTS: Final = PageRequest(key="created", descends=True, limit=100)
DEVICES: Final = PageRequest(key="id", descends=False, limit=100)
ALL_WORK: Final = (
    Work(name="tick, nothing to do", do=Controller.tick, rounds=10, is_same=True),
    Work(name="tick of a paused rollout", do=Controller.tick, rounds=10, is_same=True,
         before=(ROLLOUT.values(state=RolloutState.PAUSED),)),
    Work(name="tick that starts 100", do=Controller.tick, before=(NONE_IN_FLIGHT,)),
    Work(name="tick that halts", do=Controller.tick, before=(ROLLOUT.values(max_failures=0),)),
    Work(name="tick that ends without those offline", do=Controller.tick,
         before=(NONE_IN_FLIGHT, ALL_ONLINE_DONE, ROLLOUT.values(offline_limit_s=0.0))),
    Work(name="rest of a halt", do=Controller.carry_on,
         before=(ROLLOUT.values(max_failures=0),), begin=Controller.tick),
    Work(name="create", do=Controller.create),
    Work(name="rest of create", do=Controller.carry_on, begin=Controller.create),
    Work(name="add", do=Controller.add, begin=Controller.created_for_one_site),
    Work(name="pause", do=lambda on: on.rollouts.pause(SECOND)),
    Work(name="abort", do=lambda on: on.rollouts.abort(SECOND)),
    Work(name="rest of abort", do=Controller.carry_on,
         begin=lambda on: on.rollouts.abort(SECOND)),
    Work(name="resume after a halt", do=lambda on: on.rollouts.resume(SECOND),
         before=(ROLLOUT.values(max_failures=0),), begin=Controller.halted),
    Work(name="rest of resume", do=Controller.carry_on,
         before=(ROLLOUT.values(max_failures=0),), begin=Controller.resumed),
    Work(name="roll back", do=lambda on: on.rollouts.roll_back(SECOND, RollbackRequest())),
    Work(name="rest of roll back", do=Controller.carry_on,
         begin=lambda on: on.rollouts.roll_back(SECOND, RollbackRequest())),
    Work(name="show", do=lambda on: on.rollouts.get(SECOND, limit=1000), is_same=True),
    Work(name="list of rollouts", do=lambda on: on.rollouts.listed(ROLLOUTS), is_same=True),
    Work(name="list of 100 devices", is_same=True,
         do=lambda on: on.devices.selected("", DEVICES)),
    Work(name="report of a device", do=Controller.take_report, is_same=True, rounds=5),
)  # fmt: skip


class Sqlite:
    """Fleets in files."""

    name = "SQLite"

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.compiled: dict[Any, Any] = {}
        """SQLAlchemy's statements: a controller that has run for a while has them, too."""

    def url(self, which: str) -> str:
        """Return the address of a database."""
        return f"sqlite:///{self._folder / which}.db"

    def make(self, which: str) -> str:
        """Make an empty database."""
        return self.url(which)

    def copy(self, which: str) -> str:
        """Make a fleet as another one."""
        shutil.copy(self._folder / f"{which}.db", self._folder / "copy.db")
        return self.url("copy")

    def drop(self, which: str) -> None:
        """Remove a database."""
        for path in self._folder.glob(f"{which}.db*"):
            path.unlink()


class Postgres:
    """Fleets in databases of a server."""

    name = "PostgreSQL"

    def __init__(self, url: str) -> None:
        self._url = sa.make_url(url)
        self.compiled: dict[Any, Any] = {}
        self._engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)

    def url(self, which: str) -> str:
        """Return the address of a database."""
        return self._url.set(database=f"fleet_{which}").render_as_string(hide_password=False)

    def make(self, which: str) -> str:
        """Make an empty database."""
        self._run(f"CREATE DATABASE fleet_{which}")
        return self.url(which)

    def copy(self, which: str) -> str:
        """Make a fleet as another one."""
        self._run(f"CREATE DATABASE fleet_copy TEMPLATE fleet_{which}")
        return self.url("copy")

    def drop(self, which: str) -> None:
        """Remove a database."""
        self._run(f"DROP DATABASE fleet_{which} WITH (FORCE)")

    def _run(self, statement: str) -> None:
        with self._engine.connect() as connection:
            connection.exec_driver_sql(statement)


def costs(kind: Sqlite | Postgres, which: str, blobs: Path, work: Work) -> list[Cost]:
    """Do a piece of work in rounds.

    Args:
        kind: The database.
        which: The fleet.
        blobs: The content of its releases.
        work: What is done.

    Returns:
        What it cost, by round.
    """
    found: list[Cost] = []
    for _ in range(1 if work.is_same else work.rounds):
        database = Database(kind.copy(which))
        database.engine.update_execution_options(compiled_cache=kind.compiled)
        database.reading_engine.update_execution_options(compiled_cache=kind.compiled)
        on = Controller(database, blobs)
        with database.transaction() as transaction:
            for statement in work.before:
                transaction.execute(statement)
        if work.begin is not None:
            work.begin(on)
        meter = Meter(database)
        if work.is_same:
            work.do(on)
        rounds = work.rounds if work.is_same else 1
        found += [meter.of(lambda on=on: work.do(on)) for _ in range(rounds)]  # type: ignore[misc]  # bound now
        database.close()
        kind.drop("copy")
    return found


def rows_of(kind: Sqlite | Postgres, folder: Path, *, quick: bool) -> Iterator[Row]:
    """Measure all work with fleets of all sizes.

    Args:
        kind: The database.
        folder: For the content of releases.
        quick: Small fleets.

    Yields:
        The rows.
    """
    sizes = QUICK_SIZES if quick else SIZES
    wanted = [work for work in ALL_WORK if any(text in work.name for text in ONLY)]
    told: dict[str, dict[int, list[Cost]]] = {work.name: {} for work in wanted}
    for size in sizes:
        blobs, which = folder / f"{kind.name}-{size}", f"of_{size}"
        fill(kind.make(which), blobs, size)
        for work in wanted:
            if size == sizes[0]:
                costs(kind, which, blobs, work)  # which builds its statements
            told[work.name][size] = costs(kind, which, blobs, work)
            _say(kind.name, work.name, size, told[work.name][size])
        kind.drop(which)
    for work in wanted:
        yield from _rows(kind.name, work.name, told[work.name])


def _say(kind: str, work: str, size: int, found: Sequence[Cost]) -> None:
    wall_ms = statistics.median(cost.wall_ms for cost in found)
    processor_ms = statistics.median(cost.processor_ms for cost in found)
    locked_ms = statistics.median(cost.locked_ms for cost in found)
    lock_processor_ms = statistics.median(cost.locked_processor_ms for cost in found)
    print(
        f"{kind}, {size:,} devices, {work}: {wall_ms:.1f} ms, processor {processor_ms:.1f} ms, "
        f"lock {locked_ms:.1f} ms, processor {lock_processor_ms:.1f} ms, "
        f"{found[0].statements} statements",
        file=sys.stderr,
        flush=True,
    )


def _rows(kind: str, work: str, told: Mapping[int, Sequence[Cost]]) -> Iterator[Row]:
    """Return what a piece of work cost, and how that grows."""
    for size, found in told.items():
        wall_ms = statistics.median(cost.wall_ms for cost in found)
        processor_ms = statistics.median(cost.processor_ms for cost in found)
        locked_ms = statistics.median(cost.locked_ms for cost in found)
        sent = found[0].statements
        most = max(cost.wall_ms for cost in found)
        yield Row(
            name=f"{kind}: {work}, {size:,} devices",
            value=wall_ms,
            unit="ms",
            spread=f"to {most:.3g}; processor {processor_ms:.3g} ms, {sent} statements",
            aim=f"<= {AIM_MS:g} ms",
            met=wall_ms <= AIM_MS,
        )
        yield Row(
            name=f"{kind}: {work}, {size:,} devices: write lock",
            value=locked_ms,
            unit="ms",
            spread=f"to {max(cost.locked_ms for cost in found):.3g}; processor "
            f"to {max(cost.locked_processor_ms for cost in found):.3g} ms",
            aim=f"<= {LOCK_AIM_MS:g} ms",
            met=locked_ms <= LOCK_AIM_MS,
        )
    if len(told) == 1:
        return
    rounds = min(len(found) for found in told.values())
    which = "processor_ms" if kind == Sqlite.name else "wall_ms"
    slopes = [
        slope({size: getattr(of[at], which) for size, of in told.items()}) for at in range(rounds)
    ]
    yield Row(
        name=f"{kind}: {work}: growth",
        value=statistics.median(slopes),
        unit="exponent",
        spread=f"{min(slopes):.2f} to {max(slopes):.2f}",
    )


def slope(values: Mapping[int, float]) -> float:
    """Return how a value grows: the slope of its logarithm over that of the size."""
    sizes = [math.log(size) for size in values]
    logs = [math.log(value) for value in values.values()]
    return statistics.linear_regression(sizes, logs).slope


def measure(quick: bool) -> list[Row]:
    """Measure fleets in SQLite and in PostgreSQL.

    Args:
        quick: Small fleets.

    Returns:
        The rows.
    """
    collect_seldom()  # as the controller does
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="edgefleet-scale-") as made:
        folder = Path(made)
        if "SQLite" in KINDS:
            rows += rows_of(Sqlite(folder), folder, quick=quick)
        if "PostgreSQL" not in KINDS:
            return rows
        with postgres() as url:
            if url is None:
                rows.append(not_measured("PostgreSQL", "it is not installed"))
            else:
                rows += rows_of(Postgres(url), folder, quick=quick)
    return rows


if __name__ == "__main__":
    sys.exit(main("Rollouts of large fleets", measure))

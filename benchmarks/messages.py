"""What a message of a device costs the controller: processor time and statements.

A controller in this process, with certificates for devices and trusted metadata as `fleet init`
makes them, and its database. Real messages go through the same functions that its connections with
the broker call; there is no broker, and what is sent to devices is only counted. In each round a
new fleet enrols, greets, reports figures and installs a release in a rollout.

Each kind of message comes one at a time, as to a controller with little to do, and `together`, as
they wait in a busy one: up to 200 at once (`controller.app.inbox`). Telemetry comes at a steady
rate through the inbox, too; what the inbox costs is in that row alone.

What is told is the processor time of this process, so neighbours on the machine change it little:
with SQLite the database's work is in it, with PostgreSQL not. The median of the rounds, from the
least to the greatest, and the mean number of statements, of them `w` transactions that write.

`EDGEFLEET_BENCH_DEVICES` changes the fleet, `EDGEFLEET_BENCH_ROUNDS` the rounds,
`EDGEFLEET_BENCH_KINDS` leaves out a database: `SQLite`. PostgreSQL is left out where it is not
installed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, get_args

import sqlalchemy as sa

from agent.link.tls_key import TlsKey
from benchmarks.databases.postgres import postgres
from benchmarks.harness import Row, main, not_measured
from benchmarks.scale.wired import PACKAGE, PATIENCE_S, Cost, Counter, Fleet
from benchmarks.scale_rows import Postgres, Sqlite
from benchmarks.telemetry_rows.minutes import histograms, minute_batches
from controller.app.collecting import collect_seldom
from controller.app.inbox import TAKEN_AT_ONCE, Inbox
from controller.app.service import GATHER_S, GATHER_TELEMETRY_S
from controller.store.database import migrate
from tests.simulators.packages import PROFILE
from wire import topics
from wire.codec import sha256_hex, to_json, to_msgpack
from wire.delivery import ChunkRequest
from wire.desired import WINDOWS
from wire.enrolling import EnrolRequest
from wire.enrolment import csr_proof, enrol_proof
from wire.installs import InstallPhase, InstallReport
from wire.messages import Message
from wire.metadata import MetadataVersions
from wire.presence import Hello, Presence
from wire.telemetry import TelemetryBatch
from wire.transport import Received
from wire.trust.envelope import SigningKey

DEVICES: Final = int(os.environ.get("EDGEFLEET_BENCH_DEVICES", "200"))
ROUNDS: Final = int(os.environ.get("EDGEFLEET_BENCH_ROUNDS", "5"))
QUICK_DEVICES, QUICK_ROUNDS = 50, 2
KINDS: Final = os.environ.get("EDGEFLEET_BENCH_KINDS", "SQLite,PostgreSQL").split(",")
AIM_MS: Final = 0.3
BOOT: Final = "boot-1"
POINTS: Final = 8
MINUTES: Final = 3
MAX_TICKS: Final = 60
CHUNK_BYTES: Final = 128 * 1024
PER_S: Final = 200


class Round:
    """A fleet from its enrolment to the end of a rollout.

    Args:
        fleet: An empty one.
        devices: How many enrol; the first of them is not measured, for it builds the statements.
        csr: Their request for a certificate.
        counter: Counts statements.
    """

    def __init__(self, fleet: Fleet, devices: int, csr: str, counter: Counter) -> None:
        self._fleet = fleet
        self._counter = counter
        self._csr = csr
        self._names = [f"device-{number:05d}" for number in range(devices + 1)]
        self._sequence = 0
        self.costs: dict[str, Cost] = {}

    def run(self, *, together: bool) -> dict[str, Cost]:
        """Send all kinds of messages; return what one of each cost."""
        fleet, receive = self._fleet, self._fleet.controller.receive
        at_once = TAKEN_AT_ONCE if together else 1

        def send(name: str, messages: Sequence[Received]) -> None:
            receive(messages[0])
            rest = messages[1:]
            parts = [rest[at : at + at_once] for at in range(0, len(rest), at_once)]

            def work() -> None:
                for part in parts:
                    receive(*part)

            self.costs[name] = self._counter.of(len(rest), work)

        send("enrolment", self._enrolments())
        send("first hello", self._each(self._hello, MetadataVersions(root=1)))
        has = MetadataVersions(root=1, timestamp=1, snapshot=1, targets=1, roles={"releases": 2})
        fleet.clock.advance(60.0)
        send("presence", self._each(self._gone))
        send("hello", self._each(self._hello, has))
        pool, chance = histograms(3), random.Random(1)
        for minute in range(MINUTES):
            fleet.clock.advance(60.0)
            send("telemetry, 8 points", self._telemetry(minute, pool, chance))
        fleet.clock.advance(60.0)
        self._paced(f"telemetry, {PER_S} a second", self._telemetry(MINUTES, pool, chance))
        self._told_to_install()
        steps: tuple[InstallPhase, ...] = get_args(InstallPhase)[1:-1]
        for phase in steps:
            fleet.clock.advance(5.0)
            name = "report: fetching begins" if phase == "fetching" else "report: another phase"
            send(name, self._each(self._report, phase, 0))
            if phase == "fetching":
                self._chunks(at_once)
                send("report: how far it is", self._each(self._report, phase, 100))
        send("report: succeeded", self._each(self._report, "idle", 100))
        self._is_complete()
        return self.costs

    def _paced(self, name: str, messages: Sequence[Received]) -> None:
        """Let messages come by and by, through the inbox of a controller."""
        way, receive = self._fleet.way, self._fleet.controller.receive
        receive(messages[0])
        inbox = Inbox(
            lambda some: receive(*some),
            gather_s=GATHER_S,
            is_patient=topics.is_telemetry,
            patience_s=GATHER_TELEMETRY_S,
        )
        inbox.start()
        wanted = way.sent + len(messages) - 1

        def work() -> None:
            for message in messages[1:]:
                inbox.put(message)
                time.sleep(1 / PER_S)
            self._wait_for(wanted)

        self.costs[name] = self._counter.of(len(messages) - 1, work)
        inbox.stop(PATIENCE_S)

    def _wait_for(self, sent: int) -> None:
        """Wait until so many messages were sent to devices."""
        end_s = time.monotonic() + PATIENCE_S
        while self._fleet.way.sent < sent and time.monotonic() < end_s:
            time.sleep(0.001)

    def _told_to_install(self) -> None:
        """Let ticks order all installs: there is no message, but each device is sent one."""
        self._fleet.roll_out(len(self._names))
        wanted = self._fleet.way.sent + len(self._names)

        def work() -> None:
            for _ in range(MAX_TICKS):
                self._fleet.clock.advance(1.0)
                self._fleet.controller.tick()
                if self._fleet.way.sent >= wanted:
                    return
            raise SystemExit(f"{MAX_TICKS} ticks did not order all installs")

        self.costs["told to install, by ticks"] = self._counter.of(len(self._names), work)

    def _chunks(self, at_once: int) -> None:
        """Ask for a piece, so many devices at one time, and let it be sent."""
        sha256 = PACKAGE.ref.envelope_sha256
        asked = [
            Received(
                topics.up(name, "chunk_request"),
                to_json(
                    ChunkRequest(device=name, sha256=sha256, chunk_bytes=CHUNK_BYTES, indices=(0,))
                ),
            )
            for name in self._names
        ]
        chunks, way = self._fleet.chunks, self._fleet.way
        wanted = way.sent + len(asked)
        chunks.handle(asked[:1])
        chunks.start()

        def work() -> None:
            for at in range(1, len(asked), at_once):
                chunks.handle(asked[at : at + at_once])
            self._wait_for(wanted)

        self.costs["request for a piece, answered"] = self._counter.of(len(asked) - 1, work)

    def _is_complete(self) -> None:
        with self._fleet.database.reading() as transaction:
            statement = sa.text("SELECT count(*) FROM deployment WHERE state = 'succeeded'")
            done = transaction.execute(statement).scalar_one()
        if done != len(self._names):
            raise SystemExit(f"{done} devices have the release")

    def _each(self, made: Callable[..., Message], *arguments: object) -> list[Received]:
        self._sequence += 1
        kind: topics.UpKind = {  # type: ignore[assignment]  # of the three below
            self._hello: "hello", self._gone: "presence", self._report: "report"
        }[made]  # fmt: skip
        return [
            Received(topics.up(name, kind), to_json(made(name, *arguments))) for name in self._names
        ]

    def _enrolments(self) -> list[Received]:
        token = self._fleet.token(len(self._names))
        return [
            Received(topics.enrol_request(name), to_json(self._enrolment(name, token)))
            for name in self._names
        ]

    def _enrolment(self, name: str, token: str) -> EnrolRequest:
        key = SigningKey(sha256_hex(name.encode())[:32].encode())
        proof = csr_proof(device=name, nonce="n", challenge="", csr=self._csr)
        signed = [key.sign(each) for each in (enrol_proof(name, token, "a password of it"), proof)]
        signature, csr_signature = (base64.b64encode(each).decode() for each in signed)
        return EnrolRequest(
            device=name, token=token, public_key=base64.b64encode(key.public_key).decode(),
            password="a password of it",  # noqa: S106 - of a benchmark
            signature=signature, profile=PROFILE, labels={"site": "s-1"}, agent_version="1.0",
            nonce="n", csr=self._csr, csr_signature=csr_signature,
        )  # fmt: skip

    def _hello(self, name: str, versions: MetadataVersions) -> Hello:
        return Hello(
            device=name, boot_id=BOOT, agent_version="1.0", profile=PROFILE, revision=0,
            release=None, variant=None, models=(), desired_form=WINDOWS, metadata=versions,
        )  # fmt: skip

    def _gone(self, name: str) -> Presence:
        return Presence(device=name, online=False, boot_id=BOOT)

    def _report(self, name: str, phase: InstallPhase, done_bytes: int) -> InstallReport:
        is_over = phase == "idle"
        return InstallReport(
            device=name, boot_id=BOOT, sequence=self._sequence, revision=1, digest=PACKAGE.digest,
            phase=phase, outcome="succeeded" if is_over else "running", model="digits",
            active=PACKAGE.digest if is_over else None, variant="best" if is_over else None,
            done_bytes=done_bytes, total_bytes=400_000, at_s=self._fleet.clock.now_s(),
        )  # fmt: skip

    def _telemetry(
        self, minute: int, pool: Sequence[bytes], chance: random.Random
    ) -> list[Received]:
        at = int(self._fleet.clock.now_s() // 60)
        batches = minute_batches(at, len(self._names), pool, chance, POINTS - 1)
        return [
            Received(
                topics.up(name, "telemetry"),
                to_msgpack(
                    TelemetryBatch(
                        device=name, boot_id=BOOT, sequence=minute + 1, points=batch.points
                    )
                ),
            )
            for name, batch in zip(self._names, batches, strict=True)
        ]


def costs(kind: Sqlite | Postgres, folder: Path, devices: int, rounds: int, csr: str) -> list[Row]:
    """Measure all kinds of messages with one database.

    Args:
        kind: The database.
        folder: For the controllers' files.
        devices: In the fleet of each round.
        rounds: How many, of both ways of sending, alternately.
        csr: What the devices' certificates are made of.

    Returns:
        The rows.
    """
    migrate(kind.make("empty"))
    counter = Counter()
    found: dict[str, list[Cost]] = defaultdict(list)
    for number in range(rounds):
        for together in (False, True):
            home = folder / f"{kind.name}-{number}-{together}"
            home.mkdir()
            with contextlib.closing(Fleet(kind.copy("empty"), home)) as fleet:
                told = Round(fleet, devices, csr, counter).run(together=together)
            kind.drop("copy")
            for name, cost in told.items():
                found[f"{name}, together" if together else name].append(cost)
    return list(_rows(kind.name, found))


def _rows(kind: str, found: dict[str, list[Cost]]) -> Iterator[Row]:
    for name, each in found.items():
        value = statistics.median(cost.processor_ms for cost in each)
        least, most = (end(cost.processor_ms for cost in each) for end in (min, max))
        yield Row(
            name=f"{kind}: {name}",
            value=value,
            unit="ms",
            spread=f"{least:.3g} to {most:.3g}; {each[0].statements:.3g} statements, "
            f"{each[0].writes:.3g} w",
            aim=f"<= {AIM_MS:g} ms",
            met=value <= AIM_MS,
        )


def measure(quick: bool) -> list[Row]:
    """Measure messages with SQLite and with PostgreSQL.

    Args:
        quick: A small fleet.

    Returns:
        The rows.
    """
    collect_seldom()  # as the controller does
    devices, rounds = (QUICK_DEVICES, QUICK_ROUNDS) if quick else (DEVICES, ROUNDS)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="edgefleet-messages-") as made:
        folder = Path(made)
        csr = TlsKey(folder).request()
        if "SQLite" in KINDS:
            rows += costs(Sqlite(folder), folder, devices, rounds, csr)
        if "PostgreSQL" not in KINDS:
            return rows
        with postgres() as url:
            if url is None:
                rows.append(not_measured("PostgreSQL", "it is not installed"))
            else:
                rows += costs(Postgres(url), folder, devices, rounds, csr)
    return rows


if __name__ == "__main__":
    sys.exit(main("What a message costs the controller", measure))

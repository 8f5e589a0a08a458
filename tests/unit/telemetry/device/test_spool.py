"""The spool keeps what was appended through kills and damage, within its limit, in order."""

from __future__ import annotations

import signal
import sqlite3
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from telemetry.batches import MAX_BATCH_BYTES, MAX_EVENT_BYTES
from telemetry.device.spool import (
    DISK_EVERY_S,
    EVENTS_IN_MEMORY,
    EVENTS_KEPT,
    MEMORY_LIMIT_BYTES,
    Spool,
)
from tests.unit.telemetry.device.manual_clock import ManualClock
from wire.codec import to_msgpack
from wire.messages import decode_message
from wire.telemetry import (
    Event,
    GaugePoint,
    HistogramPoint,
    SumPoint,
    TelemetryAck,
    TelemetryBatch,
)

MIB = 1024 * 1024
Open = Callable[..., Spool]


def point(value: float = 1.0) -> SumPoint:
    return SumPoint(metric="x_total", minute=1, attributes={}, value=value)


def event(kind: str = "switch", at_s: float = 5.0, **data: object) -> Event:
    return Event(at_s=at_s, kind=kind, reason="too hot", data=data)


def values(spool: Spool) -> list[float]:
    found = [batch.points for batch, _ in spool.pending(100)]
    return [item.value for points in found for item in points if isinstance(item, SumPoint)]


def ack(*batches: tuple[TelemetryBatch, bytes]) -> TelemetryAck:
    return TelemetryAck(
        boot_id=batches[0][0].boot_id, sequences=tuple(batch.sequence for batch, _ in batches)
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "spool.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    spools: list[Spool] = []

    def make(boot_id: str = "boot-1", limit_bytes: int = MIB) -> Spool:
        clock = ManualClock()
        spool = Spool(path, device="pi", boot_id=boot_id, limit_bytes=limit_bytes, clock=clock)
        spools.append(spool)
        return spool

    yield make
    for spool in spools:
        spool.close()


def test_what_is_appended_waits_until_acknowledged(opened: Open) -> None:
    spool = opened()
    spool.append([point(1)], [event()])
    spool.append([point(2)], [])
    first, second = spool.pending()
    assert (first[0].device, first[0].sequence, second[0].sequence) == ("pi", 0, 1)
    assert (first[0].points, first[0].events) == ((point(1),), (event(),))
    assert decode_message(first[1], TelemetryBatch, packed=True) == first[0]
    assert spool.pending() == [first, second], "looking is not taking"
    spool.acknowledge(ack(first))
    assert spool.pending() == [second]
    assert spool.pending(0) == []


def test_nothing_makes_no_batch(opened: Open) -> None:
    spool = opened()
    spool.append([], [])
    assert spool.pending() == []


def test_acknowledgements_of_anything_else_are_ignored(opened: Open) -> None:
    spool = opened()
    spool.append([point()], [])
    for boot_id, sequences in (("other", (0,)), (spool.boot_id, (7, -1, 2**64 - 1))):
        spool.acknowledge(TelemetryAck(boot_id=boot_id, sequences=sequences))
    assert len(spool.pending()) == 1


def test_earlier_boots_go_first_and_numbers_start_anew(opened: Open) -> None:
    spool = opened("boot-1")
    spool.append([point(1)], [])
    spool.close()
    later = opened("boot-2")
    later.append([point(2)], [])
    assert values(later) == [1, 2]
    boots = [(batch.boot_id.partition(".")[0], batch.sequence) for batch, _ in later.pending()]
    assert boots == [("boot-1", 0), ("boot-2", 0)]


def test_a_restart_within_a_boot_goes_on_counting(opened: Open) -> None:
    spool = opened()
    spool.append([point()], [])
    spool.acknowledge(ack(*spool.pending()))
    spool.close()
    again = opened()
    again.append([point()], [])
    assert again.boot_id == spool.boot_id
    assert [batch.sequence for batch, _ in again.pending()] == [1]


def test_a_lost_file_does_not_reuse_its_numbers(opened: Open, path: Path) -> None:
    spool = opened()
    spool.close()
    path.unlink()
    assert opened().boot_id != spool.boot_id


def test_batches_are_cut_to_what_a_broker_takes(opened: Open) -> None:
    points = [
        HistogramPoint(metric=f"m{number}", minute=1, attributes={}, blob=b"x" * 20_000)
        for number in range(20)
    ]
    spool = opened()
    spool.append(points, [event()])
    batches = spool.pending(100)
    assert len(batches) == 4
    assert all(len(body) <= MAX_BATCH_BYTES for _, body in batches)
    assert [item for batch, _ in batches for item in batch.points] == points
    assert batches[-1][0].events == (event(),)


def test_a_full_spool_drops_the_oldest_and_says_so(opened: Open) -> None:
    spool = opened(limit_bytes=1000)
    for value in range(30):
        spool.append([point(value)], [])
    kept = values(spool)
    assert kept == list(range(30 - len(kept), 30))
    assert sum(len(body) for _, body in spool.pending(100)) <= 1000
    told = sum(batch.dropped for batch, _ in spool.pending(100))
    spool.acknowledge(ack(*spool.pending(100)))
    spool.append([point(30)], [])
    told += sum(batch.dropped for batch, _ in spool.pending(100))
    assert told == 30 - len(kept)


def reading(value: float = 1.0, text: str = "") -> GaugePoint:
    return GaugePoint(
        metric="x_c", minute=1, attributes={"x": text}, count=1, total=value, least=value,
        greatest=value,
    )  # fmt: skip


def test_readings_go_first_then_figures_then_events(opened: Open) -> None:
    spool = opened(limit_bytes=8000)
    for number in range(100):
        happened = [] if number % 4 else [event(n=number)]
        spool.append([point(number), reading(number, "x" * 500)], happened)
    held = [batch for batch, _ in spool.pending(1000)]
    with_readings = [b.sequence for b in held if any(isinstance(p, GaugePoint) for p in b.points)]
    with_figures = [b.sequence for b in held if any(isinstance(p, SumPoint) for p in b.points)]
    with_events = [b.sequence // 4 for b in held if b.events]
    assert sum(len(data) for _, data in spool.pending(1000)) <= 8000
    for kept in (with_readings, with_figures):
        assert kept == list(range(100 - len(kept), 100)), "the oldest of a kind go first"
    assert with_events == list(range(25)), "events outlive figures, which outlive readings"
    assert len(with_readings) == 0 < len(with_figures) < 100

    spool.append([], [event()])
    newest, _ = spool.pending(1000)[-1]
    assert sum(b.dropped for b, _ in spool.pending(1000)) >= 100 - len(with_readings)
    assert newest.events


def test_a_spool_of_an_older_agent_is_used_and_stays_readable_for_it(
    opened: Open, path: Path
) -> None:
    opened().close()
    with closing(sqlite3.connect(path)) as db:
        db.execute("DROP INDEX batch_holds")
        db.execute("ALTER TABLE batch DROP COLUMN holds")
        db.execute("UPDATE boot SET next_sequence = 1")
        boot = db.execute("SELECT boot FROM boot").fetchone()[0]
        body = to_msgpack(
            TelemetryBatch(
                device="dev-1",
                boot_id=boot,
                sequence=0,
                points=(point(7.0), reading(text="x" * 900)),
            )
        )
        columns = "INSERT INTO batch (boot, sequence, dropped, size, body) VALUES (?, ?, ?, ?, ?)"
        db.execute(columns, (boot, 0, 0, len(body), body))
        db.commit()
    spool = opened(limit_bytes=600)
    assert not spool.recovered
    spool.append([point(8.0)], [])
    assert values(spool) == [7.0, 8.0]
    (first, _), _ = spool.pending()
    assert len(first.points) == 1
    with closing(sqlite3.connect(path)) as db:
        db.execute(columns, (boot, 99, 0, len(body), body))
        db.commit()


def test_losses_are_told_even_if_the_telling_batch_is_lost(opened: Open) -> None:
    spool = opened(limit_bytes=300)
    told = 0
    for value in range(100):
        spool.append([point(value)], [])
        if value % 10 == 9:
            waiting = spool.pending(100)
            told += sum(batch.dropped + 1 for batch, _ in waiting)
            spool.acknowledge(ack(*waiting))
    spool.append([point()], [])
    told += sum(batch.dropped for batch, _ in spool.pending(100))
    assert told == 100


def test_events_stay_after_they_are_acknowledged(opened: Open) -> None:
    spool = opened()
    spool.append([], [event("install", 1), event("switch", 2), event("switch", 3)])
    spool.acknowledge(ack(*spool.pending()))
    assert [found.at_s for found in spool.events()] == [1, 2, 3]
    assert [found.at_s for found in spool.events(("switch",))] == [2, 3]
    assert [found.at_s for found in spool.events(since_s=2, limit=1)] == [3]
    assert spool.events(("other",)) == []


def test_local_events_are_bounded(opened: Open) -> None:
    spool = opened()
    spool.append([], [event(at_s=float(number)) for number in range(EVENTS_KEPT + 10)])
    kept = spool.events(limit=10**6)
    assert (len(kept), kept[0].at_s) == (EVENTS_KEPT, 10)


@pytest.mark.parametrize(
    "data",
    [
        {"text": "x" * MAX_EVENT_BYTES},
        {"object": object()},
        {"number": 2**70},
        {1: "a", "b": 2},
        {"surrogate": "\ud800"},
        {"nested": {1: 2, "b": 3}},
    ],
    ids=["large", "object", "number", "key", "surrogate", "nested"],
)
def test_an_event_that_cannot_travel_keeps_its_reason(
    opened: Open, data: dict[str, object]
) -> None:
    spool = opened()
    bad = Event(at_s=float("nan"), kind="a\x00b", reason="too\nhot \ud800", data=data)
    spool.append([point()], [bad])
    ((batch, _),) = spool.pending()
    (kept,) = batch.events
    assert (kept.at_s, kept.kind, kept.reason) == (0.0, "a b", "too hot ?")
    assert list(kept.data) == ["omitted"]
    assert spool.events() == [kept]


def test_a_point_that_cannot_travel_is_counted(opened: Open) -> None:
    spool = opened()
    huge = HistogramPoint(metric="m", minute=1, attributes={}, blob=b"x" * 70_000)
    odd = SumPoint(metric="\ud800", minute=1, attributes={}, value=1)
    spool.append([huge], [])
    assert spool.pending() == []
    spool.append([odd, point()], [])
    ((batch, _),) = spool.pending()
    assert (batch.points, batch.dropped) == ((point(),), 2)


def test_the_file_is_private(opened: Open, path: Path) -> None:
    opened()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    "content",
    [b"this is no database at all" * 100, b"SQLite format 3\x00" + b"\xff" * 8000],
    ids=["alien", "garbled"],
)
def test_a_corrupt_file_is_moved_aside(opened: Open, path: Path, content: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(content)
    spool = opened()
    assert spool.recovered
    assert path.with_name("spool.db.corrupt").read_bytes() == content
    assert [found.kind for found in spool.events()] == ["telemetry"]
    spool.append([point(1)], [])
    assert values(spool) == [1]


def test_an_intact_or_empty_file_is_not(opened: Open, path: Path) -> None:
    path.parent.mkdir()
    path.touch()
    spool = opened()
    spool.append([point()], [])
    spool.close()
    again = opened()
    assert not spool.recovered
    assert not again.recovered
    assert len(again.pending()) == 1


@pytest.mark.parametrize(
    "damage",
    ["DROP TABLE batch", "DELETE FROM loss", "DELETE FROM file", "PRAGMA user_version = 9"],
)
def test_a_damaged_file_is_begun_anew(opened: Open, path: Path, damage: str) -> None:
    opened().close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(damage)
    spool = opened()
    spool.append([point(1)], [])
    assert spool.recovered
    assert values(spool) == [1]


def test_damage_while_running_costs_only_what_waited(opened: Open, path: Path) -> None:
    spool = opened()
    spool.append([point(1)], [])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("DROP TABLE batch")
    spool.append([point(2)], [])
    assert spool.recovered
    assert values(spool) == [2]


def test_a_batch_that_cannot_be_read_is_dropped_and_counted(opened: Open, path: Path) -> None:
    spool = opened()
    spool.append([point(1)], [])
    spool.append([point(2)], [])
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE batch SET body = x'00' WHERE sequence = 0")
    assert values(spool) == [2]
    spool.append([point(3)], [])
    assert [batch.dropped for batch, _ in spool.pending()] == [0, 1]


def texts(spool: Spool, kind: str) -> list[str]:
    return [found.reason for found in spool.events((kind,))]


@pytest.mark.parametrize("path", [Path(), Path("file/spool.db")], ids=["directory", "no-directory"])
def test_without_a_disk_telemetry_waits_in_memory_and_says_so(tmp_path: Path, path: Path) -> None:
    (tmp_path / "file").touch()
    spool = Spool(tmp_path / path, device="pi", boot_id="b", limit_bytes=MIB, clock=ManualClock())
    spool.append([point(1)], [])
    assert values(spool) == [1]
    (told,) = texts(spool, "storage")
    assert told.startswith("telemetry is kept in memory, where a restart loses it: ")
    spool.acknowledge(ack(*spool.pending()))
    assert not spool.pending()
    spool.close()


def test_a_disk_that_comes_back_takes_what_waited_in_memory(path: Path) -> None:
    clock = ManualClock()
    spool = Spool(path, device="pi", boot_id="b", limit_bytes=MIB, clock=clock)
    spool.append([point(1)], [event("switch")])
    spool.close()
    aside = path.parent.rename(path.parent.with_name("unmounted"))
    path.parent.touch()
    spool.append([point(2)], [event("bench")])
    spool.append([point(3)], [])
    assert values(spool) == [2, 3]
    path.parent.unlink()
    aside.rename(path.parent)
    assert values(spool) == [2, 3], "it does not look at every call"
    clock.sleep(DISK_EVERY_S)
    assert values(spool) == [1, 2, 3]
    assert len({(batch.boot_id, batch.sequence) for batch, _ in spool.pending()}) == 5
    assert [batch.dropped for batch, _ in spool.pending()] == [0] * 5
    assert [found.kind for found in spool.events()] == ["switch", "storage", "bench", "storage"]
    spool.close()
    again = Spool(path, device="pi", boot_id="c", limit_bytes=MIB, clock=clock)
    assert values(again) == [1, 2, 3]
    again.close()


def test_memory_is_bounded(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    spool = Spool(
        tmp_path / "file/spool.db", device="pi", boot_id="b", limit_bytes=64 * MIB,
        clock=ManualClock(),
    )  # fmt: skip
    for _ in range(400):
        spool.append([], [event("switch", text="x" * 10_000)])
    held = sum(len(data) for _, data in spool.pending(1000))
    assert 0.9 * MEMORY_LIMIT_BYTES < held <= MEMORY_LIMIT_BYTES
    assert len(spool.events(limit=1000)) <= EVENTS_IN_MEMORY
    assert spool.pending(1000)[0][0].dropped > 0 or spool.pending(1000)[-1][0].dropped > 0
    spool.close()


def test_threads_share_a_spool(opened: Open) -> None:
    spool = opened()

    def work(start: int) -> None:
        for number in range(25):
            spool.append([point(start + number)], [event()])
            spool.pending(1)

    threads = [threading.Thread(target=work, args=(100 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(values(spool)) == [100.0 * n + number for n in range(4) for number in range(25)]
    assert [batch.sequence for batch, _ in spool.pending(100)] == list(range(100))


WRITER = """
import sys
from pathlib import Path
from telemetry.device.spool import Spool
from wire.clock import SystemClock
from wire.telemetry import SumPoint
spool = Spool(Path(sys.argv[1]), device="pi", boot_id="b", limit_bytes=10**9, clock=SystemClock())
for number in range(10**6):
    spool.append([SumPoint(metric="x_total", minute=1, attributes={}, value=number)], [])
    print(number, flush=True)
"""


def test_what_was_appended_survives_a_kill(path: Path, opened: Open) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        told = [int(writer.stdout.readline()) for _ in range(50)]
        writer.send_signal(signal.SIGKILL)
        told += [int(line) for line in writer.stdout if line.endswith("\n")]
    spool = opened()
    assert not spool.recovered
    kept = [batch.sequence for batch, _ in spool.pending(1000)]
    assert kept[: len(told[:1000])] == told[:1000]

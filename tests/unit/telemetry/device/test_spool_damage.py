"""No flipped bit in the spool's file keeps the agent from starting, or from storing what comes."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest

from telemetry.device.spool import Spool
from telemetry.device.spool_reader import stored_events
from telemetry.errors import SpoolError
from tests.unit.telemetry.device.manual_clock import ManualClock
from wire.telemetry import Event, SumPoint, TelemetryAck

FLIPS = 300
SEEDS = (1, 2)
HEADER_BYTES = 100


def event(kind: str) -> Event:
    return Event(at_s=5.0, kind=kind, reason="too hot", data={"number": 1})


def point() -> SumPoint:
    return SumPoint(metric="x_total", minute=1, attributes={}, value=1.0)


def opened(path: Path) -> Spool:
    return Spool(path, device="pi", boot_id="b", limit_bytes=2**20, clock=ManualClock())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Write a spool that holds batches, events and two boots."""
    path = tmp_path / "spool.db"
    for number in range(6):
        spool = opened(path)
        spool.append([point()], [event(f"old {number}")])
        spool.close()
    return path


def clear(path: Path) -> None:
    for each in path.parent.iterdir():
        each.unlink()


def use(spool: Spool) -> None:
    """Do all that the agent does with its spool."""
    spool.append([point()], [event("during")])
    spool.events()
    waiting = spool.pending(100)
    for batch, _ in waiting:
        spool.acknowledge(TelemetryAck(boot_id=batch.boot_id, sequences=(batch.sequence,)))


def flips(content: bytes, seed: int) -> list[tuple[int, int]]:
    """Return places and bits: seeded ones where anything is written, and all of the header."""
    rng = random.Random(seed)
    written = [at for at, byte in enumerate(content) if byte]
    chosen = [(rng.choice(written), rng.randrange(8)) for _ in range(FLIPS)]
    return chosen + [(at, seed % 8) for at in range(HEADER_BYTES)]


@pytest.mark.parametrize("seed", SEEDS)
def test_after_any_flipped_bit_the_spool_stores_again(path: Path, seed: int) -> None:
    intact = path.read_bytes()
    for at, bit in flips(intact, seed):
        clear(path)
        damaged = bytearray(intact)
        damaged[at] ^= 1 << bit
        path.write_bytes(damaged)
        with suppress(SpoolError):  # one line, as `fleet-agent why` shows it
            stored_events(path, (), 0, 100)
        spool = opened(path)
        use(spool)
        spool.append([point()], [event("after")])
        spool.close()
        again = opened(path)
        where = f"byte {at}, bit {bit}"
        assert "after" in [found.kind for found in again.events()], where
        kinds = {told.kind for batch, _ in again.pending(100) for told in batch.events}
        assert "after" in kinds, where
        assert not again.recovered, where
        again.close()


@pytest.mark.parametrize("table", ["batch", "event"])
def test_a_blob_that_became_a_text_of_the_same_bytes_is_read(path: Path, table: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(f"UPDATE {table} SET body = CAST(body AS TEXT)")  # noqa: S608 - fixed text
        assert db.execute("PRAGMA quick_check").fetchone() == ("ok",)
    assert len(stored_events(path, (), 0, 100)) == 6
    spool = opened(path)
    assert (len(spool.pending(100)), len(spool.events()), spool.recovered) == (6, 6, False)
    spool.close()


def test_who_reads_a_damaged_file_is_told_what_mends_it(path: Path) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("UPDATE event SET kind = CAST(x'ff' AS TEXT)")
    with pytest.raises(SpoolError) as caught:
        stored_events(path, (), 0, 100)
    assert "moves the damaged file aside" in caught.value.remedy


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE event SET kind = CAST(x'ff' AS TEXT)",
        "UPDATE sqlite_sequence SET seq = 9223372036854775807",
        "UPDATE event SET id = 9223372036854775807 WHERE id = 1",
        "UPDATE boot SET next_sequence = 9223372036854775807",
    ],
    ids=["text", "sequence", "row", "batch number"],
)
def test_impossible_values_are_damage(path: Path, damage: str) -> None:
    spool = opened(path)
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(damage)
    use(spool)
    spool.close()
    again = opened(path)
    use(again)
    assert "telemetry" in [found.kind for found in again.events()]
    assert path.with_name("spool.db.corrupt").exists()
    again.close()


def test_a_file_that_another_process_has_locked_keeps_no_agent_from_starting(path: Path) -> None:
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        spool = opened(path)
        assert "locked" in spool.events(("storage",))[0].reason
        spool.append([point()], [event("after")])
        assert len(spool.pending()) == 2
        spool.close()

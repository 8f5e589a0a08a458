"""Stores telemetry on disk until the controller has stored it, and the device's own events.

Rules:
- The spool removes a batch only when it is acknowledged or when the spool is over its limit. In the
  second case the oldest of the least important goes first: readings of the device, then counters
  and histograms, then events. A later batch says how many have gone, whole or in part.
- The spool moves a corrupt file aside and begins a new one, because a telemetry fault must not stop
  the agent.
- Batches are numbered per boot and file: each new file has a name of its own in the boot
  identifier, so that its first batches are not mistaken for those of a lost file.
- No fault of the file ends the agent or keeps it from starting: the agent serves without telemetry,
  too.
- Appended data survives the end of the process at any instant, and so do the figures that were
  kept meanwhile (`keep`): the next start makes a batch of them, with the number that they would
  have had, so that nothing counts twice. A power cut may lose the last seconds.
- While the disk is full or cannot be written, the spool keeps telemetry in memory, within a smaller
  limit, and an event says so. It looks once a minute whether the disk can be written again.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from telemetry.batches import Item, cut, shorten
from telemetry.device.open_figures import OpenFigures
from telemetry.device.spool_file import (
    FAULTS,
    HEAD_BYTES,
    check_head,
    insert_batch,
    is_damage,
    is_unwritable,
    make_room,
    move,
    newest_events,
    oldest_batches,
    prepare,
    read_number,
)
from telemetry.errors import SpoolError
from wire.batch_clock import BatchClock
from wire.clock import Clock
from wire.telemetry import Event, Point, TelemetryAck, TelemetryBatch

EVENTS_KEPT = 1000
"""Events kept for queries on the device; with `batches.MAX_EVENT_BYTES` at most 16 MB."""

MAX_PENDING = 1000
MAX_SEQUENCE = 2**62
BUSY_S = 5.0
EVENTS_IN_MEMORY = 100
MEMORY_LIMIT_BYTES = 1024 * 1024
"""Limit of the batches that wait in memory: a device may have little of it."""

DISK_EVERY_S = 60.0
_NEXT = "SELECT next_sequence FROM boot WHERE boot = ?"
A = TypeVar("A")


class _Told(NamedTuple):
    """What batches tell beside what was recorded."""

    clock: BatchClock | msgspec.UnsetType = msgspec.UNSET
    answers: str | msgspec.UnsetType = msgspec.UNSET


class Spool:
    """Batches and events of one device on disk; usable from several threads.

    Args:
        path: The database file; its directory is made if it is missing.
        device: Whose telemetry it is.
        boot_id: This boot of the device, or this run of the agent.
        limit_bytes: The greatest size of all batches that wait.
        clock: Gives the time of the event that reports a recovery, and when to try the disk again.
    """

    def __init__(
        self, path: Path, *, device: str, boot_id: str, limit_bytes: int, clock: Clock
    ) -> None:
        self.recovered = False
        """The file was damaged, at the start or later, and a new one was made."""

        self._path = path
        self._device = device
        self._boot_id = boot_id
        self._limit_bytes = limit_bytes
        self._clock = clock
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._open_figures = OpenFigures(path.with_suffix(".open"))
        self._has_recovered = False
        self._boot = ""
        self._unwritten = 0
        self._in_memory_s: float | None = None
        """Since when telemetry is only in memory, or when the disk was tried last; else None."""

        try:
            self._run(lambda _db: None)
        except SpoolError as exc:  # such as a file that another process has locked
            self._keep_in_memory(exc)

    @property
    def boot_id(self) -> str:
        """The boot identifier that new batches carry."""
        return self._boot

    def append(
        self,
        points: Sequence[Point],
        events: Sequence[Event],
        clock: BatchClock | msgspec.UnsetType = msgspec.UNSET,
        *,
        answers: str | msgspec.UnsetType = msgspec.UNSET,
    ) -> None:
        """Store what was recorded until it is acknowledged.

        Args:
            points: Growth since the last call.
            events: What happened since.
            clock: What the clocks by which that was recorded show.
            answers: The request that the last batch answers, which is made even if it is empty.

        Raises:
            SpoolError: The disk cannot be written; the data counts as one dropped batch.
        """
        if not points and not events and not answers:
            return
        kept = [shorten(event) for event in events]
        groups, refused = cut((*points, *kept))
        if answers and not groups:
            groups = [[]]
        told = _Told(clock, answers)
        try:
            self._run(lambda db: self._append(db, groups, self._unwritten + refused, told))
        except SpoolError:
            self._unwritten += 1
            raise
        self._unwritten = 0
        with self._lock:
            self._open_figures.keep(())

    def keep(
        self, points: Sequence[Point], clock: BatchClock | msgspec.UnsetType = msgspec.UNSET
    ) -> None:
        """Keep figures until the next `append`, which has them too, in place of those kept before.

        Args:
            points: All growth since the last `append`.
            clock: What the clocks by which they were recorded show.
        """
        groups, _ = cut(points)
        with self._lock:
            if self._db is None or self._in_memory_s is not None:
                return
            try:
                sequence = read_number(self._db, _NEXT, self._boot)
            except FAULTS:
                return  # the next append finds out what is wrong
            self._open_figures.keep(self._batches(groups, sequence, 0, _Told(clock)))

    def pending(self, limit: int = 8) -> list[tuple[TelemetryBatch, bytes]]:
        """Return the oldest batches that wait, including those of earlier boots.

        Args:
            limit: How many at most.

        Returns:
            Each batch and the bytes to publish.

        Raises:
            SpoolError: The disk cannot be read.
        """
        return self._run(lambda db: oldest_batches(db, min(max(limit, 0), MAX_PENDING)))

    def acknowledge(self, ack: TelemetryAck) -> None:
        """Delete batches that the controller has stored; unknown ones are ignored.

        Args:
            ack: Which batches.

        Raises:
            SpoolError: The disk cannot be written.
        """
        stored = [(ack.boot_id, number) for number in ack.sequences if 0 <= number <= MAX_SEQUENCE]
        statement = "DELETE FROM batch WHERE boot = ? AND sequence = ?"
        self._run(lambda db: db.executemany(statement, stored))

    def events(
        self, kinds: tuple[str, ...] = (), since_s: float = 0, limit: int = 200
    ) -> list[Event]:
        """Return what happened on this device, acknowledged or not.

        Args:
            kinds: Only these; empty for all.
            since_s: Only from this wall time on.
            limit: Only the newest ones, at most this many.

        Returns:
            Events, oldest first.

        Raises:
            SpoolError: The disk cannot be read.
        """
        return self._run(
            lambda db: newest_events(db, kinds, since_s, min(max(limit, 0), EVENTS_KEPT))
        )

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None
            self._open_figures.close()
            self._in_memory_s = None

    def _append(
        self, db: sqlite3.Connection, groups: list[list[Item]], dropped: int, told: _Told
    ) -> None:
        """Write batches and events and make room, within the caller's transaction."""
        dropped += read_number(db, "SELECT dropped FROM loss")
        sequence = read_number(db, _NEXT, self._boot)
        for batch in self._batches(groups, sequence, dropped, told):
            insert_batch(db, batch)
        if groups:
            sequence, dropped = sequence + len(groups), 0
        db.execute("UPDATE boot SET next_sequence = ? WHERE boot = ?", (sequence, self._boot))
        db.execute("UPDATE loss SET dropped = ?", (dropped,))
        in_memory = self._in_memory_s is not None
        oldest = "DELETE FROM event WHERE id <= (SELECT max(id) FROM event) - ?"
        db.execute(oldest, (EVENTS_IN_MEMORY if in_memory else EVENTS_KEPT,))
        make_room(
            db, min(self._limit_bytes, MEMORY_LIMIT_BYTES) if in_memory else self._limit_bytes
        )

    def _batches(
        self, groups: list[list[Item]], sequence: int, dropped: int, told: _Told
    ) -> list[TelemetryBatch]:
        """Return the batches of some groups; the first tells what was lost before."""
        last = len(groups) - 1
        return [
            TelemetryBatch(
                device=self._device,
                boot_id=self._boot,
                sequence=sequence + number,
                points=tuple(item for item in group if not isinstance(item, Event)),
                events=tuple(item for item in group if isinstance(item, Event)),
                dropped=0 if number else dropped,
                clock=told.clock,
                answers=told.answers if number == last else msgspec.UNSET,
            )
            for number, group in enumerate(groups)
        ]

    def _run(self, work: Callable[[sqlite3.Connection], A]) -> A:
        """Do work in one transaction; if the file is damaged, do it again in a new file.

        Args:
            work: What to do; it may be called twice.

        Returns:
            What it returned.

        Raises:
            SpoolError: The file is busy, or memory is used up.
        """
        with self._lock:
            self._return_to_disk()
            try:
                return self._attempt(work)
            except FAULTS as exc:
                fault: Exception = exc
            if is_damage(fault) and self._in_memory_s is None:
                try:
                    self._begin_anew(fault)
                    return self._attempt(work)
                except FAULTS as exc:
                    fault = exc
            if not is_unwritable(fault) or self._in_memory_s is not None:
                raise self._error(fault) from fault
            self._keep_in_memory(fault)
            try:
                return self._attempt(work)
            except FAULTS as exc:
                raise self._error(exc) from exc

    def _attempt(self, work: Callable[[sqlite3.Connection], A]) -> A:
        if self._db is None:
            self._db, self._boot = self._opened(self._path)
        with self._db:
            return work(self._db)

    def _recover(self, db: sqlite3.Connection) -> None:
        """Make batches of what an earlier process kept and did not append."""
        if self._has_recovered:
            return  # what is kept now is this process's own, and it appends that itself
        for batch in self._open_figures.read():
            row = db.execute(_NEXT, (batch.boot_id,)).fetchone()
            if batch.device != self._device or (row is not None and row[0] > batch.sequence):
                continue
            insert_batch(db, batch)
            db.execute(
                "INSERT INTO boot VALUES (?, ?) ON CONFLICT (boot) DO UPDATE SET next_sequence = ?",
                (batch.boot_id, batch.sequence + 1, batch.sequence + 1),
            )

    def _keep_in_memory(self, cause: Exception) -> None:
        """Go on without the disk."""
        if self._db is not None:
            self._db.close()
        self._in_memory_s = self._clock.monotonic_s()
        self._db, self._boot = self._opened(None)
        self._tell("storage", f"telemetry is kept in memory, where a restart loses it: {cause}")

    def _return_to_disk(self) -> None:
        """Move what is in memory to the disk, if it is time to try and the disk can be written."""
        now_s = self._clock.monotonic_s()
        if self._in_memory_s is None or now_s - self._in_memory_s < DISK_EVERY_S:
            return
        self._in_memory_s = now_s
        if self._db is None:
            return
        try:
            db, boot = self._opened(self._path)
        except FAULTS:
            return
        try:
            with db:
                move(self._db, db)
        except FAULTS:
            db.close()
            return
        self._db.close()
        self._db, self._boot, self._in_memory_s = db, boot, None
        self._tell("storage", "telemetry is kept on the disk again")

    def _tell(self, kind: str, reason: str) -> None:
        event = Event(at_s=self._clock.now_s(), kind=kind, reason=reason)
        self._attempt(lambda db: self._append(db, [[shorten(event)]], 0, _Told()))

    def _begin_anew(self, cause: Exception) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None
        self._path.replace(self._path.with_name(f"{self._path.name}.corrupt"))
        for suffix in ("-wal", "-shm"):
            self._path.with_name(f"{self._path.name}{suffix}").unlink(missing_ok=True)
        self.recovered = True
        self._tell("telemetry", f"the spool was damaged and begun anew: {cause}")

    def _error(self, cause: Exception) -> SpoolError:
        return SpoolError(
            f"the telemetry spool {self._path} cannot be used: {cause}",
            remedy="check the free space and the permissions of its directory",
        )

    def _opened(self, path: Path | None) -> tuple[sqlite3.Connection, str]:
        """Open a file, or a spool in memory; return it, and the boot that new batches carry."""
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            try:
                check_head(os.pread(descriptor, HEAD_BYTES, 0))
            finally:
                os.close(descriptor)
        db = sqlite3.connect(path or ":memory:", timeout=BUSY_S, check_same_thread=False)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute("PRAGMA journal_size_limit = 1048576")
            with db:
                db.execute("BEGIN IMMEDIATE")
                boot = f"{self._boot_id}.{prepare(db)}"
                if path is not None:
                    self._recover(db)
                db.execute("INSERT OR IGNORE INTO boot VALUES (?, 0)", (boot,))
                others = "boot <> ? AND boot NOT IN (SELECT boot FROM batch)"
                db.execute(f"DELETE FROM boot WHERE {others}", (boot,))  # noqa: S608 - fixed text
        except BaseException:
            db.close()
            raise
        if path is not None and not self._has_recovered:
            self._has_recovered = True
            self._open_figures.keep(())
        return db, boot

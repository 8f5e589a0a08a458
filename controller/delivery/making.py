"""Makes deltas one after the other, in a thread that waits for their processes, and keeps them.

Rules:
- Each pair of files is made once, whoever asks for it and however often; the database remembers
  what came of it, also that it does not pay.
- What devices wait for goes before what is made ahead.
- That a delta is being made is saved before. Of a controller that was killed meanwhile it is not
  tried again for a while, for it may be why.
- All deltas together have a limit; those that were longest not offered go first.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Final

from controller.delivery.encoding import Encoding, StoppedError
from controller.domain.deltas import (
    FIRST_BYTES_PER_S,
    Kept,
    Way,
    chunk_bytes_of,
    to_remove,
    wait_s,
)
from controller.domain.states import DeltaState
from controller.services.blobs import READ_BYTES, BlobStore
from controller.store import deltas
from controller.store.database import Database
from wire.clock import Clock
from wire.codec import sha256_hex
from wire.errors import FleetError
from wire.package.index import CHUNK_BYTES

MAX_WAITING: Final = 512
"""Pairs that devices wait for, and as many that are made ahead; what is asked for beyond has to be
asked for again."""

MAX_OF_DEVICE: Final = 64
"""Pairs that wait because one device asked for them."""

NEW_SHARE: Final = 0.3
"""Of the last delta in the speed that is expected of the next one."""

_log = logging.getLogger(__name__)


class Maker:
    """Makes deltas and keeps them.

    Args:
        database: Knows which deltas there are.
        kept: The deltas.
        encoding: Makes one.
        keep_bytes: How much all of them may take.
        clock: Wall time and durations.
    """

    def __init__(
        self, database: Database, kept: BlobStore, encoding: Encoding, keep_bytes: int, clock: Clock
    ) -> None:
        self._database = database
        self._kept = kept
        self._encoding = encoding
        self._keep_bytes = keep_bytes
        self._clock = clock
        self._asked = threading.Condition()
        self._urgent: OrderedDict[deltas.Pair, Way] = OrderedDict()
        self._asked_by: dict[deltas.Pair, str] = {}
        """Which device has asked first for what is urgent."""

        self._ahead: OrderedDict[deltas.Pair, Way] = OrderedDict()
        self._current: Way | None = None
        self._began_s = 0.0
        self._bytes_per_s = FIRST_BYTES_PER_S
        self._stopping = False
        self._thread = threading.Thread(target=self._make_for_ever, name="deltas", daemon=True)

    def start(self) -> None:
        """Begin to make what waits."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """End the process; what was not made is asked for again."""
        with self._asked:
            self._stopping = True
            self._asked.notify()
        self._encoding.stop()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def ask(self, device: str, way: Way) -> float | None:
        """Let a delta be made for a device that waits for it.

        Args:
            device: Who asks.
            way: From which file to which; whether it is there already was looked up.

        Returns:
            When to ask again, in seconds; None if too many wait already, or too many for this
            device.
        """
        with self._asked:
            if not self._is_current(way.pair) and way.pair not in self._urgent:
                of_device = sum(each == device for each in self._asked_by.values())
                if len(self._urgent) >= MAX_WAITING or of_device >= MAX_OF_DEVICE:
                    return None
                self._ahead.pop(way.pair, None)
                self._urgent[way.pair], self._asked_by[way.pair] = way, device
                self._asked.notify()
            return self._wait_s(way)

    def ask_ahead(self, way: Way) -> None:
        """Let a delta be made for which no device has asked."""
        with self._asked:
            is_known = self._is_current(way.pair) or way.pair in self._urgent
            if not is_known and len(self._ahead) < MAX_WAITING:
                self._ahead[way.pair] = way
                self._asked.notify()

    def may_keep(self, size_bytes: int) -> bool:
        """Tell whether a delta of a size is kept."""
        return size_bytes <= self._keep_bytes

    def is_there(self, delta: Kept) -> bool:
        """Tell whether a delta can be read; forget one that cannot, so that it is made again.

        Raises:
            DatabaseError: The database does not answer.
            StorageError: The disk does not answer.
        """
        if self._kept.size_bytes(delta.sha256) == delta.size_bytes:
            return True
        _log.warning("the delta %s is gone, and is made again when it is asked for", delta.sha256)
        with self._database.transaction() as transaction:
            deltas.remove(transaction, [delta.pair])
        return False

    def trim(self) -> None:
        """Remove deltas that nobody may read any more, and those beyond the limit.

        Raises:
            DatabaseError: The database does not answer.
            StorageError: The disk does not answer.
        """
        with self._database.reading() as transaction:
            unwanted = deltas.unwanted(transaction)
            kept = deltas.kept(transaction)
        gone = set(unwanted)
        left = [each for each in kept if each.pair not in gone]
        over = to_remove(left, self._keep_bytes)
        pairs = [*unwanted, *(each.pair for each in over)]
        if not pairs:
            return
        with self._database.transaction() as transaction:
            deltas.remove(transaction, pairs)
        for each in (*over, *(each for each in kept if each.pair in gone)):
            self._kept.remove(each.sha256)

    def tidy(self) -> None:
        """Bring the database and the directory together, before anything else.

        The database may be restored from a backup, which holds no deltas; the last controller may
        have been killed between the two.

        Raises:
            DatabaseError: The database does not answer.
            StorageError: The disk does not answer.
        """
        self._encoding.clear()
        there = set(self._kept.names())
        with self._database.transaction() as transaction:
            deltas.fail_interrupted(transaction, now_s=self._clock.now_s())
            known = deltas.kept(transaction)
            deltas.remove(transaction, [each.pair for each in known if each.sha256 not in there])
        for sha256 in sorted(there - {each.sha256 for each in known}):
            self._kept.remove(sha256)

    def _is_current(self, pair: deltas.Pair) -> bool:
        return self._current is not None and self._current.pair == pair

    def _wait_s(self, way: Way) -> float:
        """Return when a delta may be ready that is made now or waits."""
        before = [] if self._current is None else [self._current]
        passed_s = self._clock.monotonic_s() - self._began_s if before else 0.0
        if not self._is_current(way.pair):
            for pair, waiting in self._urgent.items():
                before.append(waiting)
                if pair == way.pair:
                    break
        return wait_s((each.work_bytes for each in before), self._bytes_per_s, passed_s)

    def _make_for_ever(self) -> None:
        while (way := self._next()) is not None:
            try:
                self._make(way)
            except FleetError as exc:
                _log.warning("a delta cannot be kept: %s", exc)
            except Exception:  # noqa: BLE001 - the next delta may succeed; a dead thread cannot
                _log.exception("the controller failed to make a delta")
            finally:
                with self._asked:
                    self._current = None

    def _next(self) -> Way | None:
        """Wait for the next pair; None at the end."""
        with self._asked:
            self._asked.wait_for(lambda: self._stopping or self._urgent or self._ahead)
            if self._stopping:
                return None
            pair, way = (self._urgent or self._ahead).popitem(last=False)
            self._asked_by.pop(pair, None)
            self._current, self._began_s = way, self._clock.monotonic_s()
            return way

    def _make(self, way: Way) -> None:
        """Make a delta and save what came of it.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.transaction() as transaction:
            full_bytes, now_s = way.target.size_bytes, self._clock.now_s()
            if not deltas.begin(transaction, way.pair, full_bytes=full_bytes, now_s=now_s):
                return
        try:
            made = self._encoding.make(way)
            state, values = (DeltaState.NONE, {}) if made is None else self._keep(made)
        except StoppedError:
            with self._database.transaction() as transaction:
                deltas.remove(transaction, [way.pair])
            return
        except (FleetError, OSError) as exc:
            _log.warning("no delta to %s: %s", way.target.path, exc)
            state, values = DeltaState.FAILED, {}
        with self._database.transaction() as transaction:
            deltas.settle(transaction, way.pair, state, now_s=self._clock.now_s(), **values)
        self._encoding.clear()
        self._learn(way)
        self.trim()

    def _keep(self, made: Path) -> tuple[DeltaState, dict[str, object]]:
        """Put a delta among the others; return its state, and the columns that describe it.

        Raises:
            StorageError: The disk cannot be written.
        """
        size_bytes = made.stat().st_size
        if not self.may_keep(size_bytes):
            return DeltaState.NONE, {"size_bytes": size_bytes}
        chunk_bytes = chunk_bytes_of(size_bytes)
        chunks: list[str] = []
        digest = hashlib.sha256()
        with made.open("rb") as file:
            while part := file.read(chunk_bytes or CHUNK_BYTES):
                digest.update(part)
                chunks.append(sha256_hex(part))
        with self._kept.writer(digest.hexdigest()) as writer, made.open("rb") as file:
            while part := file.read(READ_BYTES):
                writer.write(part)
            writer.finish()
        return DeltaState.READY, {
            "sha256": digest.hexdigest(),
            "size_bytes": size_bytes,
            "chunk_bytes": chunk_bytes or CHUNK_BYTES,
            "chunks": chunks if chunk_bytes else [],
        }

    def _learn(self, way: Way) -> None:
        """Learn from a delta how long they take."""
        took_s = self._clock.monotonic_s() - self._began_s
        if took_s > 0:
            found = way.work_bytes / took_s
            self._bytes_per_s += NEW_SHARE * (found - self._bytes_per_s)

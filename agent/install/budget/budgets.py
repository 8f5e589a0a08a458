"""Counts what packages cost, keeps it on the disk, and ends a transfer that may cost no more now.

Rules:
- The network in use is the one whose interfaces have the default route. It is looked up again every
  `LOOK_S`; what comes meanwhile counts for the network before.
- The file is written before what it allows has come: while a transfer runs it holds up to
  `1 / RESERVES` of a bound more than was used. So a kill or a power cut makes the device count too
  much, and too little only by what comes between two looks at it, a window of a transfer at most.
- If the file cannot be written, the agent counts in memory; if it is damaged, it begins anew.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Final, NamedTuple

from agent.errors import DeferredError, NeedsDeltaError, StorageError
from agent.install.budget.boot import Boot
from agent.install.budget.decisions import (
    Bounds,
    Moment,
    Refusal,
    Wanted,
    date_of,
    decide,
    refusal_text,
    share_text,
)
from agent.install.budget.ledger import (
    WRITES,
    Ledger,
    Used,
    advanced,
    counted,
    is_possible,
    started,
    used,
)
from agent.install.budget.routes import default_interface
from agent.install.budget.settings import OTHER, NetworkSettings
from agent.install.window import Local
from agent.ports import RecorderPort
from agent.sealed import SealedFile, WriteFile
from wire.clock import Clock
from wire.errors import IntegrityError
from wire.files import write_atomic

LEDGER_FILE: Final = "budget.json"
LIMIT_BYTES: Final = 1024 * 1024
METRIC: Final = "fetched_bytes_total"
"""Counts the bytes of packages that came, by `network`."""

LOOK_S: Final = 5.0
"""Time between two looks at the routes, and at a wait."""

NEED_DELTA_S: Final = 3600.0
"""After this time an install that needs a delta looks whether there is one now."""

RESERVES: Final = 64
LEAST_RESERVE_BYTES: Final = 64 * 1024
MOST_RESERVE_BYTES: Final = 1024 * 1024
FINE_S: Final = 1.0
FINE_BYTES: Final = 64 * 1024
"""For so long, and so many bytes, what is allowed is not decided again."""

SAVE_S: Final = 600.0
"""How often the file is written while an install waits, for its clock."""

MAX_WALL_S: Final = 2.0**35
"""Some clocks show times that no calendar has; this is the year 3058."""


class Deferral(NamedTuple):
    """An install waits for its budget."""

    why: str
    look_s: float
    """After this time it may be otherwise."""


class Budgets:
    """What packages may cost on this device.

    Args:
        networks: The bounds of each network; the first whose interfaces fit is taken.
        write_bytes_per_day: What fetching may write to the storage; None for no bound.
        directory: Where the ledger is kept.
        procfs: Where procfs is mounted.
        recorder: Takes the bytes by network.
        clock: For dates.
        boot: For how much time has really passed.
        local: Returns what the clock on the wall shows.
        write: Writes the ledger.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it connects
        self,
        networks: Sequence[NetworkSettings],
        write_bytes_per_day: int | None,
        directory: Path,
        procfs: Path,
        recorder: RecorderPort,
        clock: Clock,
        boot: Boot,
        local: Local,
        *,
        write: WriteFile = write_atomic,
    ) -> None:
        self._networks = tuple(networks)
        self._write_bytes_per_day = write_bytes_per_day
        self._procfs = procfs
        self._recorder = recorder
        self._clock = clock
        self._boot = boot
        self._local = local
        self._file = SealedFile(
            directory / LEDGER_FILE, Ledger, limit_bytes=LIMIT_BYTES, write=write
        )
        self._lock = threading.Lock()
        self._looked_s = self._saved_s = clock.monotonic_s()
        self._network = self._network_now()
        self._pending: dict[str, int] = {}
        """Bytes that the ledger does not have yet."""

        self._fine: set[Wanted] = set()
        """What was allowed a moment ago: a transfer asks very often."""

        self._fine_until_s = float("-inf")

        self._reserved: dict[str, int] = {}
        """By what is counted: how much more than was used the file holds."""

        self._refused: tuple[Wanted, float] | None = None
        self.fault = ""
        """What was wrong with the file when it was read; empty if nothing was."""

        self.is_repair: Callable[[], bool] = lambda: False
        """Tells whether the present install is the repair of a lost release."""

        self.is_allowed: Callable[[], bool] = lambda: False
        """Tells whether the operator lets the present install go on; asked only if it would not."""

        self._ledger = started(self._read(), boot.id, boot.uptime_s())

    def came(self, size_bytes: int) -> None:
        """Count what came over the network for packages, useful or not; for any thread."""
        with self._lock:
            network = self._network_in_use()
            name = network.name if network is not None else OTHER
            self._note(name, size_bytes)
        self._recorder.add(METRIC, size_bytes, {"network": name})

    def wrote(self, size_bytes: int) -> None:
        """Count what fetching wrote to the storage."""
        with self._lock:
            self._note(WRITES, size_bytes)

    def check(self, wanted: Wanted) -> None:
        """End a transfer that may cost no more now.

        Args:
            wanted: What it fetches.

        Raises:
            NeedsDeltaError: Only a delta may come by this network.
            DeferredError: Nothing may come.
        """
        wanted = wanted._replace(is_repair=self.is_repair())
        with self._lock:
            if not self._is_fresh():
                self._fine.clear()
            if wanted in self._fine:
                return
            refusal = self._refusal(wanted)
            if any(rest_bytes < 0 for rest_bytes in self._reserved.values()):
                self._save()
            if refusal is None:
                if not self._fine:
                    self._fine_until_s = self._clock.monotonic_s() + FINE_S
                self._fine.add(wanted)
        if refusal is None or self.is_allowed():
            return
        self.settle()
        self._refused = (wanted, self._clock.monotonic_s())
        error = NeedsDeltaError if refusal.needs_delta else DeferredError
        raise error(refusal_text(refusal, self._local))

    def only_deltas(self) -> bool:
        """Tell whether no whole file may come by the network in use."""
        with self._lock:
            network = self._network_in_use()
        return network is not None and not network.is_full

    def deferral(self) -> Deferral | None:
        """Return why the transfer that was ended last may not go on yet, or None."""
        if self._refused is None:
            return None
        wanted, refused_s = self._refused
        now_s = self._clock.monotonic_s()
        with self._lock:
            refusal = self._refusal(wanted)
            if now_s - self._saved_s >= SAVE_S:
                self._save(exact=True)
        if refusal is None or (refusal.needs_delta and now_s - refused_s >= NEED_DELTA_S):
            return None
        look_s = LOOK_S
        if refusal.until_s is not None:
            look_s = min(max(refusal.until_s - self._now_s(), 1.0), LOOK_S)
        return Deferral(refusal_text(refusal, self._local), look_s)

    def settle(self) -> None:
        """Write what was really used, because nothing more comes for some time."""
        with self._lock:
            if self._pending or self._reserved:
                self._save(exact=True)

    def status(self) -> list[dict[str, Any]]:
        """Return what each network and the storage have used, for people and programs."""
        with self._lock:
            in_use = self._network_in_use()
            self._count()
            date = date_of(self._local(self._now_s()))
            return [
                *(
                    {
                        "name": each.name,
                        "in_use": each is in_use,
                        "text": _use_text(each, now := used(self._ledger, date, each.name)),
                        "day_bytes": now.day_bytes,
                        "month_bytes": now.month_bytes,
                        "bytes_per_day": each.bytes_per_day,
                        "bytes_per_month": each.bytes_per_month,
                    }
                    for each in self._networks
                ),
                *self._writes(date),
            ]

    def _writes(self, date: str) -> list[dict[str, Any]]:
        if self._write_bytes_per_day is None:
            return []
        now, bound_bytes = used(self._ledger, date, WRITES), self._write_bytes_per_day
        return [
            {
                "name": "writes",
                "in_use": True,
                "text": f"{share_text(now.day_bytes, bound_bytes)} today",
                "day_bytes": now.day_bytes,
                "month_bytes": now.month_bytes,
                "bytes_per_day": bound_bytes,
                "bytes_per_month": None,
            }
        ]

    def _is_fresh(self) -> bool:
        """Tell whether what was allowed last need not be decided again."""
        has_time = self._clock.monotonic_s() < self._fine_until_s
        return has_time and sum(self._pending.values()) < FINE_BYTES

    def _refusal(self, wanted: Wanted) -> Refusal | None:
        self._count()
        bounds = Bounds(self._network_in_use(), self._write_bytes_per_day)
        return decide(bounds, Moment(self._ledger, wanted, self._now_s(), self._local))

    def _note(self, name: str, size_bytes: int) -> None:
        self._pending[name] = self._pending.get(name, 0) + size_bytes

    def _count(self) -> None:
        """Bring the ledger up to now."""
        self._ledger = advanced(self._ledger, self._now_s(), self._boot.uptime_s())
        date = date_of(self._local(self._now_s()))
        for name, size_bytes in self._pending.items():
            self._ledger = counted(self._ledger, date, name, size_bytes)
            rest_bytes = self._reserved.get(name, 0) - size_bytes
            self._reserved[name] = rest_bytes if self._bound(name) is not None else 0
        self._pending.clear()

    def _save(self, *, exact: bool = False) -> None:
        """Write the ledger, with a reserve for what comes next unless it is to be exact."""
        self._count()
        ledger, date = self._ledger, date_of(self._local(self._now_s()))
        reserves = {} if exact else {name: self._reserve(name) for name in self._reserved}
        for name, size_bytes in reserves.items():
            ledger = counted(ledger, date, name, size_bytes)
        self._reserved = reserves
        self._saved_s = self._clock.monotonic_s()
        with contextlib.suppress(StorageError):  # it is counted in memory
            self._file.write(ledger)

    def _reserve(self, name: str) -> int:
        bound_bytes = self._bound(name)
        if bound_bytes is None:
            return 0
        return min(max(bound_bytes // RESERVES, LEAST_RESERVE_BYTES), MOST_RESERVE_BYTES)

    def _bound(self, name: str) -> int | None:
        """Return the smallest bound of what is counted under a name, or None."""
        if name == WRITES:
            return self._write_bytes_per_day
        for network in self._networks:
            if network.name == name:
                bounds = (network.bytes_per_day, network.bytes_per_month)
                return min((each for each in bounds if each is not None), default=None)
        return None

    def _network_in_use(self) -> NetworkSettings | None:
        now_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            self._network = self._network_now()
        return self._network

    def _network_now(self) -> NetworkSettings | None:
        if not self._networks:
            return None
        interface = default_interface(self._procfs)
        if interface is None:
            return None
        return next((each for each in self._networks if _has(each, interface)), None)

    def _now_s(self) -> float:
        return min(max(self._clock.now_s(), 0.0), MAX_WALL_S)

    def _read(self) -> Ledger:
        new = Ledger(seen_s=self._now_s())
        with contextlib.suppress(IntegrityError):
            ledger = self._file.read()
            if ledger is None or is_possible(ledger):
                return ledger or new
        self._file.set_aside()
        self.fault = f"{LEDGER_FILE} was damaged; what networks use is counted from now on"
        return new


def _has(network: NetworkSettings, interface: str) -> bool:
    return any(fnmatchcase(interface, pattern) for pattern in network.interfaces)


def _use_text(network: NetworkSettings, now: Used) -> str:
    day = share_text(now.day_bytes, network.bytes_per_day)
    month = share_text(now.month_bytes, network.bytes_per_month)
    return f"{day} today, {month} this month"

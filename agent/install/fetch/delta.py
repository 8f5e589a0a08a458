"""Makes a file from a version that the device has and a delta, in a process of its own.

Rules:
- The result is checked against the signed digests, like what comes from anywhere; the delta itself
  needs no signature.
- Whatever is wrong with a delta, the next source brings the file: a delta only saves bytes.
- A delta that is being made is waited for as long as the controller expects, within bounds for all
  files of an install together.
- Without Zstandard on the device there are no deltas.
- The process has the memory that the form of deltas bounds, and a low priority: what serves goes
  first.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from agent.errors import BlobMissingError, storage_faults
from agent.install.fetch.part import Blob, Part
from agent.install.fetch.slowness import Slow
from agent.install.fetch.sources import ChunkSource, Errand, SourceError, SourceName, Ways
from wire.clock import Clock
from wire.delivery import DeltaSource as Delta
from wire.delta.zstd import is_installed
from wire.errors import FleetError, IntegrityError
from wire.files import PRIVATE
from wire.package.index import is_digest
from wire.progress import DELTA

NOTHING_SHA256: Final = hashlib.sha256(b"").hexdigest()
MIN_CHUNK_BYTES, MAX_CHUNK_BYTES = 8 * 1024, 16 * 1024**2
LEAST_BYTES: Final = 32 * 1024
"""A smaller file has come before its delta is applied."""

WAIT_LEAST_S: Final = 10.0
WAIT_MOST_S: Final = 60.0
WAIT_BYTES_PER_S: Final = 256 * 1024
"""How long an install waits for deltas: as long as its files take over a link of this rate, within
bounds. On a faster link chunks would have come; on a slower one a delta saves more than the wait. A
bound for each file would make an install of twenty small ones wait for minutes."""

LEAST_BYTES_PER_S: Final = 512 * 1024
"""Of the new file: what the slowest device makes. A process that needs longer is ended."""

UNUSABLE: Final = 1
"""Exit status of `python -m wire.delta` for a delta that cannot make the file."""

MAX_TRIES: Final = 3
START_S: Final = 60.0
NICE: Final = 10
POLL_S: Final = 0.05
KEPT_ENVIRONMENT: Final = ("PATH", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
MAX_LINE: Final = 200


class DeltaSource:
    """Makes files from deltas.

    Args:
        ways: Knows the deltas.
        carriers: The sources that bring a delta, in their order.
        clock: For waiting.
    """

    name: SourceName = DELTA

    def __init__(self, ways: Ways, carriers: Sequence[ChunkSource], clock: Clock) -> None:
        self._ways = ways
        self._carriers = tuple(carriers)
        self._clock = clock
        self._failed: set[str] = set()
        """Deltas that did not give their file; they would not the next time."""

        self._tries: dict[str, int] = {}
        """By delta: how often it could not be applied."""

        self._waited_for: dict[str, int] = {}
        """Sizes of the files of this install whose deltas are waited for."""

        self._waited_s = 0.0

    def bring(self, part: Part, errand: Errand) -> None:
        """Make the file if there is a delta to it; see `ChunkSource`.

        Raises:
            SourceError: The delta did not come, or does not make it.
        """
        if not errand.asks or not is_installed():
            return
        delta = self._delta(part.blob, errand)
        if delta is None or delta.sha256 in self._failed or not _pays(delta, part, errand):
            return
        base = errand.holdings.file(delta.base)
        if base is None and delta.base != NOTHING_SHA256:
            return
        directory = part.path.parent
        come, made = directory / delta.sha256, directory / f"{delta.sha256}.made"
        try:
            if base is None:
                base = directory / NOTHING_SHA256
                _empty(base)
            self._fetch(delta, come, errand)
            self._apply((base, come, made), part.blob, errand)
            errand.wrote(made.stat().st_size)
            brought_bytes = part.replace(made)
            if not part.complete:
                self._failed.add(delta.sha256)
                raise SourceError(f"the delta {delta.sha256} does not give the signed file")
            errand.progress(brought_bytes, DELTA)
        except OSError as exc:  # mostly there is no room for it: the file itself needs less
            raise SourceError(
                f"no delta can be used: {(exc.strerror or str(exc)).lower()}"
            ) from exc
        finally:
            if part.complete or delta.sha256 in self._failed:
                come.unlink(missing_ok=True)
            made.unlink(missing_ok=True)

    def end(self) -> None:
        """Let the next install wait anew."""
        self._waited_for, self._waited_s = {}, 0.0

    def _delta(self, blob: Blob, errand: Errand) -> Delta | None:
        """Return the delta to a file, and wait for one that is being made."""
        if blob.chunks is None or blob.size_bytes < LEAST_BYTES:
            return None
        begun_s = self._clock.monotonic_s()
        end_s = begun_s + self._patience_s(blob, errand)
        try:
            return self._awaited(blob, errand, end_s)
        finally:
            self._waited_s += self._clock.monotonic_s() - begun_s

    def _patience_s(self, blob: Blob, errand: Errand) -> float:
        """Return how long this install may still wait for deltas."""
        self._waited_for[blob.sha256] = blob.size_bytes
        together_s = sum(self._waited_for.values()) / WAIT_BYTES_PER_S
        # Where nothing but a delta may come, there is no faster way to give up for.
        waited_s = 0.0 if errand.only_deltas() else self._waited_s
        return min(max(together_s, WAIT_LEAST_S), WAIT_MOST_S) - waited_s

    def _awaited(self, blob: Blob, errand: Errand, end_s: float) -> Delta | None:
        while True:
            ways = self._ways.of(blob.sha256, errand)
            if ways is None or ways.delta is not None or ways.delta_in_s <= 0:
                return ways.delta if ways is not None else None
            again_s = self._clock.monotonic_s() + max(ways.delta_in_s, 1.0)
            if again_s > end_s:
                return None
            while self._clock.monotonic_s() < again_s:
                errand.check()
                self._clock.sleep(POLL_S)
            self._ways.forget(blob.sha256)

    def _fetch(self, delta: Delta, come: Path, errand: Errand) -> None:
        """Bring the delta itself.

        Raises:
            SourceError: It did not come.
            FleetError: The errand's check raised it.
        """
        blob = Blob(
            sha256=delta.sha256,
            size_bytes=delta.size_bytes,
            chunk_bytes=delta.chunk_bytes,
            chunks=delta.chunks or None,
        )
        quiet = Errand(check=errand.check, wrote=errand.wrote, asks=errand.asks)
        fault: FleetError | None = None
        with Part(blob, come, self._clock, errand.wrote) as part:
            part.recall(errand.check)
            for carrier in self._carriers:
                if part.complete:
                    break
                last = carrier is self._carriers[-1]
                try:
                    carrier.bring(part, _patient(quiet, errand) if last else quiet)
                except (SourceError, BlobMissingError, IntegrityError) as exc:
                    fault = exc  # the controller may have removed it
            if not part.complete:
                raise SourceError(f"the delta {delta.sha256} did not come") from fault
            try:
                part.close_whole()
            except FleetError as exc:
                self._failed.add(delta.sha256)
                raise SourceError(f"the delta {delta.sha256} came damaged") from exc

    def _apply(self, files: tuple[Path, Path, Path], blob: Blob, errand: Errand) -> None:
        """Run the process that makes the file.

        Raises:
            SourceError: It failed.
            FleetError: The errand's check raised it.
            OSError: It cannot be started.
        """
        command = [sys.executable, "-P", "-m", "wire.delta", *(str(file) for file in files)]
        process = subprocess.Popen(
            [*command, "--limit-bytes", str(blob.size_bytes)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ},
            start_new_session=True,
        )
        with process:
            try:
                with contextlib.suppress(OSError):  # it may have ended
                    os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
                end_s = self._clock.monotonic_s() + START_S + blob.size_bytes / LEAST_BYTES_PER_S
                while not _has_ended(process):
                    errand.check()
                    if self._clock.monotonic_s() > end_s:
                        raise SourceError("applying the delta takes too long")
            finally:
                process.kill()
            said = process.stderr.read(4 * MAX_LINE) if process.stderr else b""
        if process.returncode != 0:
            tries = self._tries.get(files[1].name, 0) + 1
            self._tries[files[1].name] = tries
            # Another status is a fault of this machine, such as too little memory: it may pass.
            if process.returncode == UNUSABLE or tries >= MAX_TRIES:
                self._failed.add(files[1].name)
            line = said.decode(errors="replace").strip()[:MAX_LINE]
            raise SourceError(f"the delta cannot be applied: {line or process.returncode}")


def _patient(quiet: Errand, errand: Errand) -> Errand:
    """Return an errand that leaves no source for being slow: the file itself would take longer."""

    def too_slow(slow: Slow) -> bool:
        return errand.too_slow(msgspec.structs.replace(slow, stays=not slow.other))

    return msgspec.structs.replace(quiet, too_slow=too_slow)


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Wait a little for a process, and tell whether it has ended."""
    try:
        process.wait(POLL_S)
    except subprocess.TimeoutExpired:
        return False
    return True


def _pays(delta: Delta, part: Part, errand: Errand) -> bool:
    """Tell whether a delta is worth its bytes, and its sizes can be true."""
    lacking_bytes = sum(part.blob.length(index) for index in part.lacking)
    if errand.only_deltas():  # the rest may not come as it is, however small it is
        lacking_bytes = part.blob.size_bytes
    if not (is_digest(delta.sha256) and MIN_CHUNK_BYTES <= delta.chunk_bytes <= MAX_CHUNK_BYTES):
        return False
    has_digests = all(is_digest(each) for each in delta.chunks)
    count = -(-delta.size_bytes // delta.chunk_bytes)
    return has_digests and len(delta.chunks) in {0, count} and 0 < delta.size_bytes < lacking_bytes


def _empty(path: Path) -> None:
    with storage_faults("cannot make an empty file"):
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, PRIVATE))

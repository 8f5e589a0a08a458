"""Runs the process that makes a delta, with a limit of time, and cleans up behind it.

Rules:
- One process at a time, in a folder that is emptied before and after.
- The process gets only those parts of the environment that it needs, and so no secrets.
- Whatever becomes of the process, the caller gets a delta, the word that it does not pay, or an
  error.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from controller.delivery.encoder import Job, Source
from controller.domain.deltas import Package, Way, beside
from controller.errors import DeltaMakingError, StorageError
from controller.services.blobs import UPLOAD, BlobStore
from wire.codec import to_json
from wire.package.index import FileEntry

LEAST_S: Final = 60.0
BYTES_PER_S: Final = 1e6
MOST_S: Final = 3600.0
"""The limit of time: some seconds for each file, and a sixth of the speed that was measured for
files without known tensors, for the process has the lowest priority."""

LEAST_BYTES: Final = 512 * 1024**2
MEMORY_FACTOR: Final = 2
"""The limit of memory: what NumPy and the work on a mebibyte need, and twice the target's size. A
delta that pays takes up to 60 % of that size, and is held twice."""

KEPT_ENVIRONMENT: Final = ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH", "PYTHONPATH")
ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
MAX_REASON_BYTES: Final = 4096
MAX_REASON_CHARS: Final = 200


class StoppedError(Exception):
    """The controller stops; the delta is made at another time."""


def time_limit_s(way: Way) -> float:
    """Return how long making a delta may take."""
    return min(LEAST_S + way.work_bytes / BYTES_PER_S, MOST_S)


class Encoding:
    """Makes deltas, one after the other.

    Args:
        folder: For what is made; it is emptied.
        blobs: The files.
        limit_s: How long each may take.
    """

    def __init__(
        self, folder: Path, blobs: BlobStore, limit_s: Callable[[Way], float] = time_limit_s
    ) -> None:
        self._folder = folder
        self._limit_s = limit_s
        self._blobs = blobs
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = threading.Event()

    def make(self, way: Way) -> Path | None:
        """Make a delta.

        Args:
            way: From which file to which.

        Returns:
            The delta, until the next call; None if it does not pay.

        Raises:
            DeltaMakingError: The process failed, was ended or took too long, or cannot be started.
            StorageError: The folder cannot be used.
            StoppedError: `stop` was called.
        """
        output, log = self._folder / "delta", self._folder / "log"
        self.clear()
        try:
            job = self._folder / "job.json"
            job.write_bytes(to_json(self._job(way, output)))
            code = self._run(job, log, self._limit_s(way))
        except OSError as exc:
            fact = (exc.strerror or str(exc)).lower()
            raise DeltaMakingError(f"cannot make a delta in {self._folder}: {fact}") from exc
        if code != 0:
            raise DeltaMakingError(f"the process that makes a delta failed: {_reason(code, log)}")
        return output if output.exists() else None

    def clear(self) -> None:
        """Remove what a process left.

        The folder stays: a backup that goes through the directory meanwhile would miss it.

        Raises:
            StorageError: The folder cannot be made or emptied.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            for path in self._folder.iterdir():
                path.unlink()
        except OSError as exc:
            fact = (exc.strerror or str(exc)).lower()
            raise StorageError(f"cannot make deltas in {self._folder}: {fact}") from exc

    def stop(self) -> None:
        """End the process, and start no other."""
        with self._lock:
            self._stopped.set()
            if self._process is not None:
                _kill(self._process)

    def _job(self, way: Way, output: Path) -> Job:
        """Say what to make.

        Raises:
            DeltaMakingError: A file is not there.
        """
        nothing = self._folder / "nothing"
        nothing.touch(mode=0o600)
        old = Source(name="", path=str(nothing))
        if way.base is not None and way.base_package is not None:
            old = self._source(way.base_package, way.base)
        return Job(
            old=old,
            new=self._source(way.package, way.target),
            output=str(output),
            memory_bytes=LEAST_BYTES + MEMORY_FACTOR * way.target.size_bytes,
        )

    def _source(self, package: Package, entry: FileEntry) -> Source:
        """Say where a file is.

        Raises:
            DeltaMakingError: It is not there.
        """
        if self._blobs.size_bytes(entry.sha256) is None:
            raise DeltaMakingError(f"there is no blob {entry.sha256}", remedy=UPLOAD)

        def name(path: str) -> str:
            return path.rpartition("/")[2]

        siblings = {
            name(each.path): self._blobs.path(each.sha256) for each in beside(package, entry.path)
        }
        return Source(
            name=name(entry.path),
            path=str(self._blobs.path(entry.sha256)),
            beside={key: str(path) for key, path in siblings.items() if path.is_file()},
        )

    def _run(self, job: Path, log: Path, timeout_s: float) -> int:
        """Run the process to its end and return its status.

        Raises:
            DeltaMakingError: It took too long.
            StoppedError: It was ended, or not started, because the controller stops.
            OSError: It cannot be started.
        """
        environment = {n: os.environ[n] for n in KEPT_ENVIRONMENT if n in os.environ} | ONE_THREAD
        reading, lifeline = os.pipe()
        try:
            with log.open("wb") as stderr, self._lock:
                if self._stopped.is_set():
                    raise StoppedError
                self._process = process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "controller.delivery.encoder", str(job)],
                    stdin=reading,
                    stdout=subprocess.DEVNULL,
                    stderr=stderr,
                    env=environment,
                    start_new_session=True,
                )
            code = _ended(process, timeout_s)
        finally:
            with self._lock:
                self._process = None
            os.close(reading)
            os.close(lifeline)
        if code != 0 and self._stopped.is_set():
            raise StoppedError
        return code


def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> int:
    """Wait for the end of a process and return its status.

    Raises:
        DeltaMakingError: It took too long, and was ended.
    """
    try:
        return process.wait(timeout_s)
    except subprocess.TimeoutExpired as exc:
        _kill(process)
        process.wait()
        raise DeltaMakingError(f"a delta took longer than {timeout_s:.0f} s") from exc


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _reason(code: int, log: Path) -> str:
    """Return why a process failed: the signal, or the last line that it said."""
    if code < 0:
        return f"ended by {signal.Signals(-code).name}"
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - MAX_REASON_BYTES))
        lines = stream.read().decode(errors="replace").strip().splitlines()
    return lines[-1].strip()[:MAX_REASON_CHARS] if lines else f"status {code}"

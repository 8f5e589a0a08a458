"""Compares all stored packages with what was signed, some bytes at a time.

Rules:
- It has no thread and no timer of its own: threads that wait for something to install call it every
  few seconds.
- It reads at a bounded rate, and not while requests that can wait have to: in heat, with little
  battery, or when the device is busy.
- What the kernel remembers of a file is dropped before the file is read, so that the storage is
  compared; and after it, so that it takes no memory from what serves. What a worker has mapped the
  kernel keeps: such pages are compared as they lie in memory.
- A fault counts when it is found twice. It is told as damage: the repair fetches the file again.
- Where it was is saved seldom. A file that a restart interrupts is read from its beginning.
- What is being fetched is not read here: all of it is hashed before it is used.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from agent.errors import StorageError, storage_faults
from agent.install.scrub.course import (
    END,
    Course,
    StoredFile,
    allowance_bytes,
    compared,
    next_file,
    under_way,
)
from agent.install.scrub.settings import ScrubSettings
from agent.install.slots import Slots
from agent.package_files import open_inside
from agent.packages import Damage, Package
from agent.ports import RecorderPort
from agent.sealed import SealedFile
from wire.clock import Clock
from wire.durations import DAY_S
from wire.errors import FleetError, IntegrityError
from wire.profile import DeviceProfile

FILE: Final = "scrub.json"
MAX_FILE_BYTES: Final = 64 * 1024
SAVE_S: Final = 1800.0
"""Flash is spared: a restart costs the work of half an hour at most, and one file."""

MOST_S: Final = 10.0
"""So much time counts for one call, whatever lay before it."""

BLOCK_BYTES: Final = 256 * 1024
LEAST_BYTES: Final = 4096
"""What each file counts for at least: to open it takes time, too."""


class _Signed(NamedTuple):
    size_bytes: int
    sha256: str


class _Stored(NamedTuple):
    """A package that is compared."""

    digest: str = ""
    release: str = ""
    files: Mapping[StoredFile, _Signed] = {}


class _Reading:
    """A file of which some has been read."""

    def __init__(self, file: StoredFile, signed: _Signed, release: str) -> None:
        self.file = file
        self.signed = signed
        self._release = release
        self._offset_bytes = 0
        self._identity: tuple[int, ...] = ()
        self._digest = hashlib.sha256()

    def read(self, directory: Path, most_bytes: int) -> int:
        """Read some more; return how much. Begin again if it is another file than before.

        Raises:
            IntegrityError: It is missing, no file, or not what was signed.
            StorageError: It cannot be read.
        """
        with (
            storage_faults(f"cannot read {self.file.path}"),
            open_inside(directory, self.file.path) as file,
        ):
            descriptor = file.fileno()
            status = os.fstat(descriptor)
            identity = (status.st_ino, status.st_mtime_ns, status.st_ctime_ns)
            if identity != self._identity:
                self._offset_bytes, self._identity = 0, identity
                self._digest = hashlib.sha256()
            _forget(descriptor, self._offset_bytes, most_bytes)
            block = os.pread(descriptor, most_bytes, self._offset_bytes)
            _forget(descriptor, self._offset_bytes, most_bytes)
        self._digest.update(block)
        self._offset_bytes += len(block)
        is_differing = self.is_over and self._digest.hexdigest() != self.signed.sha256
        if is_differing or status.st_size != self.signed.size_bytes:
            raise IntegrityError(
                f"{self.file.path} of {self._release} differs from the signed file"
            )
        return len(block)

    @property
    def is_over(self) -> bool:
        """Whether all of it has been read."""
        return self._offset_bytes >= self.signed.size_bytes


class Scrubber:
    """Compares stored packages. For any thread; one at a time works.

    Args:
        settings: How often and how fast.
        profile: The profile of this device: other variants of a package are not on it.
        slots: Where packages are.
        opened: Returns a package by its digest; raises a FleetError if its index or its manifest is
            not what was signed.
        damage: Takes what is found.
        may_read: Tells whether the device has time for it now.
        directory: Where it keeps how far it is.
        recorder: Takes an event when all has been compared.
        clock: For the rate, and for the days.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it connects
        self,
        settings: ScrubSettings,
        profile: DeviceProfile,
        slots: Slots,
        *,
        opened: Callable[[str], Package],
        damage: Damage,
        may_read: Callable[[], bool],
        directory: Path,
        recorder: RecorderPort,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._profile = profile
        self._slots = slots
        self._opened = opened
        self._damage = damage
        self._may_read = may_read
        self._recorder = recorder
        self._clock = clock
        self._kept = SealedFile(directory / FILE, Course, limit_bytes=MAX_FILE_BYTES)
        self._turn = threading.Lock()
        self._course = self._saved = self._read_course()
        self._worked_s = self._saved_s = self._began_s = clock.monotonic_s()
        self._stored = _Stored()
        self._reading: _Reading | None = None
        self._doubted: StoredFile | None = None
        """What was found damaged once."""

        self._rests = False
        """Whether the rest has to wait for the next call."""

    @property
    def course(self) -> Course:
        """How far it is."""
        return self._course

    def work(self) -> None:
        """Compare some bytes, if it is time; called every few seconds by threads that are idle."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            self._work()
        finally:
            self._turn.release()

    def _work(self) -> None:
        now_s = self._clock.monotonic_s()
        passed_s, self._worked_s = now_s - self._worked_s, now_s
        every_s = self._settings.every_days * DAY_S
        if not every_s:
            return
        course = under_way(self._course, self._clock.now_s(), every_s, now_s - self._began_s)
        if course is None or not self._may_read():
            return
        if self._course.is_over:
            self._began_s = now_s
        self._course, self._rests = course, False
        left_bytes = allowance_bytes(self._settings.bytes_per_s, passed_s, MOST_S)
        while left_bytes > 0 and not (self._course.is_over or self._rests):
            left_bytes -= self._step(min(left_bytes, BLOCK_BYTES))
        if now_s - self._saved_s >= SAVE_S:
            self._save()

    def _step(self, most_bytes: int) -> int:
        """Read a block of the file whose turn it is; return what it counts for."""
        try:
            reading = self._reading = self._reading or self._next()
        except FleetError as exc:
            self._end_file(StoredFile(self._stored.digest, END), 0, exc)
            return LEAST_BYTES
        if reading is None:
            self._end_pass()
            return 0
        file, size_bytes = reading.file, reading.signed.size_bytes
        try:
            read_bytes = reading.read(self._slots.directory(file.digest), most_bytes)
        except FleetError as exc:
            self._end_file(file, size_bytes, exc)
            return LEAST_BYTES
        if reading.is_over:
            self._end_file(file, size_bytes)
        return max(read_bytes, LEAST_BYTES)

    def _next(self) -> _Reading | None:
        """Begin with the next file; return None if all have been compared.

        Raises:
            FleetError: The index or the manifest of a package cannot be used.
        """
        for digest in self._slots.whole():
            if digest < self._course.digest or (digest, END) <= self._compared:
                continue
            stored = self._stored = self._opened_for_comparing(digest)
            file = next_file(self._course, stored.files)
            if file is not None:
                return _Reading(file, stored.files[file], stored.release)
        return None

    @property
    def _compared(self) -> StoredFile:
        return StoredFile(self._course.digest, self._course.path)

    def _opened_for_comparing(self, digest: str) -> _Stored:
        """Return the files of a package that are to be on this device.

        Raises:
            FleetError: Its index or its manifest cannot be used.
        """
        if self._stored.digest == digest and self._stored.files:
            return self._stored
        self._stored = _Stored(digest)
        package = self._opened(digest)
        entries = package.files(package.manifest.fitting(self._profile))
        # Without the digests of their chunks, which take much memory.
        files = {StoredFile(digest, e.path): _Signed(e.size_bytes, e.sha256) for e in entries}
        return _Stored(digest, package.release, files)

    def _end_file(self, file: StoredFile, size_bytes: int, fault: FleetError | None = None) -> None:
        """Note how a file is, or a whole package whose index cannot be used."""
        self._reading = None
        if fault is not None and not self._slots.has(file.digest):  # it was removed meanwhile
            fault, self._stored = None, _Stored()
        if fault is not None and self._doubted != file:
            self._doubted, self._rests = file, True
            return
        self._doubted = None
        self._course = compared(self._course, file, size_bytes, is_whole=fault is None)
        if fault is not None:
            variants = self._variants(file)
            self._damage.note(file.digest, fault.message, variants, found="scrub")

    def _variants(self, file: StoredFile) -> tuple[str, ...]:
        """Return the names of the variants that need a file; none if that cannot be told."""
        try:
            package = self._opened(file.digest)
        except FleetError:
            return ()
        return tuple(
            variant.name
            for variant in package.manifest.fitting(self._profile)
            if any(entry.path == file.path for entry in package.files((variant,)))
        )

    def _end_pass(self) -> None:
        course = self._course = msgspec.structs.replace(self._course, is_over=True)
        self._stored = _Stored()
        self._save()
        if course.files:
            data = {
                "files": course.files,
                "size_bytes": course.size_bytes,
                "damaged": course.damaged,
            }
            found = f"{course.damaged} were damaged" if course.damaged else "none is damaged"
            self._recorder.event(
                "scrub", f"all files of stored packages were compared: {found}", data
            )

    def close(self) -> None:
        """Save how far it is, because the agent stops."""
        if self._course != self._saved:
            self._save()

    def _read_course(self) -> Course:
        with contextlib.suppress(IntegrityError):  # then a pass begins now
            course = self._kept.read()
            if course is not None and not course.faults():
                return course
        return Course()

    def _save(self) -> None:
        self._saved_s = self._clock.monotonic_s()
        with contextlib.suppress(StorageError):  # a restart begins a pass anew
            self._kept.write(self._course)
            self._saved = self._course


def _forget(descriptor: int, offset_bytes: int, size_bytes: int) -> None:
    """Let the kernel forget what it remembers of a part of a file; not every file system does."""
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, offset_bytes, size_bytes, os.POSIX_FADV_DONTNEED)

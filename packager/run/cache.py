"""The build cache: the output of every successful step, by the digest of everything it depends on.

Rules:
- An entry is either complete or missing: the cache writes it under another name and renames it.
- The cache hashes the files of an entry again before it uses them, and removes a damaged entry. It
  looks twice before it does: another build may have put a whole one there meanwhile.
- The cache keeps a failure only if the step itself reported it, because a busy machine can cause a
  crash or a timeout.
- Two builds may share a cache; the one that finishes second removes its own copy.
- A build locks its workspace while it runs; the next build removes the workspaces of killed ones.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import IO, Final, NoReturn

import msgspec

from packager.errors import BuildError, CacheError, DiskFullError
from wire.codec import from_json, sha256_hex, to_json
from wire.errors import WireFormatError

ENTRY_FILE: Final = "entry.json"
_LOCK_FILE: Final = "lock"
MAX_ENTRY_BYTES: Final = 16 * 1024**2


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a cache entry: relative path to SHA-256."""

    files: dict[str, str]
    key: str = ""
    """Of the step, so that a folder at another place is no output of another step."""

    @property
    def digest(self) -> str:
        """The digest of all files, which represents this output in the keys of later steps."""
        return sha256_hex(to_json({"files": self.files}))


class Cache:
    """A folder of step outputs.

    Args:
        root: The folder; the cache makes it when needed.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._steps = root / "steps"
        self._work = root / "work"

    def find(self, key: str) -> tuple[Path, Entry] | None:
        """Return a step's output if it is there and undamaged.

        Args:
            key: The digest of everything that the step depends on.

        Returns:
            The folder and its entry, or None.
        """
        folder = self._folder(key)
        for _ in range(2):
            entry = _intact(folder, key)
            if entry is not None:
                return folder, entry
            if not folder.exists():
                return None
        self.remove(key)
        return None

    @contextlib.contextmanager
    def workspace(self, name: str) -> Iterator[Path]:
        """Make a folder for the caller and remove it afterwards.

        Args:
            name: Part of the folder's name, so that a process list shows what runs.

        Yields:
            The folder.

        Raises:
            CacheError: The cache cannot be written.
        """
        try:
            self._work.mkdir(parents=True, exist_ok=True)
            with _locked(self._work):
                self._sweep()
                folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self._work))
                lock = _take_lock(folder)
        except OSError as exc:
            _refuse(exc)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock.close()

    def keep(self, key: str, output: Path) -> tuple[Path, Entry]:
        """Move a step's output into the cache.

        Args:
            key: The digest of everything that the step depends on.
            output: A folder in a workspace.

        Returns:
            The folder in the cache and its entry.

        Raises:
            CacheError: The cache cannot be written.
        """
        paths = sorted(p for p in output.rglob("*") if p.is_file())
        files = {p.relative_to(output).as_posix(): _sha256(p) for p in paths}
        entry = Entry(files=files, key=key)
        folder = self._folder(key)
        try:
            (output / ENTRY_FILE).write_bytes(to_json(entry))
            _flush(output)
            folder.parent.mkdir(parents=True, exist_ok=True)
            output.rename(folder)
        except OSError as exc:
            other = self.find(key)  # another build was faster
            if other is None:
                _refuse(exc)
            return other
        return folder, entry

    def remove(self, key: str) -> None:
        """Remove a step's output; nothing happens if there is none.

        Args:
            key: The digest of everything that the step depends on.

        Raises:
            CacheError: The cache cannot be written.
        """
        try:
            with self.workspace("removed") as workspace:  # one rename, so no build sees a part
                self._folder(key).rename(workspace / "output")
        except FileNotFoundError:
            return
        except OSError as exc:
            _refuse(exc)

    def _sweep(self) -> None:
        """Remove the workspaces of killed builds; others may go by themselves meanwhile."""
        for folder in self._work.iterdir():
            if folder.is_dir():
                with contextlib.suppress(BlockingIOError, FileNotFoundError):
                    _take_lock(folder).close()
                    shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, key: str) -> Path:
        return self._steps / key[:2] / key


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file that the user gave.

    Args:
        path: The file.

    Returns:
        64 hexadecimal digits.

    Raises:
        BuildError: It cannot be read.
    """
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as exc:
        raise BuildError(
            f"{path} cannot be read: {exc.strerror}", remedy="correct the path"
        ) from exc


def _intact(folder: Path, key: str) -> Entry | None:
    """Return the entry of a folder whose files are all as they were written."""
    try:
        with _plain(folder / ENTRY_FILE) as stream:
            entry = from_json(stream.read(MAX_ENTRY_BYTES), Entry)
        intact = entry.key == key and all(
            _sha256(folder / path) == digest for path, digest in entry.files.items()
        )
    except (OSError, WireFormatError):
        return None
    return entry if intact and entry.files else None


def _plain(path: Path) -> BufferedReader:
    """Open a plain file; a link, a pipe or a device in its place is none.

    Raises:
        OSError: It cannot be opened, or is something else.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a plain file", str(path))
    return os.fdopen(descriptor, "rb")


def _refuse(exc: OSError) -> NoReturn:
    """Refuse to go on with a cache that cannot be written.

    Raises:
        CacheError: Always.
    """
    kind = DiskFullError if exc.errno == errno.ENOSPC else CacheError
    raise kind(
        f"the build cache cannot be written: {exc.strerror}",
        remedy="name another folder with --cache",
    ) from exc


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / _LOCK_FILE).open("wb") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield


def _take_lock(folder: Path) -> IO[bytes]:
    """Lock a workspace for as long as the stream is open.

    Raises:
        BlockingIOError: It is in use.
    """
    stream = (folder / _LOCK_FILE).open("wb")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise
    return stream


def _sha256(path: Path) -> str:
    with _plain(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _flush(folder: Path) -> None:
    """Flush the files to the disk, so that a power cut cannot leave an entry of empty files."""
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as stream:
                os.fsync(stream.fileno())

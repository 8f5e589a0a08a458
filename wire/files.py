"""Writes files completely or not at all, so that they survive a power cut; reads no pipes.

All packages use it.

Rules:
- A file has the old or the new content, never a part: the code writes a temporary file, calls
  fsync, renames the file and calls fsync on the directory.
- A pipe, a device or a link in the place of a temporary file is removed; nothing is written through
  it, and nobody waits for it.
- A failed write leaves the old file and no part of a new file.
- A pipe, a socket or a device where a file should be makes nobody wait.
- What a person names to be written is replaced only if it is a file (`write_named`).
- Every function raises OSError; the caller decides what is at fault.

Source:
    Pillai et al. 2014, "All File Systems Are Not Created Equal", on what survives a power cut.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Final, Self

if TYPE_CHECKING:
    from io import BufferedReader

PRIVATE: Final = 0o600
"""Only the owner has access: keys, passwords, state."""

PUBLIC: Final = 0o644
"""Everybody may read it: a file that a user asked for."""

OPENED_ALREADY: Final = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""How paths begin that name what the caller has opened, such as the pipe of `<(command)`."""

_OPENED_TO_WRITE: Final = re.compile(r"/dev/(?:(stdout)|(stderr))|/(?:dev|proc/self)/fd/(\d{1,9})")
"""The same of what can be written, such as the pipe of `>(command)`."""


def temporary_of(path: Path) -> Path:
    """Return the path under which `write_atomic` writes the new content of a file.

    The name is always the same, so the next write replaces a file that a power cut left behind.
    """
    return path.with_name(f".{path.name}.new")


def read_regular(path: Path, limit_bytes: int) -> bytes:
    """Read a file, but no pipe and no device, for which the reader could wait for ever.

    Args:
        path: The file, or a link to it.
        limit_bytes: Read no more than this.

    Returns:
        The content, or its first bytes.

    Raises:
        OSError: It is missing, cannot be read, or is no file.
    """
    with open_file(path) as file:
        return file.read(limit_bytes)


def write_atomic(path: Path, content: bytes, *, mode: int = PRIVATE) -> None:
    """Write a file so that a power cut at any point leaves the old or the new one.

    Args:
        path: The file, in a directory that exists.
        content: Its new content.
        mode: Its permissions.

    Raises:
        OSError: It cannot be written; the old file is still there.
    """
    temporary = temporary_of(path)
    with os.fdopen(opened_alone(temporary, mode), "wb") as stream:
        try:
            os.fchmod(stream.fileno(), mode)
            stream.truncate(0)
            _fill(stream, content)
            temporary.replace(path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
    sync_directory(path.parent)


def write_new(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """Write a new file; it must not exist yet.

    Args:
        path: The file, in a directory that exists.
        content: Its content.
        mode: Its permissions, from the beginning.

    Raises:
        FileExistsError: It is there.
        OSError: It cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            _fill(stream, content)
    except OSError:
        path.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def write_named(path: Path, content: bytes, *, mode: int = PUBLIC) -> None:
    """Write a file that a person named, whole or not at all.

    A link, a pipe or a device in its place is left as it is, and nothing is written through it.
    What the caller has opened, such as standard output, is written where it is.

    Args:
        path: The file, in a directory that exists.
        content: Its new content.
        mode: Its permissions.

    Raises:
        OSError: It cannot be written, or is no file.
    """
    opened = _OPENED_TO_WRITE.fullmatch(str(path))
    if opened is not None:
        descriptor = 1 if opened[1] else 2 if opened[2] else int(opened[3])
        # Opened anew by its name, a file would lose what was written to it before.
        with os.fdopen(os.dup(descriptor), "wb") as stream:
            stream.write(content)
        return
    with contextlib.suppress(FileNotFoundError):
        found = path.lstat().st_mode
        if stat.S_ISLNK(found):
            raise OSError(errno.ELOOP, "it is a link", str(path))
        if not stat.S_ISREG(found) and not stat.S_ISDIR(found):
            raise OSError(errno.EINVAL, "it is not a file", str(path))
    write_atomic(path, content, mode=mode)


def open_file(path: Path) -> BufferedReader:
    """Open a file that a person named, to read it.

    A named pipe is refused, because opening or reading it may never end. Standard input and other
    descriptors that the caller has opened may be pipes: a secret comes on purpose that way.

    Args:
        path: The file.

    Returns:
        Its content as a stream.

    Raises:
        OSError: It cannot be opened, or is no file.
    """
    # Without O_NONBLOCK, opening a named pipe that nobody writes to would never return.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    is_given = str(path).startswith(OPENED_ALREADY)
    if stat.S_ISREG(mode) or (is_given and not stat.S_ISDIR(mode)):
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "it is not a file", str(path))


def read_part(descriptor: int, offset: int, length: int) -> bytes:
    """Read a part of a file that must not change meanwhile.

    Args:
        descriptor: Descriptor of the file.
        offset: Where the part begins.
        length: How many bytes to read.

    Returns:
        Exactly so many bytes.

    Raises:
        OSError: It cannot be read, or has become shorter.
    """
    parts = []
    while length > 0:
        data = os.pread(descriptor, length, offset)
        if not data:
            raise OSError(errno.ENODATA, "it became shorter while it was read")
        parts.append(data)
        offset += len(data)
        length -= len(data)
    return b"".join(parts)


def make_directory(directory: Path, *, mode: int = 0o700) -> None:
    """Make a directory that is missing, and those above it, so that they survive a power cut.

    Args:
        directory: The directory.
        mode: Its permissions, if it is made.

    Raises:
        OSError: It cannot be made, or something else has its name.
    """
    if directory.is_dir():
        return
    if not directory.parent.is_dir():
        make_directory(directory.parent, mode=0o777)
    directory.mkdir(mode=mode, exist_ok=True)
    sync_directory(directory.parent)


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable.

    Args:
        directory: The directory.

    Raises:
        OSError: It cannot be opened or written.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remedy_of(fault: OSError, usual: str) -> str:
    """Return what to do about a file that could not be written.

    Args:
        fault: Why.
        usual: What to do if the disk is not to blame.
    """
    if fault.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "free some space on that disk, or choose another"
    if fault.errno == errno.EROFS:
        return "mount that disk for writing, or choose another"
    return usual


class Lock:
    """A directory that is locked until this is closed or the process ends.

    Args:
        descriptor: The open directory.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process lock the directory."""
        os.close(self._descriptor)


def lock(directory: Path) -> Lock | None:
    """Lock a directory for this process alone. Nothing is written: its storage may be full.

    Args:
        directory: The directory, which exists.

    Returns:
        The lock, or None when another process holds it.

    Raises:
        OSError: It cannot be opened.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return Lock(descriptor)


def opened_alone(temporary: Path, mode: int) -> int:
    """Open a temporary file that no other writer has open; wait for another writer.

    Args:
        temporary: The file; what an earlier writer left in it is still there.
        mode: Its permissions, if it is new.

    Returns:
        Its descriptor.

    Raises:
        OSError: It cannot be opened.
    """
    # Without O_NONBLOCK the writer would wait for ever on a pipe in place of the file.
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            descriptor = os.open(temporary, flags, mode)
        except OSError as exc:
            if exc.errno not in {errno.ELOOP, errno.ENXIO}:  # a link; a pipe without a reader
                raise
            temporary.unlink(missing_ok=True)
            continue
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                temporary.unlink(missing_ok=True)
            else:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), temporary.lstat()):
                    return descriptor
        except FileNotFoundError:
            pass  # the other writer has just renamed it
        except OSError:
            os.close(descriptor)
            raise
        os.close(descriptor)


def remove_abandoned(temporary: Path) -> bool:
    """Remove a file of `opened_alone` unless its writer still has it open.

    Args:
        temporary: The file.

    Returns:
        Whether it is gone.

    Raises:
        OSError: It cannot be opened or removed.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(temporary, flags)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        temporary.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def _fill(stream: BinaryIO, content: bytes) -> None:
    stream.write(content)
    stream.flush()
    os.fsync(stream.fileno())

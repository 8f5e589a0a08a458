"""Files that a user names: read within a bound, written whole or not at all.

Rules:
- What cannot be read, or never ends, is one fault of the caller's kind that names the file.
- A full disk leaves the file that was there, and no part of a new one.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from packager.errors import PackagerError

FILE_MODE: Final = 0o644


def read_bounded(
    path: Path, limit_bytes: int, error: type[PackagerError], *, called: str = ""
) -> bytes:
    """Read a file.

    Args:
        path: The file.
        limit_bytes: The most that it may hold.
        error: The kind of the fault.
        called: How the fault names the file; empty for its path, which no package may hold.

    Returns:
        What it holds.

    Raises:
        PackagerError: Of that kind; it cannot be read, or holds more.
    """
    name = called or path
    try:
        with path.open("rb") as stream:
            status = os.fstat(stream.fileno())
            plain = stat.S_ISREG(status.st_mode)
            over = plain and status.st_size > limit_bytes
            # A bounded read takes the whole bound from a step's memory, whatever is there.
            content = b"" if over else stream.read(-1 if plain else limit_bytes + 1)
    except OSError as exc:
        raise error(f"{name} cannot be read: {exc.strerror}") from exc
    if over or len(content) > limit_bytes:
        raise error(f"{name} is over {limit_bytes} bytes")
    return content


def write_whole(path: Path, content: bytes) -> None:
    """Write a file that everybody may read; what is there is replaced.

    Args:
        path: The file, in a folder that exists.
        content: What it is to hold.

    Raises:
        OSError: It cannot be written.
    """
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    partial = Path(name)
    try:
        _fill(descriptor, content)
        partial.chmod(FILE_MODE)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_new(path: Path, content: bytes, *, mode: int = FILE_MODE) -> None:
    """Write a file that must not be there yet.

    Args:
        path: The file.
        content: What it is to hold.
        mode: Who may read it, from the beginning.

    Raises:
        FileExistsError: It is there.
        OSError: It cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        _fill(descriptor, content)
    except OSError:
        path.unlink(missing_ok=True)
        raise


def _fill(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())

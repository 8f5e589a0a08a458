"""Reads files that a user names, up to a limit.

Rules:
- A file that cannot be read, or is over the limit, raises the error class of the caller, with the
  name of the file.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from packager.errors import PackagerError


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

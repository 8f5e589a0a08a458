"""Reads files that a user names, up to a limit.

Rules:
- If a file cannot be read or is over the limit, the function raises the caller's error class, with
  the name of the file.
"""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

from packager.errors import PackagerError
from wire.files import PUBLIC, open_file

CHECK_PATH: Final = "check the path and the permissions"
FOLDER_MODE: Final = 0o755
COPIED_BYTES: Final = 1024**2
"""How much of a file is in memory while it is copied."""


def read_bounded(
    path: Path, limit_bytes: int, error: type[PackagerError], *, called: str = ""
) -> bytes:
    """Read a file.

    Args:
        path: The file.
        limit_bytes: The greatest size that is allowed.
        error: The class of the error.
        called: The file's name in the error; empty for its path, which no package may contain.

    Returns:
        Its content.

    Raises:
        PackagerError: An error of that class; the file cannot be read, or is larger.
    """
    name = called or path
    try:
        with open_file(path) as stream:
            status = os.fstat(stream.fileno())
            plain = stat.S_ISREG(status.st_mode)
            over = plain and status.st_size > limit_bytes
            # A bounded read allocates the whole bound, however small the file is.
            content = b"" if over else stream.read(-1 if plain else limit_bytes + 1)
    except OSError as exc:
        raise error(f"{name} cannot be read: {exc.strerror}", remedy=CHECK_PATH) from exc
    if over or len(content) > limit_bytes:
        raise error(f"{name} is over {limit_bytes} bytes")
    return content


def copy_file(source: Path, target: Path) -> None:
    """Write a new file with the content of another, without holding it in memory.

    Args:
        source: The other file.
        target: The new file; its directory is made.

    Raises:
        OSError: It cannot be written, or the other cannot be read.
    """
    target.parent.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    with source.open("rb") as content, target.open("xb") as stream:
        os.fchmod(stream.fileno(), PUBLIC)
        shutil.copyfileobj(content, stream, COPIED_BYTES)
        stream.flush()
        os.fsync(stream.fileno())

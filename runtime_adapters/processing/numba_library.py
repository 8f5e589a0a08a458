"""The door to `numba`: compiles functions once and keeps them on disk, safe from other users.

Numba reads its files with pickle and runs what is in them. They lie beside the source, or below
`NUMBA_CACHE_DIR` where that is set.

Rules:
- Nothing is compiled where it cannot be kept: each start would compile it again.
- Files are read only from a place where nobody but this user and root can put them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol

import numba
from numba import config as numba_config

VERSION: Final[str] = numba.__version__
_FILES: Final = "*.nb[ic]"
"""Numba's index of a function, and its code."""


class Compiled(Protocol):
    """A function that is compiled for the types that it is called with."""

    stats: Any

    def __call__(self, *arguments: Any) -> Any:  # noqa: ANN401 - arrays and numbers
        """Run it; for new types it is compiled or read first."""
        ...


_made: Final[list[Compiled]] = []


def compiled(function: Callable[..., Any]) -> Compiled:
    """Have a function compiled when it is first called.

    Args:
        function: Loops over arrays; nothing that needs the interpreter.

    Returns:
        The compiled function, which lets other threads run.

    Raises:
        OSError: Compiled code cannot be kept, or others could put their own code in its place.
    """
    if numba_config.DISABLE_JIT:
        raise OSError("NUMBA_DISABLE_JIT is set")
    try:
        result: Compiled = numba.njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError as exc:  # Numba's way of saying that no directory can be written
        raise OSError("there is no directory that can keep compiled code") from exc
    _check_ours(Path(result.stats.cache_path))
    _made.append(result)
    return result


def counts() -> tuple[int, int]:
    """Return how many forms this process read from disk, and how many it compiled."""
    hits = sum(sum(one.stats.cache_hits.values()) for one in _made)
    misses = sum(sum(one.stats.cache_misses.values()) for one in _made)
    return hits, misses


def forget() -> None:
    """Delete the code on disk: after a power cut, files can stay unreadable for ever."""
    for directory in {Path(one.stats.cache_path) for one in _made}:
        for path in directory.glob(_FILES):
            path.unlink(missing_ok=True)


def _check_ours(directory: Path) -> None:
    """Check a directory and all above it.

    Raises:
        OSError: Someone else can write to one of them.
    """
    for place in (directory, *directory.parents):
        found = place.stat()
        is_open = found.st_mode & stat.S_IWOTH and not found.st_mode & stat.S_ISVTX
        if is_open or found.st_uid not in {0, os.geteuid()}:
            raise OSError(f"others can write to {place}, where compiled code would be stored")

"""Storage that refuses writes at a chosen one, for one process: a library that is preloaded.

What counts as a write, and how it is refused, says `failing_storage.c`.
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_suffix(".c")
COMPILER: Final = shutil.which("gcc")


@dataclass(frozen=True, kw_only=True)
class Refusal:
    """Which writes fail, and how."""

    first: int
    """The first that fails, from 1 on; 0 for none."""

    error: int = errno.ENOSPC
    stays: bool = False
    """Whether all fail from there on."""

    is_short: bool = False
    """Whether the first, if it writes bytes, writes half of them instead."""

    def __str__(self) -> str:
        how = "from there on" if self.stays else "once"
        short = ", the first in part" if self.is_short else ""
        return f"{errno.errorcode[self.error]} at write {self.first} {how}{short}"


WAYS: Final = (
    Refusal(first=0),
    Refusal(first=0, stays=True),
    Refusal(first=0, stays=True, is_short=True),
    Refusal(first=0, error=errno.EIO),
    Refusal(first=0, error=errno.EIO, stays=True),
)
"""How storage fails, whichever write is the first."""


def build(directory: Path) -> Path:
    """Compile the library; return its path."""
    assert COMPILER is not None
    library = directory / "failing_storage.so"
    subprocess.run(
        [COMPILER, "-O1", "-shared", "-fPIC", "-o", library, SOURCE, "-ldl", "-lpthread"],
        check=True,
    )
    return library


def preloaded(library: Path, below: Path | None = None, refusal: Refusal | None = None,
              until: Path | None = None) -> dict[str, str]:  # fmt: skip
    """Return the environment of a process whose writes below a directory may fail.

    Args:
        library: What `build` returned.
        below: The directory; a process may also choose it itself, by `Storage`.
        refusal: Which writes fail.
        until: Once this file is there, none fails.
    """
    found = os.environ | {"LD_PRELOAD": str(library)}
    if below is not None:
        found["FAILING_BELOW"] = str(below.resolve())
    if until is not None:
        found["FAILING_UNTIL"] = str(until)
    if refusal is not None:
        found |= {
            "FAILING_FROM": str(refusal.first),
            "FAILING_ERROR": str(refusal.error),
            "FAILING_STAYS": str(int(refusal.stays)),
            "FAILING_SHORT": str(int(refusal.is_short)),
        }
    return found


class Storage:
    """The storage of this process, in which the library is preloaded.

    Args:
        below: Only writes below this directory fail.
    """

    def __init__(self, below: Path) -> None:
        self._library = ctypes.CDLL(None)
        self._library.storage_counted.restype = ctypes.c_long
        self._library.storage_below(str(below.resolve()).encode())
        self.is_well()

    def fails(self, refusal: Refusal) -> None:
        """Count from now on, and refuse what is to fail."""
        self._library.storage_fails(
            ctypes.c_long(refusal.first), refusal.error, int(refusal.stays), int(refusal.is_short)
        )

    def is_well(self) -> None:
        """Refuse nothing from now on; count from now on."""
        self.fails(Refusal(first=0))

    @property
    def counted(self) -> int:
        """The writes since the count began."""
        return int(self._library.storage_counted())

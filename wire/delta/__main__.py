"""Applies a delta in a process of its own: `python -m wire.delta OLD DELTA NEW`.

Its exit statuses never change: 0 the new file is there, whole and durable; 1 the delta cannot make
it, so take the whole file; 2 a fault of this machine or of the command line, so it may work later.
A fault is one line on standard error.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from wire.console.program import fault, run_program
from wire.delta.decode import decode
from wire.delta.layout import MAX_FILE_BYTES
from wire.delta.zstd import is_installed
from wire.errors import DeltaError

NAME = "wire.delta"
UNUSABLE = 1


def main(arguments: list[str] | None = None) -> int:
    """Run the command line.

    Args:
        arguments: It, or None for this process's.

    Returns:
        The exit status.
    """
    return run_program(NAME, _apply, arguments)


def _apply(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog=f"python -m {NAME}",
        description="Make the new version of a file from the old one and a delta.",
    )
    parser.add_argument("old", type=Path, help="the version that is here")
    parser.add_argument("delta", type=Path, help="what leads from it to the new one")
    parser.add_argument("new", type=Path, help="where to write; a file there is replaced")
    parser.add_argument(
        "--limit-bytes",
        type=int,
        default=MAX_FILE_BYTES,
        help="the greatest size of the new file; %(default)s without it",
    )
    given = parser.parse_args(arguments)
    if not is_installed():
        return fault(NAME, "Zstandard is missing; install edgefleet[delta]")
    try:
        decode(given.old, given.delta, given.new, limit_bytes=given.limit_bytes)
    except DeltaError as exc:
        fault(NAME, str(exc))
        return UNUSABLE
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Traces on disk: shipped ones, those of a user, and one that is being recorded.

Rules:
- No file is overwritten, and a new file without content is removed.
- If a full disk cuts a write short, the write is undone: the file stays a trace.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from agent.errors import ReplayError
from agent.replay.traces import MAX_BYTES, Trace, trace_from_bytes
from wire.errors import WireFormatError
from wire.files import PUBLIC, open_file
from wire.profile import NAME_PATTERN

SHIPPED: Final = Path(__file__).parent / "shipped_traces"
SUFFIX: Final = ".jsonl"
REMEDY: Final = "correct it; docs/traces.md describes the format"


def load_trace(name: str) -> Trace:
    """Read a trace from a file, or a shipped one.

    Args:
        name: A path, or the name of a shipped trace.

    Returns:
        The trace.

    Raises:
        ReplayError: There is no such trace, or it cannot be read.
        WireFormatError: It is not a trace.
    """
    shipped = NAME_PATTERN.fullmatch(name) is not None and name in shipped_names()
    path = SHIPPED / f"{name}{SUFFIX}" if shipped else Path(name)
    data = read_file(path, f"shipped traces are {', '.join(shipped_names())}", MAX_BYTES)
    try:
        return trace_from_bytes(data)
    except WireFormatError as exc:
        raise WireFormatError(
            f"{path}: {exc.message.removeprefix('trace: ')}", remedy=exc.remedy or REMEDY
        ) from exc


def shipped_names() -> tuple[str, ...]:
    """Return the names of the traces that come with the agent."""
    return tuple(sorted(path.stem for path in SHIPPED.glob(f"*{SUFFIX}")))


def read_file(path: Path, remedy: str, limit_bytes: int) -> bytes:
    """Read a file that a user named.

    Args:
        path: Path of the file.
        remedy: What the error advises if the file cannot be read.
        limit_bytes: At most one byte more than this is read.

    Returns:
        Its bytes; longer than the limit only if the file is longer.

    Raises:
        ReplayError: It cannot be read.
    """
    try:
        with open_file(path) as file:
            return file.read(limit_bytes + 1)
    except (OSError, ValueError) as exc:
        text = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        raise ReplayError(f"cannot read {str(path)!r}: {text.lower()}", remedy=remedy) from exc


class TraceFile:
    """A new file that grows line by line.

    Args:
        path: Path of the file.

    Raises:
        ReplayError: It exists already, or cannot be made.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._whole_bytes = 0
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._file = os.open(path, flags, PUBLIC)
        except FileExistsError as exc:
            raise ReplayError(f"{path} already exists", remedy="name another file") from exc
        except (OSError, ValueError) as exc:
            raise self._error("make", exc) from exc

    def write(self, rows: tuple[msgspec.Struct, ...]) -> None:
        """Append rows with one system call, so that a killed process leaves whole lines.

        Args:
            rows: One for each line.

        Raises:
            ReplayError: The rows cannot be written; the file is as before.
        """
        data = b"".join(msgspec.json.encode(row) + b"\n" for row in rows)
        rest = data
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except OSError as exc:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._whole_bytes)
            raise self._error("go on writing", exc) from exc
        self._whole_bytes += len(data)

    def close(self) -> None:
        """Close the file; remove it if nothing was written."""
        os.close(self._file)
        if not self._whole_bytes:
            self._path.unlink(missing_ok=True)

    def _error(self, what: str, exc: OSError | ValueError) -> ReplayError:
        text = (exc.strerror if isinstance(exc, OSError) else None) or str(exc)
        kept = "; the ticks written so far are a complete trace" if self._whole_bytes else ""
        return ReplayError(
            f"cannot {what} {self._path}: {text.lower()}{kept}",
            remedy="free some storage, or name a file in another directory",
        )


@contextlib.contextmanager
def opened_trace(path: Path) -> Iterator[TraceFile]:
    """Make a file, and close it at the end of the `with` block.

    Args:
        path: Path of the file.

    Yields:
        The file.

    Raises:
        ReplayError: It exists already, or cannot be made.
    """
    file = TraceFile(path)
    try:
        yield file
    finally:
        file.close()

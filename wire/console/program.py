"""How a program of ours starts and ends: one line for a fault, a status that never changes.

Rules:
- 0 is success, 1 is "the answer is no", 2 is a fault, which is one line on standard error. Of a
  fault in an expression two more lines show the place.
- Output that cannot be written is a fault too, even when the command itself has succeeded. A reader
  that has gone, as in `fleet device list | head`, is none: the status is that of SIGPIPE.
- A closed standard stream is opened on `/dev/null`. Otherwise the next file or socket gets its
  number, and is written to as if it were the terminal.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from wire.errors import FleetError

ANSWER_NO: Final = 1
FAULT: Final = 2
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
MAX_PATH: Final = 200
NO_ROOM: Final = {errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EIO}
"""What writing to a full or broken disk gives; an output has no file name in its error."""

STANDARD_ERROR: Final = 2

Command = Callable[[list[str]], int]
"""Runs a command line and returns the exit status."""


def run_program(name: str, command: Command, arguments: Sequence[str] | None) -> int:
    """Run a program's command line.

    Args:
        name: The program's name, with which its faults begin.
        command: Does the work.
        arguments: The command line; None means this process's.

    Returns:
        The exit status.
    """
    _open_closed_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    if not all(map(_is_text, given)):
        return fault(name, "an argument is not UTF-8 text; write it in UTF-8")
    try:
        status = _status(command, given)
        sys.stdout.flush()
    except FleetError as exc:
        status = fault(name, str(exc), exc.shown)
        return ANSWER_NO if exc.answers_no else status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _drop_output()
        return BROKEN_PIPE
    except (OSError, UnicodeEncodeError) as exc:
        _drop_output()
        return fault(name, _why(exc))
    return status


@contextmanager
def cleaned_up_at_sigterm() -> Iterator[None]:
    """Let a SIGTERM end the context as Ctrl-C does, so that nothing temporary remains.

    Then the process ends by the signal; at a second one it ends at once. What waits for signals by
    itself (`wire.stop_signals`) goes on to do so. Only for the main thread.
    """
    if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:  # such as ignored by who started us
        yield
        return
    came = False

    def end(_number: int, _frame: object) -> None:
        nonlocal came
        came = True
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if came:
            signal.raise_signal(signal.SIGTERM)


def fault(name: str, text: str, shown: Sequence[str] = ()) -> int:
    """Write a fault as one line without control characters, and return its exit status.

    Args:
        name: The program's name.
        text: What is wrong, and what to do.
        shown: Further lines, which are written as they are.
    """
    line = "".join(char if char.isprintable() else "\ufffd" for char in " ".join(text.split()))
    sys.stderr.write("".join(f"{each}\n" for each in (f"{name}: {line}", *shown)))
    sys.stderr.flush()
    return FAULT


def _status(command: Command, given: list[str]) -> int:
    try:
        return command(given)
    except SystemExit as exc:  # of `argparse`, after `--help` or a fault that it has told
        return exc.code if isinstance(exc.code, int) else 0


def _why(exc: OSError | UnicodeEncodeError) -> str:
    """Return why output could not be written, or a file not be opened."""
    if isinstance(exc, UnicodeEncodeError):  # in what programs read; text for people is made to fit
        lacking = f"the output's encoding {exc.encoding} lacks {exc.object[exc.start]!a}"
        return f"{lacking}; set PYTHONIOENCODING=utf-8"
    # Such as a full disk behind `>`, or a path that no system call takes.
    where = str(exc.filename or "")[:MAX_PATH]
    if not where and exc.errno in NO_ROOM:
        where = "cannot write the output"
    reason = exc.strerror or str(exc)
    return f"{where}: {reason}" if where else reason


def _is_text(argument: str) -> bool:
    return not any("\ud800" <= char <= "\udfff" for char in argument)


def _open_closed_streams() -> None:
    # Python has None for a stream whose descriptor was closed when it started.
    if sys.stdin is not None and sys.stdout is not None and sys.stderr is not None:
        return
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= STANDARD_ERROR:
        pass
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8")
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8")
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8")


def _drop_output() -> None:
    """Drop output that cannot be written: Python would try again at its end and report an error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

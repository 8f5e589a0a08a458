"""The message of an exception of another library, in one line of limited length.

Rules:
- Line breaks and runs of spaces become one space: a fault is one line.
- The beginning of a long message names the fault; the rest is left out.
"""

from __future__ import annotations

from typing import Final

MAX_LENGTH: Final = 200


def one_line(exc: BaseException) -> str:
    """Return an exception's message, or the name of its type if the message is empty."""
    return " ".join(str(exc).split())[:MAX_LENGTH].rstrip(".") or type(exc).__name__


def typed_line(exc: BaseException) -> str:
    """Return an exception's type and message, as in the last line of a traceback."""
    text = " ".join(str(exc).split())[:MAX_LENGTH]
    return f"{type(exc).__name__}: {text}" if text else type(exc).__name__


def root_of(exc: BaseException) -> BaseException:
    """Return the first error of a chain, because exporters wrap it in errors with advice."""
    while exc.__cause__ is not None:
        exc = exc.__cause__
    return exc

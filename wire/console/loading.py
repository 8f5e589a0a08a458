"""Lets Ctrl-C end a program at once, without a traceback, while its modules are imported.

Rules:
- This module imports nothing heavy: what is imported before it is not covered.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def silent_interrupts() -> Iterator[None]:
    """Let SIGINT end the process within the context. Only for the main thread."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is not signal.default_int_handler:  # such as ignored, after `nohup`
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)

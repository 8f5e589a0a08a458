"""Tells a program that it is to end: SIGTERM of a service manager, SIGINT of Ctrl-C.

Rules:
- A thread of its own calls back, never the signal handler. A handler runs between two steps of the
  main thread, so a lock that the main thread holds at that moment is never given back to it:
  `Event.set` in a handler and `Event.wait` in the main thread can wait for each other for ever.

Source:
    `signal.set_wakeup_fd`, by which asyncio hears of signals too:
    https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd
"""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def on_stop_signal(stop: Callable[[], None]) -> Iterator[None]:
    """Call back at each signal to stop, as long as the context lasts. Only for the main thread.

    Args:
        stop: What to call, from another thread; it may be called several times.
    """
    ours, woken = socket.socketpair()
    with ours, woken:
        # What a signal handler of the interpreter writes to must never block.
        woken.settimeout(0)
        listener = threading.Thread(target=_listen, args=(ours, stop), name="signals", daemon=True)
        listener.start()
        wakeup = signal.set_wakeup_fd(woken.fileno(), warn_on_full_buffer=False)
        before = [signal.signal(number, _nothing) for number in STOP_SIGNALS]
        try:
            yield
        finally:
            for number, handler in zip(STOP_SIGNALS, before, strict=True):
                signal.signal(number, handler)
            signal.set_wakeup_fd(wakeup)
            woken.shutdown(socket.SHUT_WR)
            listener.join()


def _listen(ours: socket.socket, stop: Callable[[], None]) -> None:
    while numbers := ours.recv(64):
        # Other signals that the program handles are written here as well.
        if any(number in STOP_SIGNALS for number in numbers):
            stop()


def _nothing(_number: int, _frame: object) -> None:
    """Do nothing: that a handler exists makes the interpreter write to the wakeup descriptor."""

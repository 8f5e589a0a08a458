"""A signal to stop is heard at any moment, whatever the main thread holds at that moment."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from tests.simulators.patience import PATIENCE_S
from wire.stop_signals import STOP_SIGNALS, on_stop_signal


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_signal_is_heard_while_the_main_thread_holds_the_lock(number: signal.Signals) -> None:
    lock, told = threading.Lock(), threading.Event()

    def stop() -> None:
        with lock:
            told.set()

    with on_stop_signal(stop):
        with lock:
            os.kill(os.getpid(), number)
        assert told.wait(PATIENCE_S)


def test_a_signal_in_the_middle_of_a_wait_ends_it() -> None:
    told = threading.Event()
    with on_stop_signal(told.set):
        threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM)).start()
        assert told.wait(PATIENCE_S)


def test_each_signal_calls_back_once_more() -> None:
    calls = threading.Semaphore(0)
    with on_stop_signal(calls.release):
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
            assert calls.acquire(timeout=PATIENCE_S)


def test_another_handled_signal_is_not_taken_for_one_to_stop() -> None:
    told, other = threading.Event(), threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: other.set())
    try:
        with on_stop_signal(told.set):
            os.kill(os.getpid(), signal.SIGUSR1)
            assert other.wait(PATIENCE_S)
    finally:
        signal.signal(signal.SIGUSR1, before)
    # The context has ended, so whatever was written has been read.
    assert not told.is_set()


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(number) for number in STOP_SIGNALS]
    with on_stop_signal(lambda: None):
        assert [signal.getsignal(number) for number in STOP_SIGNALS] != before
    assert [signal.getsignal(number) for number in STOP_SIGNALS] == before
    assert signal.set_wakeup_fd(-1) == -1

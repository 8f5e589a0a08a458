"""A signal to stop is heard at any moment, whatever the main thread holds at that moment.

Each program is a process of its own: a signal that is not heard would end the tests.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.models import ROOT
from tests.simulators.patience import PATIENCE_S

BEGIN = f"""
import os, signal, sys, threading
from wire.stop_signals import STOP_SIGNALS, on_stop_signal
PATIENCE_S = {PATIENCE_S}
told = threading.Event()
number = signal.Signals(int(sys.argv[1]))
"""

WHILE_IT_HOLDS_THE_LOCK = """
lock = threading.Lock()
def stop():
    with lock:
        told.set()
with on_stop_signal(stop):
    with lock:
        os.kill(os.getpid(), number)
    assert told.wait(PATIENCE_S)
"""

IN_THE_MIDDLE_OF_A_WAIT = """
with on_stop_signal(told.set):
    threading.Timer(0.01, os.kill, (os.getpid(), number)).start()
    assert told.wait(PATIENCE_S)
"""

EACH_CALLS_BACK_ONCE_MORE = """
calls = threading.Semaphore(0)
with on_stop_signal(calls.release):
    for _ in range(3):
        os.kill(os.getpid(), number)
        assert calls.acquire(timeout=PATIENCE_S)
"""

ANOTHER_IS_NOT_TAKEN_FOR_ONE_TO_STOP = """
other = threading.Event()
signal.signal(signal.SIGUSR1, lambda *_: other.set())
with on_stop_signal(told.set):
    os.kill(os.getpid(), signal.SIGUSR1)
    assert other.wait(PATIENCE_S)
# The context has ended, so whatever was written has been read.
assert not told.is_set()
"""

THE_HANDLERS_OF_BEFORE_COME_BACK = """
before = [signal.getsignal(each) for each in STOP_SIGNALS]
with on_stop_signal(told.set):
    assert [signal.getsignal(each) for each in STOP_SIGNALS] != before
assert [signal.getsignal(each) for each in STOP_SIGNALS] == before
assert signal.set_wakeup_fd(-1) == -1
"""


@pytest.mark.parametrize("number", [15, 2], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(
    "program",
    [
        pytest.param(WHILE_IT_HOLDS_THE_LOCK, id="while-it-holds-the-lock"),
        pytest.param(IN_THE_MIDDLE_OF_A_WAIT, id="in-the-middle-of-a-wait"),
        pytest.param(EACH_CALLS_BACK_ONCE_MORE, id="each-calls-back-once-more"),
        pytest.param(ANOTHER_IS_NOT_TAKEN_FOR_ONE_TO_STOP, id="not-another"),
        pytest.param(THE_HANDLERS_OF_BEFORE_COME_BACK, id="handlers-come-back"),
    ],
)
def test_a_signal_to_stop_is_heard(program: str, number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BEGIN + program, str(number)],
        cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
        timeout=2 * PATIENCE_S,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")

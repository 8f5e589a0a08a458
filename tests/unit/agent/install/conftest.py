"""The install thread of a simulated device; each file says which packages its device has."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator

import pytest

from agent.install.thread import Installs
from agent.log import Log
from tests.simulators.device import SimulatedDevice
from tests.simulators.patience import finished
from wire.clock import SystemClock


@pytest.fixture
def installs(device: SimulatedDevice) -> Iterator[Installs]:
    """Run installs in a thread, with a real clock for waiting."""
    log = Log(SystemClock(), io.StringIO())
    installs = Installs(
        device.machine,
        device.store,
        device.slots,
        device.interrupts,
        log,
        device.installer.remove,
    )
    thread = threading.Thread(target=installs.run)
    thread.start()
    yield installs
    device.interrupts.stop()
    finished(thread)

"""The install thread: newest desired state first, each gets its outcome, a stop ends it."""

from __future__ import annotations

import errno
import io
import os
import threading
from pathlib import Path

import pytest

from agent.install.states import State
from agent.install.thread import Installs
from agent.log import Log
from tests.simulators.archives import Held, file_of
from tests.simulators.device import SimulatedDevice, nothing
from tests.simulators.packages import SignedPackage, desired, two_variants
from tests.simulators.patience import PATIENCE_S, finished, until
from wire.clock import SystemClock
from wire.delivery import Chunk
from wire.policy import PolicySpec

CLOCK = SystemClock()
OLD = two_variants("1.0.0", best="old best", small="old small")
NEW = two_variants("2.0.0", best="new best", small="new small")
NEWER = two_variants("3.0.0", best="newer best", small="newer small")


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device on which the old package serves."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    device.install(1, OLD)
    device.server.add(*NEW.blobs, *NEWER.blobs)
    return device


def test_a_desired_state_is_installed(device: SimulatedDevice, installs: Installs) -> None:
    installs.offer(*desired(2, NEW))
    until(lambda: device.heard.outcomes[-1].revision == 2)
    assert device.adaptation.active() == (NEW.digest, "best")
    assert installs.revision == 2


def test_a_newer_desired_state_ends_an_install_that_waits_for_its_chunks(
    device: SimulatedDevice, installs: Installs
) -> None:
    lost = {entry.sha256 for entry in NEW.index.files}

    def lose(chunk: Chunk) -> Chunk | None:
        return None if chunk.sha256 in lost else chunk

    device.server.tamper = lose
    installs.offer(*desired(2, NEW))
    until(lambda: device.store.state.state is not State.IDLE)
    lost -= {entry.sha256 for entry in NEWER.index.files}
    installs.offer(*desired(3, NEWER))
    assert installs.revision == 3
    until(lambda: device.heard.outcomes[-1].revision == 3)
    assert device.adaptation.active() == (NEWER.digest, "best")
    assert 2 not in {report.revision for report in device.heard.outcomes}


def test_another_policy_does_not_end_the_install_of_the_same_package(
    device: SimulatedDevice, installs: Installs
) -> None:
    gate = threading.Event()
    begun: list[State] = []

    def hook(where: str, state: State) -> None:
        if where == "effect":
            begun.append(state)
            gate.wait(PATIENCE_S)

    device.hook = hook
    installs.offer(*desired(2, NEW))
    until(lambda: device.store.state.state is State.PREFLIGHT)
    installs.offer(*desired(3, NEW, policy=PolicySpec(kind="adaptive")))
    assert installs.revision == 3
    gate.set()
    until(lambda: device.heard.outcomes[-1].revision == 3)
    device.hook = nothing
    assert begun.count(State.PREFLIGHT) == 1
    assert State.REVERTING not in begun
    assert [r.revision for r in device.heard.outcomes] == [1, 2, 3]
    assert device.adaptation.active() == (NEW.digest, "best")


def test_the_same_desired_state_during_its_install_is_reported_after_it(
    device: SimulatedDevice, installs: Installs
) -> None:
    gate = threading.Event()

    def hook(where: str, _state: State) -> None:
        if where == "effect":
            gate.wait(PATIENCE_S)

    device.hook = hook
    installs.offer(*desired(2, NEW))
    until(lambda: device.store.state.state is State.PREFLIGHT)
    installs.offer(*desired(2, NEW))
    gate.set()
    until(lambda: [r.revision for r in device.heard.outcomes].count(2) == 2)
    assert device.heard.outcomes[-1] == device.heard.outcomes[-2]
    device.hook = nothing


def test_of_two_waiting_desired_states_the_newer_is_taken(device: SimulatedDevice) -> None:
    log = Log(CLOCK, io.StringIO())
    installs = Installs(device.machine, device.store, device.slots, device.interrupts, log)
    installs.offer(*desired(2, NEW))
    installs.offer(*desired(3, NEWER))
    thread = threading.Thread(target=installs.run)
    thread.start()
    until(lambda: device.heard.outcomes[-1].revision == 3)
    device.interrupts.stop()
    finished(thread)
    assert {report.revision for report in device.heard.outcomes} == {1, 3}


@pytest.mark.parametrize("wanted", [NEW, NEWER])
def test_a_full_storage_loses_what_was_handed_over_unless_it_is_wanted(
    device: SimulatedDevice, installs: Installs, wanted: SignedPackage
) -> None:
    device.hand_over(Held(file_of(NEW)))
    refused: list[str] = []

    def hook(where: str, _state: State) -> None:
        is_full = device.slots.preloaded() is not None if wanted is NEWER else len(refused) < 2
        if where.startswith("write ") and is_full:
            refused.append(where)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    device.hook = hook
    installs.offer(*desired(2, wanted))
    until(lambda: device.heard.outcomes[-1].revision == 2)
    device.hook = nothing
    assert refused
    assert device.adaptation.active() == (wanted.digest, "best")
    if wanted is NEW:
        files = {entry.sha256 for entry in NEW.index.files}
        assert not files & {sha256 for sha256, _ in device.server.sent}

"""Promises of the variant that serves while the rest of its package comes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.install.budget.settings import NetworkSettings
from agent.install.conditions import ConditionSettings
from agent.install.fetch.settings import DeliverySettings
from agent.install.hooks.settings import HookSettings
from agent.install.repair_pace import REPAIR_MIN_S
from agent.install.states import State
from agent.serve.errors import WorkerLoadError
from agent.serve.model_server import ModelServer
from telemetry.device.recorder import Recorder
from tests.simulators.agent_process import null_package
from tests.simulators.device import PowerCut, SimulatedDevice, nothing
from tests.simulators.packages import SignedPackage, package, two_variants, variant
from tests.simulators.patience import until
from tests.simulators.serving import FakeModelServer, FakeWorker
from wire.clock import SystemClock
from wire.delivery import Chunk
from wire.package.variant import Variant

SMALL_BYTES = 1_500_000
SECOND_CHUNKS = SMALL_BYTES // 1024
NEW = two_variants("2.0.0", best="new best", small="s" * SMALL_BYTES)
NEWER = two_variants("3.0.0", best="newer best", small="t" * SMALL_BYTES)
OLD = two_variants("1.0.0", best="old best", small="old small")
SECOND = "variants/small/model.json"


def sha256_of(made: SignedPackage, path: str) -> str:
    return made.index.file(path).sha256


class Slow:
    """A link on which every chunk takes its time.

    Args:
        device: Whose link it is.
        chunk_s: How long.
    """

    def __init__(self, device: SimulatedDevice, chunk_s: float = 2.0) -> None:
        self.device = device
        self.chunk_s = chunk_s
        self.seen: list[tuple[str | None, str | None]] = []
        """What served while each chunk of a second variant came."""

        self.at_chunk: Callable[[int], None] = lambda _count: None
        device.server.tamper = self.carry

    def carry(self, chunk: Chunk) -> Chunk | None:
        self.device.clock.advance(self.chunk_s)
        if chunk.sha256 in {sha256_of(NEW, SECOND), sha256_of(NEWER, SECOND)}:
            self.seen.append(self.device.adaptation.active())
            self.at_chunk(len(self.seen))
        return chunk


@pytest.fixture
def device(tmp_path: Path) -> SimulatedDevice:
    """Return a device that has nothing yet."""
    device = SimulatedDevice(tmp_path)
    device.boot()
    return device


def events(device: SimulatedDevice, kind: str) -> list[str]:
    return [reason for of, reason, _ in device.heard.events if of == kind]


def check_served(seen: list[tuple[str | None, str | None]], made: SignedPackage) -> None:
    """Check that a variant served from soon after the beginning on."""
    first = seen.index((made.digest, "best"))
    assert first < len(seen) / 2
    assert set(seen[:first]) <= {(None, None)}
    assert set(seen[first:]) == {(made.digest, "best")}


def check_installed(device: SimulatedDevice, made: SignedPackage) -> None:
    """Check that all of a package serves, and that this was reported."""
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.adaptation.active() == (made.digest, "best")
    assert [each.name for each in device.adaptation.candidates()] == ["best", "small"]
    assert device.slot.current() == made.digest
    assert device.installer.loss(made.digest) is None
    assert device.serving.running == 1


def test_the_first_variant_serves_while_the_others_come(device: SimulatedDevice) -> None:
    slow = Slow(device)
    device.install(1, NEW)
    check_served(slow.seen, NEW)
    check_installed(device, NEW)
    assert [each.partition(":")[0] for each in events(device, "switch")] == ["early", "moved"]
    assert set(device.served) == {b"new best"}
    running = [each for each in device.heard.reports if each.outcome == "running"]
    assert (running[-1].active, running[-1].variant) == (NEW.digest, "best")


def test_nobody_waits_for_a_test_where_the_rest_comes_soon(device: SimulatedDevice) -> None:
    slow = Slow(device, chunk_s=0.002)
    device.install(1, NEW)
    assert set(slow.seen) == {(None, None)}
    check_installed(device, NEW)


def test_what_serves_goes_on_until_all_has_been_proven(device: SimulatedDevice) -> None:
    device.install(1, OLD)
    slow = Slow(device)
    device.install(2, NEW)
    assert set(slow.seen) == {(OLD.digest, "best")}
    check_installed(device, NEW)


def test_an_operator_may_forbid_it_and_hooks_do(tmp_path: Path) -> None:
    (tmp_path / "hooks").mkdir()
    for number, (conditions, hooks) in enumerate(
        [
            (ConditionSettings(early=False), HookSettings()),
            (ConditionSettings(), HookSettings(directory=tmp_path / "hooks")),
        ]
    ):
        root = tmp_path / f"device-{number}"
        root.mkdir()
        device = SimulatedDevice(root, conditions=conditions, hooks=hooks)
        device.boot()
        slow = Slow(device)
        device.install(1, NEW)
        assert set(slow.seen) == {(None, None)}
        check_installed(device, NEW)


def test_a_first_variant_that_fails_its_golden_test_ends_the_install_before_more_comes(
    device: SimulatedDevice,
) -> None:
    slow = Slow(device)
    device.bad_golden.add("new best")
    device.install(1, NEW)
    outcome = device.heard.outcomes[-1]
    assert (outcome.outcome, outcome.error_code) == ("failed", "agent.golden")
    assert outcome.phase == "fetching"
    assert len(slow.seen) < SECOND_CHUNKS / 4
    assert device.served == []


def test_a_first_variant_that_cannot_start_is_tried_again_after_a_while(
    device: SimulatedDevice,
) -> None:
    small = SECOND.split("/")[1]
    made = package(
        "2.0.0",
        [
            (variant("best", accuracy=0.99), b"new best"),
            (variant("middle", accuracy=0.95), b"new middle"),
            (variant(small, accuracy=0.9), b"s" * SMALL_BYTES),
        ],
    )
    slow = Slow(device)
    device.bad_load.add("new best")
    slow.at_chunk = lambda count: device.bad_load.clear() if count == 150 else None
    device.install(1, made)
    check_served(slow.seen, made)
    assert events(device, "worker") == ["variant best cannot serve yet: cannot load best"]
    assert device.heard.outcomes[-1].outcome == "succeeded"
    assert device.adaptation.active() == (made.digest, "best")


@pytest.mark.parametrize("cut_at", [1, 5, 10])
def test_after_a_power_cut_it_serves_again_before_the_rest_has_come(
    device: SimulatedDevice, cut_at: int
) -> None:
    slow = Slow(device)

    def cut(count: int) -> None:
        if count == cut_at:
            raise PowerCut

    slow.at_chunk = cut
    with pytest.raises(PowerCut):
        device.install(1, NEW)
    assert device.slot.current() is None, "nothing says that this package has been proven"
    before = len(slow.seen)
    device.reboot()
    check_served(slow.seen[before:], NEW)
    check_installed(device, NEW)


@pytest.mark.few(12)
@pytest.mark.parametrize("state", [*State])
@pytest.mark.parametrize("where", ["effect", "effected", "save", "saved"])
def test_a_power_cut_anywhere_leads_to_the_whole_package(
    device: SimulatedDevice, state: State, where: str
) -> None:
    Slow(device)
    left = [True]

    def cut(at_where: str, at_state: State) -> None:
        if left and (at_where, at_state) == (where, state):
            left.clear()
            raise PowerCut

    device.hook = cut
    try:
        device.install(1, NEW)
    except PowerCut:
        device.reboot()
    device.hook = nothing
    device.install(1, NEW)  # before the first save nothing was accepted
    check_installed(device, NEW)


def test_a_newer_release_takes_its_place(device: SimulatedDevice) -> None:
    slow = Slow(device)
    device.server.add(*NEW.blobs, *NEWER.blobs)
    slow.at_chunk = lambda count: device.interrupts.supersede() if count == 4 else None
    device.accept(1, NEW)
    device.machine.run()
    assert device.adaptation.active() == (None, None)
    device.interrupts.clear_superseded()
    slow.at_chunk = lambda _count: None
    before = len(slow.seen)
    device.install(2, NEWER)
    check_served(slow.seen[before:], NEWER)
    check_installed(device, NEWER)


def test_a_later_failure_takes_it_out_of_service(device: SimulatedDevice) -> None:
    slow = Slow(device)
    slow.at_chunk = lambda count: device.bad_golden.add("new best") if count == 4 else None
    device.install(1, NEW)
    assert device.heard.outcomes[-1].outcome == "failed"
    assert device.adaptation.active() == (None, None)
    assert device.slot.current() is None


def test_it_serves_while_the_rest_waits_for_its_budget(device: SimulatedDevice) -> None:
    Slow(device, chunk_s=0.01)
    metered = NetworkSettings(
        name="cellular", interfaces=("wwan*",), bytes_per_day=SMALL_BYTES // 4, full=True
    )
    device.delivery = DeliverySettings(networks=(metered,))
    (device.root / "proc/net").mkdir(parents=True)
    (device.root / "proc/net/route").write_text("wwan0 00000000 0 0003 0 0 0 00000000 0 0 0\n")
    device.lose_power()
    device.boot()
    waits: list[tuple[str | None, str | None]] = []

    def passing(where: str, _state: State) -> None:
        if where == "waits":
            waits.append(device.adaptation.active())
            device.clock.advance(3600.0)

    device.hook = passing
    device.install(1, NEW)
    assert waits
    assert set(waits) == {(NEW.digest, "best")}
    check_installed(device, NEW)


def test_a_repair_that_serves_early_and_fails_is_not_taken_for_done(
    device: SimulatedDevice,
) -> None:
    device.install(1, NEW)
    for path in (device.slots.directory(NEW.digest) / "variants").glob("*/model.json"):
        path.write_bytes(b"rotten")
    device.reboot()
    assert device.adaptation.active() == (None, None)
    slow = Slow(device)
    blob = device.server.blobs[sha256_of(NEW, SECOND)]

    def lose(count: int) -> None:
        if count == SECOND_CHUNKS // 2:
            device.server.blobs.clear()

    slow.at_chunk = lose
    assert device.machine.repair()
    device.machine.run()
    slow.at_chunk = lambda _count: None
    before = len(slow.seen)
    assert device.adaptation.active() == (NEW.digest, "best"), "better one variant than none"
    assert device.installer.loss(NEW.digest) == "not all of digits:2.0.0 has come"
    device.server.add(*NEW.blobs)
    assert blob in device.server.blobs.values()
    device.clock.advance(10 * REPAIR_MIN_S)
    assert device.machine.repair()
    device.machine.run()
    assert set(slow.seen[before:]) == {(NEW.digest, "best")}
    check_installed(device, NEW)


def test_a_variant_that_came_at_once_serves_while_the_next_takes_long(
    device: SimulatedDevice,
) -> None:
    slow = Slow(device)

    def carry(chunk: Chunk) -> Chunk | None:
        slow.chunk_s = 60.0 if chunk.sha256 == sha256_of(NEW, SECOND) else 0.0
        return slow.carry(chunk)

    device.server.tamper = carry
    device.install(1, NEW)
    check_served(slow.seen, NEW)
    check_installed(device, NEW)


def test_what_failed_its_golden_test_serves_no_longer_though_nothing_else_can(
    device: SimulatedDevice,
) -> None:
    device.install(1, OLD)
    device.bad_load |= {"old best", "old small"}
    device.reboot()
    slow = Slow(device)
    slow.at_chunk = lambda count: device.bad_golden.add("new best") if count == 1000 else None
    device.install(2, NEW)
    assert (NEW.digest, "best") in slow.seen
    assert device.heard.outcomes[-1].outcome == "failed"
    assert device.adaptation.active() == (None, None)


class _OneAtATime(FakeModelServer):
    """A device whose memory holds one worker."""

    def _prepare(self, package: Path, digest: str, variant: Variant) -> FakeWorker:
        if self.running:
            raise WorkerLoadError(f"cannot load {variant.name}: out of memory")
        return super()._prepare(package, digest, variant)


def test_it_does_not_make_an_install_fail_where_memory_holds_one_worker(
    device: SimulatedDevice,
) -> None:
    device.model_server = _OneAtATime
    device.reboot()
    slow = Slow(device)
    device.install(1, NEW)
    check_served(slow.seen, NEW)
    check_installed(device, NEW)


def test_with_real_workers_the_whole_package_serves_in_the_end(tmp_path: Path) -> None:
    clock = SystemClock()
    server = ModelServer(Recorder(clock), clock, device="dev-1")
    device = SimulatedDevice(tmp_path)
    device.model_server = lambda **_: server
    made = null_package("2.0.0", padding_bytes=200_000)
    seen: set[str | None] = set()

    def carry(chunk: Chunk) -> Chunk:
        device.clock.advance(5.0)
        seen.add(device.adaptation.active()[1])
        return chunk

    def crash_once(where: str, state: State) -> None:
        if (where, state) == ("effect", State.PROBING):
            device.hook = nothing
            active = server.active
            assert active is not None
            os.kill(active.worker.pid, signal.SIGKILL)
            until(lambda: not active.worker.is_alive)
            device.adaptation.tick(device.adaptation.health)
            assert server.active is not None, "it has been started again where its files are now"

    try:
        device.boot()
        device.server.tamper = carry
        device.hook = crash_once
        device.install(1, made)
        assert "best" in seen
        outcome = device.heard.outcomes[-1]
        assert (outcome.outcome, outcome.detail) == ("succeeded", "")
        assert server.active is not None
        assert server.active.package_dir == device.slots.directory(made.digest)
    finally:
        server.stop()

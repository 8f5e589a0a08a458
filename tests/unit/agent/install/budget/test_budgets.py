"""The counts of a device: what is on its disk after a kill, and by which network bytes came."""

from __future__ import annotations

import errno
from datetime import UTC, datetime
from pathlib import Path

import pytest

from agent.errors import DeferredError, NeedsDeltaError
from agent.install.budget.boot import Boot, this_boot
from agent.install.budget.budgets import LEDGER_FILE, MOST_RESERVE_BYTES, Budgets
from agent.install.budget.decisions import Wanted
from agent.install.budget.ledger import MAX_ENTRIES, Entry, Ledger
from agent.install.budget.settings import MAX_BYTES, NetworkSettings
from agent.sealed import seal
from telemetry.device.recorder import Recorder
from tests.simulators.clock import FakeClock
from wire.files import write_atomic
from wire.telemetry import SumPoint

MB = 10**6
BOUND = 50 * MB
STEP = 100_000
RESERVE = BOUND // 64
CELLULAR = NetworkSettings(
    name="cellular", interfaces=("wwan[0-9]", "ppp*"), bytes_per_day=BOUND, full=True
)
WIFI = NetworkSettings(name="wifi", interfaces=("wlan*",))
DELTA = Wanted(lacking_bytes=BOUND)
WHOLE = DELTA._replace(is_content=True)


class PowerCut(BaseException):
    """The device is off from here on."""


class Rig:
    """A device whose agent may be killed anywhere."""

    def __init__(self, root: Path, *networks: NetworkSettings, writes: int | None = None) -> None:
        self.root, self.clock = root, FakeClock()
        self.recorder = Recorder(self.clock)
        self.networks, self.writes = networks or (CELLULAR, WIFI), writes
        self.written = 0
        self.cut_at: int | None = None
        self.is_full = False
        self.boot = "first boot"
        self.route("wwan0")
        self.start()

    def start(self) -> None:
        self.budgets = Budgets(
            self.networks,
            self.writes,
            self.root,
            self.root / "proc",
            self.recorder,
            self.clock,
            Boot(self.boot, self.clock.monotonic_s),
            lambda at_s: datetime.fromtimestamp(at_s, UTC),
            write=self._write,
        )

    def route(self, interface: str | None) -> None:
        (self.root / "proc/net").mkdir(parents=True, exist_ok=True)
        line = f"{interface} 00000000 0 0003 0 0 0 00000000 0 0 0\n" if interface else ""
        (self.root / "proc/net/route").write_text(line)

    def _write(self, path: Path, content: bytes) -> None:
        self.written += 1
        if self.is_full:
            raise OSError(errno.ENOSPC, "no space left on device")
        if self.written == self.cut_at:
            raise PowerCut
        write_atomic(path, content)
        if self.written == -(self.cut_at or 0):
            raise PowerCut

    def fetch(self, steps: int, wanted: Wanted = DELTA) -> int:
        """Fetch as a source does: it asks before each step."""
        for _ in range(steps):
            self.budgets.check(wanted)
            self.budgets.came(STEP)
            self.clock.advance(0.1)
        return steps * STEP

    def by_network(self) -> dict[str, float]:
        """Return what telemetry has counted since the last time."""
        found: dict[str, float] = {}
        for point in self.recorder.drain()[0]:
            assert isinstance(point, SumPoint)
            name = point.attributes["network"]
            found[name] = found.get(name, 0) + point.value
        return found

    def used(self, name: str = "cellular") -> int:
        found = {each["name"]: each["day_bytes"] for each in self.budgets.status()}
        return int(found[name])


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def test_what_is_used_outlives_a_restart(rig: Rig) -> None:
    rig.fetch(30)
    rig.budgets.settle()
    rig.start()
    assert rig.used() == 30 * STEP


def test_a_transfer_ends_at_the_bound_and_within_a_look_of_it(rig: Rig) -> None:
    with pytest.raises(
        DeferredError, match=r"^cellular has used 47\.\d of 47\.7 MiB today; it goes"
    ):
        rig.fetch(10**6)
    assert BOUND <= rig.used() <= BOUND + 2 * STEP
    deferral = rig.budgets.deferral()
    assert deferral is not None
    rig.start()
    assert BOUND <= rig.used() <= BOUND + 2 * STEP
    rig.clock.advance(86_400)
    rig.fetch(1)
    assert rig.used() == STEP


@pytest.mark.parametrize("steps", [1, 7, 8, 9, 100, 333])
def test_a_kill_while_bytes_come_counts_too_much_and_not_by_more_than_the_reserve(
    rig: Rig, steps: int
) -> None:
    used_bytes = rig.fetch(steps)
    rig.start()  # without a word of the one before
    assert used_bytes - STEP <= rig.used() <= used_bytes + RESERVE


@pytest.mark.parametrize("cut", [*range(1, 9), *range(-8, 0)])
def test_a_power_cut_at_each_write_loses_at_most_what_came_since_the_last_look(
    rig: Rig, cut: int
) -> None:
    rig.cut_at = cut
    came = 0
    with pytest.raises(PowerCut):
        while True:
            rig.fetch(1)
            came += STEP
    rig.cut_at = None
    rig.start()
    assert came - STEP <= rig.used() <= came + RESERVE


def test_the_file_is_written_some_hundred_times_for_a_days_worth_at_most(rig: Rig) -> None:
    with pytest.raises(DeferredError):
        rig.fetch(10**6)
    assert rig.written <= 70


def test_a_network_without_bounds_costs_no_write_while_it_brings(rig: Rig) -> None:
    rig.route("eth0")
    rig.start()
    rig.fetch(2000)
    assert rig.written == 0
    assert rig.by_network() == {"other": 2000 * STEP}
    rig.budgets.settle()
    assert rig.written == 1


def test_a_change_of_the_network_is_seen_within_seconds(rig: Rig) -> None:
    with pytest.raises(DeferredError):
        rig.fetch(10**6)
    for interface in ("wlan0", "eth0", None):
        rig.route(interface)
        rig.clock.advance(5)
        assert rig.budgets.deferral() is None
        rig.fetch(10)
        rig.route("wwan0")
        rig.clock.advance(5)
        assert rig.budgets.deferral() is not None
        with pytest.raises(DeferredError):
            rig.fetch(20)
    assert rig.used("wifi") == 10 * STEP
    assert rig.by_network() == {
        "cellular": rig.used(),
        "wifi": 10 * STEP,
        "other": 20 * STEP,
    }


def test_only_a_delta_may_come_until_another_network_is_there(tmp_path: Path) -> None:
    metered = NetworkSettings(name="cellular", interfaces=("wwan*",), bytes_per_day=BOUND)
    rig = Rig(tmp_path, metered)
    rig.fetch(3, DELTA)
    with pytest.raises(
        NeedsDeltaError, match=r"deltas only \(full = false\), and there is none to a file"
    ):
        rig.fetch(1, WHOLE)
    assert rig.budgets.deferral() is not None
    rig.clock.advance(3600)
    assert rig.budgets.deferral() is None, "there may be a delta now"


def test_the_operator_is_asked_only_where_a_budget_would_end_the_transfer(rig: Rig) -> None:
    asked: list[int] = []
    rig.budgets.is_allowed = lambda: not asked.append(1)  # type: ignore[func-returns-value]
    rig.fetch(490)
    assert asked == []
    rig.fetch(490)
    assert rig.used() == 980 * STEP, "it is counted all the same"


def test_writes_are_bounded_for_every_source(tmp_path: Path) -> None:
    rig = Rig(tmp_path, writes=MB)
    rig.budgets.wrote(MB)
    for wanted in (Wanted(is_local=True), DELTA):
        with pytest.raises(
            DeferredError, match=r"installs have written 976\.6 of 976\.6 KiB today"
        ):
            rig.budgets.check(wanted)
    assert rig.budgets.status()[-1]["text"] == "976.6 of 976.6 KiB today"


def test_where_the_clock_stands_still_a_wait_goes_on_by_the_time_that_the_agent_ran(
    rig: Rig,
) -> None:
    with pytest.raises(DeferredError):
        rig.fetch(10**6)
    ran_s, waits = 0, True
    while waits:
        rig.clock.advance(1200)
        rig.clock.correct(-1200)
        rig.budgets.deferral()
        rig.start()
        ran_s += 1200
        try:
            rig.budgets.check(DELTA)
        except DeferredError:
            assert ran_s <= 27 * 3600
        else:
            waits = False
    assert ran_s >= 25 * 3600


DAY_S = 86_400


def test_jumps_of_the_clock_give_no_day_more_in_spite_of_restarts(rig: Rig) -> None:
    came = 0
    for _ in range(12):
        with pytest.raises(DeferredError):
            while True:
                came += rig.fetch(1)
        rig.clock.correct(2 * DAY_S)
        rig.start()
    assert came <= 3 * BOUND + 12 * (STEP + RESERVE)


def test_the_time_in_which_the_agent_did_not_run_counts(rig: Rig) -> None:
    for _ in range(9):
        with pytest.raises(DeferredError):
            rig.fetch(10**6)
        rig.clock.advance(DAY_S)
        rig.start()
        rig.fetch(1)


def test_this_machine_tells_its_boot() -> None:
    boot, again = this_boot(Path("/proc")), this_boot(Path("/proc"))
    assert boot.id == again.id
    assert len(boot.id) == 36
    assert 0 < boot.uptime_s() <= again.uptime_s()


def test_where_the_boot_is_not_known_each_start_counts_as_one(tmp_path: Path) -> None:
    assert this_boot(tmp_path).id == ""


@pytest.mark.parametrize(
    "ledger",
    [
        Ledger(schema_version=2),
        Ledger(entries=(Entry(date="x", began_s=0, used_bytes={"a": -1}),)),
        Ledger(entries=(Entry(date="x", began_s=0, used_bytes={"a": MAX_BYTES + 1}),)),
        Ledger(entries=(Entry(date="x", began_s=0),) * (MAX_ENTRIES + 1)),
        Ledger(ahead_s=-1.0),
        Ledger(ahead_s=float("nan")),
        Ledger(shown_s=float("inf")),
    ],
)
def test_a_file_that_cannot_be_true_is_moved_aside(rig: Rig, ledger: Ledger) -> None:
    (rig.root / LEDGER_FILE).write_bytes(seal(ledger))
    rig.start()
    assert rig.budgets.fault.startswith("budget.json was damaged")
    assert (rig.root / f"{LEDGER_FILE}.corrupt").exists()
    rig.fetch(3)
    assert rig.used() == 3 * STEP


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff" * 9, b'{"checksum":"', b"[" * 100_000])
def test_a_damaged_file_is_moved_aside(rig: Rig, content: bytes) -> None:
    (rig.root / LEDGER_FILE).write_bytes(content)
    rig.start()
    assert rig.budgets.fault
    assert rig.used() == 0


def test_a_storage_that_cannot_be_written_stops_no_transfer(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.is_full = True
    rig.fetch(100)
    assert rig.used() == 100 * STEP


def test_the_reserve_is_small_beside_any_bound(tmp_path: Path) -> None:
    huge = NetworkSettings(name="cellular", interfaces=("*",), bytes_per_day=MAX_BYTES, full=True)
    rig = Rig(tmp_path, huge)
    rig.fetch(50)
    rig.start()
    assert rig.used() <= 50 * STEP + MOST_RESERVE_BYTES

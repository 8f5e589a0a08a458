"""Energy of inferences, by counters of the processors in a directory of files."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from runtime_adapters.energy import EnergyCounters, added_j
from tests.simulators.clock import FakeClock

RANGE_UJ = 10_000_000_000
REST_W = 20.0
RUN_S = 0.01


class Board:
    """Processors that take some watts, and joules more for each inference.

    Its clock moves the counters.
    """

    def __init__(self, root: Path, *, run_j: float, begins_uj: int = 0, packages: int = 1) -> None:
        self.clock = FakeClock()
        self.root = root
        self._run_j = run_j
        self._runs = 0
        self._packages = packages
        self._begins_uj = begins_uj
        self._began_s = self.clock.monotonic_s()
        for number in range(packages):
            self.zone(f"intel-rapl:{number}", f"package-{number}")
        self.zone("intel-rapl:0:0", "core")
        self.zone("dtpm", "dtpm")
        self.write()

    def zone(self, folder: str, name: str) -> None:
        (self.root / folder).mkdir()
        (self.root / folder / "name").write_text(f"{name}\n")
        (self.root / folder / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
        (self.root / folder / "energy_uj").write_text("5\n")

    def write(self) -> None:
        passed_s = self.clock.monotonic_s() - self._began_s
        taken_uj = int((REST_W * passed_s + self._run_j * self._runs) * 1e6 / self._packages)
        shown_uj = (self._begins_uj + taken_uj) % RANGE_UJ
        for number in range(self._packages):
            (self.root / f"intel-rapl:{number}/energy_uj").write_text(f"{shown_uj}\n")

    def monotonic_s(self) -> float:
        return self.clock.monotonic_s()

    def now_s(self) -> float:
        return self.clock.now_s()

    def sleep(self, duration_s: float) -> None:
        self.clock.advance(duration_s)
        self.write()

    def wait(self, event: threading.Event, duration_s: float) -> bool:
        self.sleep(duration_s)
        return event.is_set()

    def infer(self) -> None:
        self._runs += 1
        self.sleep(RUN_S)


@pytest.mark.parametrize("packages", [1, 2])
def test_what_the_rest_takes_is_taken_off(tmp_path: Path, packages: int) -> None:
    board = Board(tmp_path, run_j=0.05, packages=packages)
    assert added_j(board.infer, EnergyCounters(tmp_path), board) == pytest.approx(0.05, rel=1e-3)


def test_a_counter_may_begin_again_meanwhile(tmp_path: Path) -> None:
    board = Board(tmp_path, run_j=0.05, begins_uj=RANGE_UJ - 50_000_000)
    assert added_j(board.infer, EnergyCounters(tmp_path), board) == pytest.approx(0.05, rel=1e-3)


def test_inferences_that_add_nothing_have_no_figure(tmp_path: Path) -> None:
    board = Board(tmp_path, run_j=0.0)
    found = added_j(board.infer, EnergyCounters(tmp_path), board)
    assert found is None or found < 1e-6


def test_without_a_counter_nothing_is_known_and_nothing_runs(tmp_path: Path) -> None:
    board = Board(tmp_path, run_j=1.0)
    for place in (tmp_path / "nowhere", tmp_path / "dtpm"):
        assert added_j(pytest.fail, EnergyCounters(place), board) is None


def test_a_counter_that_may_not_be_read_tells_nothing(tmp_path: Path) -> None:
    board = Board(tmp_path, run_j=1.0)
    (tmp_path / "intel-rapl:0/energy_uj").unlink()
    assert added_j(pytest.fail, EnergyCounters(tmp_path), board) is None

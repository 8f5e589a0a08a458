"""What no batch holds yet survives the end of the process, and never counts twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from telemetry.device.open_figures import PLACE_BYTES, OpenFigures
from telemetry.device.spool import Spool
from tests.unit.telemetry.device.manual_clock import ManualClock
from wire.telemetry import GaugePoint, SumPoint, TelemetryAck, TelemetryBatch

Opened = Callable[..., Spool]


def total(value: float) -> SumPoint:
    return SumPoint(metric="x_total", minute=1, attributes={}, value=value)


def batch(sequence: int, value: float = 1.0) -> TelemetryBatch:
    return TelemetryBatch(device="dev-1", boot_id="b", sequence=sequence, points=(total(value),))


def values(spool: Spool) -> list[float]:
    found = [point for each, _ in spool.pending(100) for point in each.points]
    return [point.value for point in found if isinstance(point, SumPoint)]


def acknowledge(spool: Spool) -> None:
    for each, _ in spool.pending(100):
        spool.acknowledge(TelemetryAck(boot_id=each.boot_id, sequences=(each.sequence,)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "telemetry.db"


@pytest.fixture
def opened(path: Path) -> Opened:
    """Open the spool anew as the next process does: nothing closes the one before."""

    def make(boot_id: str = "b") -> Spool:
        return Spool(path, device="dev-1", boot_id=boot_id, limit_bytes=2**20, clock=ManualClock())

    return make


def test_the_last_whole_write_counts(tmp_path: Path) -> None:
    path = tmp_path / "open"
    kept = OpenFigures(path)
    for number in range(5):
        kept.keep([batch(number)])
    assert OpenFigures(path).read() == [batch(4)]
    data = bytearray(path.read_bytes())
    data[PLACE_BYTES + 40] ^= 1  # the last write is that of an odd number
    path.write_bytes(data)
    assert OpenFigures(path).read() == [batch(3)]
    path.write_bytes(b"")
    assert OpenFigures(path).read() == []


@pytest.mark.parametrize("cut", [0, 1, 19, 21, PLACE_BYTES - 1, PLACE_BYTES + 3])
def test_a_file_that_is_cut_off_or_anything_else_is_nothing(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "open"
    kept = OpenFigures(path)
    kept.keep([batch(1)])
    path.write_bytes(path.read_bytes()[:cut])
    assert OpenFigures(path).read() == []
    path.write_bytes(b"\xff" * 3 * PLACE_BYTES)
    assert OpenFigures(path).read() == []


def test_what_was_kept_is_a_batch_at_the_next_start(opened: Opened) -> None:
    first = opened("one")
    first.append([total(1.0)], [])
    first.keep([total(2.0)])
    first.keep([total(3.0)])
    second = opened("two")
    assert values(second) == [1.0, 3.0]
    keys = [(each.boot_id[:3], each.sequence) for each, _ in second.pending()]
    assert keys == [("one", 0), ("one", 1)]
    assert values(opened("three")) == [1.0, 3.0], "once and no more"


def test_what_was_appended_is_not_kept_any_more(opened: Opened) -> None:
    first = opened("one")
    first.keep([total(2.0)])
    first.append([total(3.0)], [])
    assert values(opened("two")) == [3.0]


def test_a_kill_between_the_append_and_the_forgetting_counts_once(
    opened: Opened, path: Path
) -> None:
    first = opened("one")
    first.keep([total(2.0)])
    before = path.with_suffix(".open").read_bytes()
    first.append([total(3.0)], [])
    path.with_suffix(".open").write_bytes(before)
    second = opened("two")
    assert values(second) == [3.0]


def test_what_the_controller_has_counted_is_not_sent_again(opened: Opened, path: Path) -> None:
    first = opened("one")
    first.keep([total(2.0)])
    before = path.with_suffix(".open").read_bytes()
    first.append([total(2.0)], [])
    acknowledge(first)
    path.with_suffix(".open").write_bytes(before)
    assert values(opened("two")) == []


def test_a_restart_within_a_boot_goes_on_after_what_was_kept(opened: Opened) -> None:
    opened().keep([total(1.0)])
    second = opened()
    second.append([total(2.0)], [])
    assert [each.sequence for each, _ in second.pending()] == [0, 1]
    assert values(second) == [1.0, 2.0]


def test_figures_of_another_device_are_not_ours(path: Path, opened: Opened) -> None:
    opened().keep([total(1.0)])
    other = Spool(path, device="dev-2", boot_id="b", limit_bytes=2**20, clock=ManualClock())
    assert values(other) == []


def test_the_disk_is_left_alone_while_nothing_is_kept(opened: Opened, path: Path) -> None:
    spool = opened()
    file = path.with_suffix(".open")
    before = file.stat().st_mtime_ns
    reading = GaugePoint(
        metric="x_c", minute=1, attributes={}, count=1, total=1.0, least=1.0, greatest=1.0
    )
    for _ in range(3):
        spool.append([reading], [])
    assert file.stat().st_mtime_ns == before
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_written_costs_nothing_else(opened: Opened, path: Path) -> None:
    path.with_suffix(".open").mkdir(parents=True)
    spool = opened()
    spool.keep([total(1.0)])
    spool.append([total(2.0)], [])
    assert values(spool) == [2.0]

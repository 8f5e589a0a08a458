"""Whatever the files hold, nothing raises and nothing impossible comes out."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from telemetry.device.sensors import Sensors
from telemetry.device.sensors.files import MAX_CHILDREN, KernelFiles, read_once, whole_number
from tests.unit.telemetry.device.sensor_board import BOARDS, Board, overwrite
from wire.health import HealthSnapshot

RATIOS = {
    name
    for name in HealthSnapshot.__struct_fields__
    if name.endswith("_ratio") and name != "load_ratio"
}
CONTENTS = (
    st.binary(max_size=64)
    | st.integers(-(10**25), 10**25).map(lambda number: b"%d\n" % number)
    | st.sampled_from(
        [b"", b"nan\n", b"-inf\n", b"1e9\n", b"-40000\n", b"0\n", b"1_000\n", b"0x1\n", b"\x00" * 9]
    )
    | st.integers(1, 9).map(lambda times: b"61000\n" * times)
)


def check(health: HealthSnapshot) -> None:
    values = msgspec.structs.asdict(health)
    assert all(value is None or math.isfinite(value) for value in values.values())
    for name in RATIOS:
        assert values[name] is None or 0.0 <= values[name] <= 1.0, name
    celsius, total, power_mw = health.temperature_c, health.memory_total_bytes, health.power_mw
    assert celsius is None or (-30.0 <= celsius <= 150.0 and celsius != 0.0)
    assert (celsius is None) == (health.headroom is None) == (health.severe_c is None)
    assert health.memory_available_bytes is None or total is not None
    assert total is None or total >= (health.memory_available_bytes or 0) >= 0
    assert health.load_ratio is None or health.load_ratio >= 0.0
    assert power_mw is None or 0.0 <= power_mw <= 1e6
    left_j, holds_j = health.battery_energy_j, health.battery_capacity_j
    assert left_j is None or 0.0 <= left_j <= (math.inf if holds_j is None else holds_j)
    msgspec.json.decode(msgspec.json.encode(health), type=HealthSnapshot)


def files_of(board: Board) -> list[Path]:
    return sorted(p for p in board.root.rglob("*") if p.is_file() and not p.is_symlink())


@pytest.fixture(scope="module")
def boards(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Board]:
    return {name: Board(tmp_path_factory.mktemp("boards"), name) for name in BOARDS}


@settings(max_examples=60)
@given(data=st.data(), name=st.sampled_from(BOARDS))
def test_any_bytes_in_every_file(data: st.DataObject, name: str, boards: dict[str, Board]) -> None:
    board = boards[name]
    paths = files_of(board)
    kept = {path: path.read_bytes() for path in paths}
    board.sensors = board.restarted()
    try:
        # Once found in order and then gone bad, once bad from the first look on.
        check(board.read())
        for _ in range(2):
            contents = data.draw(st.lists(CONTENTS, min_size=5, max_size=5))
            for number, path in enumerate(paths):
                overwrite(path, contents[(number * 7) % 5])
            check(board.read())
            board.sensors = board.restarted()
            check(board.read())
    finally:
        for path, content in kept.items():
            overwrite(path, content)


@settings(max_examples=100)
@given(content=CONTENTS)
def test_a_temperature_is_what_the_file_says_or_unknown(
    content: bytes, boards: dict[str, Board]
) -> None:
    board = boards["rpi4"]
    path = board.root / "sys/class/thermal/thermal_zone0/temp"
    overwrite(path, b"61342\n")
    board.sensors = board.restarted()
    assert board.read().temperature_c == 61.342
    overwrite(path, content)
    celsius = board.read().temperature_c
    overwrite(path, b"61342\n")
    assert celsius is None or (1.342 <= celsius <= 121.342 and celsius == int(content) / 1000)


@settings(max_examples=100)
@given(CONTENTS)
def test_a_number_is_a_number_or_nothing(content: bytes) -> None:
    number = whole_number(content)
    assert number is None or content.strip() in {b"%d" % number, b"-0", content.strip()}
    assert number is None or abs(number) < 10**20


@pytest.mark.parametrize("name", BOARDS)
def test_pipes_directories_and_loops_in_place_of_files(name: str, tmp_path: Path) -> None:
    for kind in ("pipe", "directory", "loop", "secret"):
        board = Board(tmp_path / kind, name)
        board.read()
        for path in files_of(board):
            path.unlink()
            if kind == "pipe":
                os.mkfifo(path)
            elif kind == "directory":
                path.mkdir()
            elif kind == "loop":
                path.symlink_to(path.name)
            else:
                path.touch(mode=0)
        gone = HealthSnapshot(at_s=board.clock.now_s() + 1.0)
        assert board.read() == gone
        board.sensors = board.restarted()
        assert board.read(after_s=0.0) == gone


def test_an_endless_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    board = Board(tmp_path, "rpi4")
    with (board.root / "proc/meminfo").open("r+b") as file:
        file.truncate(2**40)
    assert board.read().memory_total_bytes is not None
    assert len(read_once("/dev/zero") or b"") <= 4096


def test_with_too_many_zones_the_temperature_is_unknown(tmp_path: Path) -> None:
    board = Board(tmp_path, "rpi4")
    for number in range(1, 1000):
        zone = f"sys/class/thermal/thermal_zone{number}"
        board.write(f"{zone}/type", "cpu-thermal")
        board.write(f"{zone}/temp", "95000" if number == 999 else "40000")
    assert board.read().temperature_c is None
    for number in range(MAX_CHILDREN, 1000):
        board.remove(f"sys/class/thermal/thermal_zone{number}")
    board.sensors = board.restarted()
    assert board.read().temperature_c == 61.342


def test_more_files_than_may_stay_open_are_read_all_the_same(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(600)]
    for number, path in enumerate(paths):
        path.write_text(f"{number}\n")
    files, before = KernelFiles(), len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(2):
        assert [files.number(str(path)) for path in paths] == list(range(600))
    assert len(list(Path("/proc/self/fd").iterdir())) - before < 300
    files.close()
    shutil.rmtree(tmp_path)
    assert files.number(str(paths[0])) is None


def test_a_replaced_file_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "temp"
    path.write_text("1\n")
    files = KernelFiles()
    assert files.number(str(path)) == 1
    (tmp_path / "new").write_text("2\n")
    (tmp_path / "new").replace(path)
    assert files.number(str(path)) == 2


def test_a_file_whose_owner_went_away_is_unreadable() -> None:
    files = KernelFiles()
    with subprocess.Popen(["sleep", "60"]) as process:
        path = f"/proc/{process.pid}/stat"
        assert files.read(path) is not None
        process.kill()
        process.wait()
        assert files.read(path) is None


def test_this_very_machine_is_possible(tmp_path: Path) -> None:
    board = Board(tmp_path, "container")
    sensors = Sensors(board.profile, board.clock)
    for _ in range(3):
        check(sensors.read())
        board.clock.sleep(1.0)

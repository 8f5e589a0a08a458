"""`fleet-agent record` as a user meets it, on a device without an agent."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.replay.traces import Sensed, Trace, trace_from_bytes
from tests.simulators.patience import PATIENCE_S, until

LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000))
from agent.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Board:
    """A device whose sensors are files."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trace = directory / "trace.jsonl"
        (directory / "profile.toml").write_text(
            'name = "bench"\narchitecture = "x86_64"\nmemory_bytes = 1000000000\n'
            "storage_bytes = 1000000000\n[thermal]\nsevere_c = 95.0\n"
        )
        self.config = directory / "agent.toml"
        self.config.write_text(
            'device = "dev-1"\nstate_dir = "state"\nprofile = "profile.toml"\ntrust = "t"\n'
            'sysfs_root = "sys"\n'
        )
        self.write("thermal/thermal_zone0/type", "cpu-thermal")
        self.write("thermal/thermal_zone0/temp", "52000")

    def write(self, path: str, text: str) -> None:
        file = self.directory / "sys/class" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def arguments(self, *more: str) -> list[str]:
        return ["record", str(self.trace), "--config", str(self.config), *more]

    def record(self, *more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-P", "-m", "agent", *self.arguments(*more)],
            capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        )  # fmt: skip

    def begin(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "agent", *self.arguments("--every", "50ms")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        for _ in range(3):
            self.until_more(process)
        return process

    def until_more(self, process: subprocess.Popen[str]) -> None:
        seen = self.ticks()
        until(lambda: process.poll() is not None or self.ticks() > seen, "a tick")
        assert process.poll() is None, process.communicate()

    def ticks(self) -> int:
        return max(0, self.trace.read_bytes().count(b"\n") - 1) if self.trace.exists() else 0

    def read(self) -> Trace:
        return trace_from_bytes(self.trace.read_bytes())


@pytest.fixture
def board(tmp_path: Path) -> Board:
    return Board(tmp_path)


def test_without_an_agent_the_surroundings_are_recorded_and_that_is_said(board: Board) -> None:
    done = board.record("--for", "1s", "--every", "100ms", "--deadline-ms", "40")
    assert done.returncode == 0, done.stderr
    assert "no agent answers" in done.stderr
    assert "without it the trace has no demand" in done.stderr
    assert "no agent    in 10 ticks: they have no demand" in done.stdout
    trace = board.read()
    header = trace.header
    assert (len(trace.ticks), header.period_s, header.deadline_ms) == (10, 0.1, 40.0)
    assert (header.name, header.profile, header.origin) == ("trace", "bench", "recorded")
    assert header.source.startswith("device dev-1, 20")
    assert "ambient_c is estimated" in header.source
    assert "no agent answered" in header.source
    assert (header.board.start_c, header.board.limits.severe_c) == (52.0, 95.0)
    assert (header.board.throttle_c, header.board.slowest_c) == (90.0, 95.0)
    for tick in trace.ticks:
        assert tick.inputs.demand_per_s == 0.0
        assert tick.sensed is not None
        assert tick.sensed.temperature_c == 52.0
    # The machine's own memory and processor.
    assert trace.ticks[0].inputs.memory_bytes


def test_figures_of_the_board_come_from_a_file(board: Board) -> None:
    file = board.directory / "board.json"
    plant = {"resistance_c_per_w": 2.0, "time_constant_s": 30.0, "idle_w": 2.0, "busy_w": 9.0}
    file.write_text(json.dumps({"thermal": plant, "battery_wh": 20.0}))
    done = board.record("--for", "300ms", "--every", "100ms", "--board", str(file))
    assert done.returncode == 0, done.stderr
    header = board.read().header
    assert (header.board.thermal.busy_w, header.board.battery_wh) == (9.0, 20.0)
    assert (header.board.limits.severe_c, header.board.start_c) == (95.0, 52.0)
    assert "a model board of 2 C/W, 30 s and 2 to 9 W" in header.source


def test_a_battery_is_read(board: Board) -> None:
    for name, text in (
        ("type", "Battery"), ("capacity", "80"), ("status", "Discharging"),
        ("energy_full", "36000000"), ("energy_now", "28800000"), ("power_now", "2500000"),
    ):  # fmt: skip
        board.write(f"power_supply/BAT0/{name}", text)
    assert board.record("--for", "300ms", "--every", "100ms").returncode == 0
    trace = board.read()
    assert trace.header.board.battery_wh == pytest.approx(36.0, rel=0.02)
    assert trace.header.board.start_charge_ratio == pytest.approx(0.8)
    sensed = trace.ticks[0].sensed
    assert sensed is not None
    assert (sensed.battery_discharging, sensed.power_mw) == (True, 2500.0)


def test_a_device_that_shows_nothing_has_a_trace_all_the_same(board: Board) -> None:
    text = board.config.read_text()
    board.config.write_text(text.replace('"sys"', '"none"') + 'procfs_root = "none"\n')
    done = board.record("--for", "300ms", "--every", "100ms")
    assert done.returncode == 0, done.stderr
    assert "no temperature can be read" in done.stderr
    assert "the processor's load cannot be read" in done.stderr
    trace = board.read()
    assert {tick.sensed for tick in trace.ticks} == {Sensed()}
    assert "ambient_c is assumed" in trace.header.source


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_it_can_be_ended_early(board: Board, number: signal.Signals) -> None:
    process = board.begin()
    process.send_signal(number)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    count = len(board.read().ticks)
    assert out.startswith(f"{count} ticks, ")
    assert "model       follows temperature_c within" in out
    assert "Traceback" not in err


def test_what_was_recorded_until_a_kill_is_a_trace(board: Board) -> None:
    process = board.begin()
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    assert len(board.read().ticks) >= 3


def test_a_full_disk_is_one_line_and_leaves_a_trace(board: Board) -> None:
    arguments = board.arguments("--for", "1m", "--every", "20ms")
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIMITED, *arguments],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    told = done.stderr.splitlines()[-1]
    assert "cannot go on writing" in told
    assert "the ticks written so far are a complete trace; free some storage" in told
    assert len(board.read().ticks) >= 2
    assert board.trace.stat().st_size <= 3000


def test_nothing_is_written_over(board: Board) -> None:
    board.trace.write_text("mine")
    done = board.record("--for", "1s")
    assert (done.returncode, board.trace.read_text()) == (2, "mine")
    assert done.stderr.splitlines()[-1].endswith("trace.jsonl already exists; name another file")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--for", "2d"], "172800 ticks are more than the 100000 of a trace"),
        (["--for", "1s", "--every", "2s"], "--every must be more than 0 s and at most --for"),
        (["--every", "0s"], "--every must be more than 0 s and at most --for"),
        (["--for", "12"], "--for: '12' has no unit; write it as 90s"),
        (["--for", "soon"], "--for: 'soon' is not a duration; write it as"),
        (["--for", "1s", "--every", "1ms"], "period_s is not within 0.01 to 600"),
        (["--for", "2d", "--every", "1h"], "period_s is not within 0.01 to 600"),
        (["--deadline-ms", "nan"], "a deadline of nan ms is not positive"),
        (["--board", "none.json"], "cannot read 'none.json': no such file"),
        (["--board", __file__], "test_record_command.py: "),
        (["--board", "BOARD"], "bad.json: throttle_c is not below slowest_c; docs/traces.md"),
        (["--board", "CASE"], "case: the ambient temperature can be estimated only without one"),
    ],
)
def test_an_order_that_makes_no_sense_is_one_line_and_leaves_no_file(
    board: Board, words: list[str], told: str
) -> None:
    bad = board.directory / "bad.json"
    bad.write_text('{"throttle_c": 99}')
    case = board.directory / "case.json"
    case.write_text('{"case": {"resistance_c_per_w": 5, "time_constant_s": 300}}')
    files = {"BOARD": str(bad), "CASE": str(case)}
    done = board.record(*[files.get(word, word) for word in words])
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert not board.trace.exists()


def test_a_file_that_cannot_be_made_is_one_line(board: Board) -> None:
    board.trace = board.directory / "nowhere" / "trace.jsonl"
    done = board.record("--for", "1s")
    assert done.returncode == 2
    assert "cannot make" in done.stderr.splitlines()[-1]
    assert "no such file or directory" in done.stderr

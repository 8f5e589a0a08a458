"""Traces: what is written is read again, what is in doubt is refused, what is shipped is made."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.errors import ReplayError
from agent.replay.board import Board, Inputs
from agent.replay.cell import Cell
from agent.replay.controllers import Fan, Governor
from agent.replay.heat import Case, Leak
from agent.replay.plant import ThermalPlant
from agent.replay.requests import Requests
from agent.replay.sensors import Sensors
from agent.replay.trace_file import SHIPPED, SUFFIX, load_trace, shipped_names
from agent.replay.traces import (
    MAX_LINE_BYTES,
    Header,
    Sensed,
    Tick,
    Trace,
    trace_from_bytes,
    trace_to_bytes,
)
from tests.simulators.make_traces import SCENARIOS, write
from wire.errors import WireFormatError
from wire.profile import ThermalLimits

DOCUMENT = Path(__file__).parents[4] / "docs" / "traces.md"
HEADER = Header(
    trace=1, name="lab", profile="rpi4", period_s=0.1, origin="synthetic", source="a test",
    deadline_ms=50.0,
)  # fmt: skip
PLAIN = Inputs(ambient_c=25.0, demand_per_s=10.0)
TRACE = Trace(
    header=HEADER,
    ticks=(
        Tick(at_s=0.0, inputs=PLAIN),
        Tick(at_s=0.1, inputs=PLAIN, sensed=Sensed(temperature_c=41.5)),
        Tick(at_s=0.2, inputs=PLAIN, sensed=Sensed()),
    ),
)


def lines(**header: object) -> list[bytes]:
    """Return the lines of a good trace, its header changed."""
    first, *rest = trace_to_bytes(TRACE).splitlines()
    return [json.dumps(json.loads(first) | header).encode(), *rest]


def fault(rows: list[bytes]) -> str:
    with pytest.raises(WireFormatError) as caught:
        trace_from_bytes(b"\n".join(rows) + b"\n")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_what_is_written_is_read_again() -> None:
    assert trace_from_bytes(trace_to_bytes(TRACE)) == TRACE
    assert TRACE.duration_s == pytest.approx(0.3)


def test_no_sensor_recorded_is_not_all_sensors_lost() -> None:
    _, without, _, lost = trace_to_bytes(TRACE).splitlines()
    assert b"sensed" not in without
    assert json.loads(lost)["sensed"] == {}


@pytest.mark.parametrize(
    ("header", "words"),
    [
        ({"trace": 2}, "line 1: not a valid Header: Invalid enum value 2"),
        ({"trace": None}, "line 1: not a valid Header"),
        ({"origin": "guessed"}, "line 1: not a valid Header"),
        ({"more": 1}, "unknown field `more`"),
        ({"source": " "}, "line 1: source is empty"),
        ({"name": "../up"}, "line 1: name is not a plain name"),
        ({"profile": ""}, "line 1: profile is not a plain name"),
        ({"deadline_ms": 0}, "line 1: deadline_ms is not above 0"),
        ({"period_s": 0}, "line 1: period_s is not within 0.01 to 600"),
        ({"period_s": 601}, "line 1: period_s is not within 0.01 to 600"),
        ({"board": {"thermal": {"time_constant": 3}}}, "unknown field `time_constant`"),
        (
            {"board": {"governor": {"ratios": [1], "hot_c": 80, "cool_c": 70, "interval_s": 0.01}}}
            | {"period_s": 11},
            "line 1: period_s is not within 0.01 to 10",
        ),
        (
            {"board": {"leak": {"power_w": 9, "at_c": 25, "e_fold_c": 20}}},
            "line 1: board: leak: has no steady temperature: it runs away on an idle board at 25 C",
        ),
        ({"board": {"battery_wh": 0}}, "line 1: board: battery_wh is not above 0"),
        ({"board": {"throttle_c": 90}}, "line 1: board: throttle_c is not below slowest_c"),
    ],
)
def test_a_wrong_header_is_refused(header: dict[str, object], words: str) -> None:
    assert words in fault(lines(**header))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", "line 3: not a valid Tick"),
        (b"{", "line 3: not a valid Tick"),
        (b"\xff", "line 3: not a valid Tick"),
        (b"[" * 5000, "line 3: not a valid Tick"),
        (b" " * (MAX_LINE_BYTES + 1), f"is over the limit of {MAX_LINE_BYTES}"),
        (b'{"at_s":0.1}', "line 3: not a valid Tick: Object missing required field `inputs`"),
        (b'{"at_s":0.3,"inputs":{"ambient_c":1,"demand_per_s":1}}', "at_s is 0.3 where 0.1"),
        (b'{"at_s":0.1,"inputs":{"ambient_c":NaN,"demand_per_s":1}}', "line 3: not a valid Tick"),
        (b'{"at_s":0.1,"inputs":{"ambient_c":1e999,"demand_per_s":1}}', "line 3: "),
        (b'{"at_s":0.1,"inputs":{"ambient_c":200,"demand_per_s":1}}', "line 3: inputs: ambient_c"),
        (b'{"at_s":0.1,"inputs":{"ambient_c":1,"demand_per_s":-1}}', "inputs: demand_per_s"),
        (b'{"at_s":0.1,"inputs":{"ambient_c":1,"demand_per_s":1},"sensed":{"heat":1}}', "`heat`"),
    ],
)
def test_a_wrong_tick_is_refused_with_its_line(line: bytes, words: str) -> None:
    rows = lines()
    rows[2] = line
    assert words in fault(rows)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 lines"),
        (b"\n", "1 lines"),
        (b"x" * 10, "line 1: is cut off"),
        (trace_to_bytes(TRACE)[:-5], "line 4: is cut off"),
    ],
)
def test_a_file_that_is_cut_short_is_refused(data: bytes, words: str) -> None:
    with pytest.raises(WireFormatError, match=words):
        trace_from_bytes(data)


@given(st.binary(max_size=300), st.integers(0, 3))
def test_any_bytes_are_read_or_refused(data: bytes, row: int) -> None:
    rows = lines()
    rows[row] = data
    with contextlib.suppress(WireFormatError):
        assert len(trace_from_bytes(b"\n".join(rows) + b"\n").ticks) >= 1


def test_the_shipped_traces_are_those_that_the_script_makes(tmp_path: Path) -> None:
    write(tmp_path)
    made = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert made == {path.name: path.read_bytes() for path in SHIPPED.glob(f"*{SUFFIX}")}
    assert len(made) == len(SCENARIOS) == 8


@pytest.mark.parametrize("name", shipped_names())
def test_a_shipped_trace_is_small_and_says_what_it_is(name: str) -> None:
    trace = load_trace(name)
    assert trace.header.name == name
    assert trace.header.origin == "synthetic"
    assert trace.header.source.startswith("imitates ")
    assert (SHIPPED / f"{name}{SUFFIX}").stat().st_size < 100_000
    assert all(tick.sensed is not None for tick in trace.ticks)
    assert f"| `{name}` |" in DOCUMENT.read_text()


def test_the_sensor_that_is_lost_is_lost_in_its_trace() -> None:
    ticks = load_trace("sensor-loss").ticks
    lost = [t.at_s for t in ticks if t.sensed is not None and t.sensed.temperature_c is None]
    assert (lost[0], len(lost)) == (60.0, 84)


def test_a_path_is_a_trace_too(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(trace_to_bytes(TRACE))
    assert load_trace(str(path)) == TRACE


@pytest.mark.parametrize("name", ["nope", "", "../cold-start", "a\0b", "/"])
def test_no_such_trace_is_said_with_those_there_are(name: str) -> None:
    with pytest.raises(ReplayError, match="shipped traces are battery-day, cold-start"):
        load_trace(name)


@pytest.mark.parametrize(
    "kind",
    [
        Header, Board, ThermalPlant, Case, Leak, ThermalLimits, Governor, Fan, Cell, Sensors,
        Requests, Tick, Inputs, Sensed,
    ],
)  # fmt: skip
def test_the_document_names_every_key(kind: type[msgspec.Struct]) -> None:
    text = DOCUMENT.read_text()
    assert [key for key in kind.__struct_fields__ if f"`{key}`" not in text] == []

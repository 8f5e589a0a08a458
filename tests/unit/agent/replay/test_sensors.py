"""Sensors that err, and batteries that lose: as the formulas say, and the same for everybody."""

from __future__ import annotations

import itertools
import math
import statistics

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay.board import Board, BoardState, Inputs, advance
from agent.replay.cell import Cell
from agent.replay.plant import ThermalPlant
from agent.replay.readings import sense
from agent.replay.run import replay
from agent.replay.sensors import SensorError, Sensors, sensor_errors
from agent.replay.simulation import World
from agent.replay.traces import Header, Tick, Trace
from agent.select.decisions import Candidate
from wire.health import HealthSnapshot
from wire.policy import PolicySpec

PLAIN = Inputs(ambient_c=25.0, demand_per_s=2.0)
TICK = Tick(at_s=0.0, inputs=PLAIN)


def read(sensors: Sensors, state: BoardState, error: SensorError | None = None) -> HealthSnapshot:
    board = Board(sensors=sensors, battery_wh=10.0)
    return sense(board, World(state), TICK, error or SensorError())


def state(**values: float) -> BoardState:
    return BoardState(**({"temperature_c": 50.0, "charge_ratio": 0.5, "draw_w": 2.0} | values))  # type: ignore[arg-type]  # mixed types


@pytest.mark.parametrize(
    ("truth_c", "seen_c"), [(50.0, 50.0), (50.4, 50.0), (50.6, 51.0), (-3.7, -4.0)]
)
def test_readings_have_steps(truth_c: float, seen_c: float) -> None:
    assert (
        read(Sensors(temperature_step_c=1.0), state(temperature_c=truth_c)).temperature_c == seen_c
    )


def test_offset_and_noise_add_before_the_steps() -> None:
    sensors = Sensors(temperature_offset_c=2.0, temperature_noise_c=0.5, temperature_step_c=0.1)
    assert read(sensors, state(), SensorError(deviate=-1.0)).temperature_c == pytest.approx(51.5)


def test_the_headroom_is_that_of_the_reading() -> None:
    board = Board(sensors=Sensors(temperature_offset_c=5.0))
    seen = sense(board, World(board.start()), TICK)
    limits = board.limits
    assert seen.headroom == pytest.approx(
        (board.start_c + 5.0 - limits.nominal_c) / (limits.severe_c - limits.nominal_c)
    )


def test_a_lost_reading_has_no_headroom() -> None:
    seen = read(Sensors(), state(), SensorError(is_lost=True))
    assert (seen.temperature_c, seen.headroom) == (None, None)


@pytest.mark.parametrize("time_s", [1.0, 5.0, 20.0])
def test_the_step_response_of_the_lag(time_s: float) -> None:
    # A chip that stays at 80 C, and a sensor at 40 C: what is left after t is e^(-t / lag).
    board = Board(
        thermal=ThermalPlant(resistance_c_per_w=0.0, time_constant_s=1.0),
        sensors=Sensors(temperature_lag_s=8.0),
    )
    before = BoardState(temperature_c=80.0, followed_c=40.0, draw_w=1.0)
    inputs = Inputs(ambient_c=80.0, demand_per_s=0.0)
    after = advance(board, before, inputs, work_share=0.0, period_s=time_s)
    assert after.followed_c == pytest.approx(80.0 - 40.0 * math.exp(-time_s / 8.0))
    assert after.temperature_c == pytest.approx(80.0)
    assert sense(board, World(after), TICK).temperature_c == after.followed_c


def test_without_a_lag_the_sensor_has_the_temperature_of_the_chip() -> None:
    board = Board()
    after = advance(board, board.start(), PLAIN, work_share=1.0, period_s=10.0)
    assert after.followed_c == after.temperature_c != board.start_c


def test_charge_in_whole_percent_and_no_power_gauge() -> None:
    seen = read(Sensors(charge_step=0.01, has_power_gauge=False), state(charge_ratio=0.5249))
    assert seen.battery_ratio == pytest.approx(0.52)
    assert seen.battery_energy_j == pytest.approx(0.52 * 10.0 * 3600.0)
    assert (seen.power_mw, seen.battery_discharging) == (None, True)
    assert read(Sensors(), state()).power_mw == 2000.0


def losses(share: float, mean_s: float, ticks: int = 20_000, period_s: float = 0.5) -> list[bool]:
    sensors = Sensors(lost_share=share, lost_s=mean_s)
    return [e.is_lost for e in sensor_errors(sensors, ticks, period_s)]


@pytest.mark.parametrize(("share", "mean_s"), [(0.1, 5.0), (0.5, 2.0), (0.02, 0.5)])
def test_losses_have_their_share_and_their_length(share: float, mean_s: float) -> None:
    lost = losses(share, mean_s)
    assert sum(lost) / len(lost) == pytest.approx(share, rel=0.25)
    runs = [len(list(run)) * 0.5 for is_lost, run in itertools.groupby(lost) if is_lost]
    assert statistics.mean(runs) == pytest.approx(mean_s, rel=0.25)


def test_a_sensor_can_be_lost_always_never_or_mostly() -> None:
    assert set(losses(1.0, 5.0)) == {True}
    assert set(losses(0.0, 5.0)) == {False}
    # Losses of one tick cannot fill nine tenths of the time: they last longer.
    assert sum(losses(0.9, 0.5)) / 20_000 == pytest.approx(0.9, abs=0.02)


def test_noise_is_normal_and_a_seed_decides() -> None:
    one, again, other = (
        list(sensor_errors(Sensors(seed=seed, temperature_noise_c=1.0), 2000, 1.0))
        for seed in (1, 1, 2)
    )
    assert one == again != other
    deviates = [e.deviate for e in one]
    assert statistics.mean(deviates) == pytest.approx(0.0, abs=0.1)
    assert statistics.stdev(deviates) == pytest.approx(1.0, abs=0.06)


def test_all_policies_meet_the_same_losses() -> None:
    sensors = Sensors(lost_share=0.4, lost_s=3.0, temperature_noise_c=1.0)
    header = Header(
        trace=1, name="test", profile="bench", period_s=1.0, origin="synthetic", source="a test",
        deadline_ms=150.0, board=Board(sensors=sensors),
    )  # fmt: skip
    ticks = tuple(Tick(at_s=float(i), inputs=PLAIN) for i in range(60))
    asked = Trace(header=header, ticks=ticks)
    pair = [
        Candidate(name=name, latency_p50_ms=ms, peak_memory_bytes=1, accuracy=1.0, load_ms=0.0)
        for name, ms in (("slow", 300.0), ("quick", 10.0))
    ]
    lost, errors = [], []
    for name in ("slow", "quick"):
        steps = replay(asked, pair, PolicySpec(kind="rules"), pinned=name).steps
        lost.append([s.readings.temperature_c is None for s in steps])
        errors.append(
            [(s.readings.temperature_c or s.temperature_c) - s.temperature_c for s in steps]
        )
    assert lost[0] == lost[1]
    assert 5 < sum(lost[0]) < 55
    assert errors[0] == pytest.approx(errors[1])


def test_a_cell_loses_what_its_resistance_takes() -> None:
    cell = Cell(voltage_v=10.0, resistance_ohm=0.5)
    # 2 A: 20 W leave the charge, of which 2 W stay in the resistance.
    assert cell.drain_w(18.0) == pytest.approx(20.0)
    # -2 A: 22 W at the terminals, of which 20 W are stored.
    assert cell.drain_w(-22.0) == pytest.approx(-20.0)
    assert cell.drain_w(0.0) == 0.0
    assert cell.most_w == pytest.approx(50.0)
    assert cell.drain_w(60.0) == cell.drain_w(50.0) == pytest.approx(100.0)


@given(st.floats(-100, 1e6), st.floats(0, 1000), st.floats(0.1, 1000))
def test_a_cell_never_gives_more_than_leaves_it(watts: float, ohm: float, volt: float) -> None:
    cell = Cell(voltage_v=volt, resistance_ohm=ohm)
    drain_w = cell.drain_w(watts)
    assert math.isfinite(drain_w)
    assert drain_w >= min(watts, cell.most_w) - 1e-9 * abs(watts) - 1e-300  # below are no digits


def test_a_resistance_shortens_the_day() -> None:
    def left(cell: Cell | None) -> float:
        board = Board(battery_wh=5.0, cell=cell)
        now = advance(board, board.start(), PLAIN, work_share=1.0, period_s=60.0)
        assert now.charge_ratio is not None
        return now.charge_ratio

    assert left(Cell(voltage_v=3.7, resistance_ohm=0.0)) == pytest.approx(left(None))
    assert left(Cell(voltage_v=3.7, resistance_ohm=0.2)) < left(None) - 0.0005


CASE = {"resistance_c_per_w": 1, "time_constant_s": 60}
LEAK = {"power_w": 1, "at_c": 40, "e_fold_c": 40}
GOVERNOR = {"ratios": [1, 0.5], "hot_c": 80, "cool_c": 70}
FAN = {"on_c": 50, "off_c": 45, "resistance_ratio": 0.5}
CELL = {"voltage_v": 3.7, "resistance_ohm": 0.1}


@pytest.mark.parametrize(
    ("board", "words"),
    [
        ({"case": CASE | {"resistance_c_per_w": -1}}, "case: resistance_c_per_w is not"),
        ({"case": CASE | {"time_constant_s": 0}}, "case: time_constant_s is not"),
        ({"case": CASE | {"start_c": 500}}, "case: start_c is not"),
        ({"case": CASE, "thermal": {"resistance_c_per_w": 0}}, "resistance_c_per_w is not above 0"),
        ({"leak": LEAK | {"power_w": -1}}, "leak: power_w is not"),
        ({"leak": LEAK | {"at_c": 400}}, "leak: at_c is not"),
        ({"leak": LEAK | {"e_fold_c": 0}}, "leak: e_fold_c is not"),
        ({"leak": LEAK | {"power_w": 20}}, "leak: has no steady temperature"),
        ({"governor": GOVERNOR | {"ratios": []}}, "governor: has not 1 to 32"),
        ({"governor": GOVERNOR | {"ratios": [1, 1]}}, "governor: ratios do not fall"),
        ({"governor": GOVERNOR | {"ratios": [1, 0]}}, "governor: ratios do not fall"),
        ({"governor": GOVERNOR | {"cool_c": 80}}, "governor: cool_c is not below"),
        ({"governor": GOVERNOR | {"interval_s": 0}}, "governor: interval_s is not"),
        ({"fan": FAN | {"off_c": 50}}, "fan: off_c is not below on_c"),
        ({"fan": FAN | {"resistance_ratio": 0}}, "fan: resistance_ratio is not"),
        ({"fan": FAN | {"power_w": -1}}, "fan: power_w is not"),
        ({"fan": FAN | {"faster": [FAN]}}, "fan: faster: the temperatures of the speeds"),
        ({"cell": CELL}, "cell: there is no battery_wh"),
        ({"battery_wh": 5, "cell": CELL | {"resistance_ohm": -1}}, "cell: resistance_ohm is not"),
        ({"battery_wh": 5, "cell": CELL | {"voltage_v": 0}}, "cell: voltage_v is not"),
        ({"battery_wh": 5, "cell": CELL | {"resistance_ohm": 1}}, "cell: can give 3.42 W"),
        ({"sensors": {"temperature_step_c": -1}}, "sensors: temperature_step_c is not"),
        ({"sensors": {"temperature_lag_s": -1}}, "sensors: temperature_lag_s is not"),
        ({"sensors": {"temperature_noise_c": -1}}, "sensors: temperature_noise_c is not"),
        ({"sensors": {"temperature_offset_c": 101}}, "sensors: temperature_offset_c is not"),
        ({"sensors": {"lost_share": 1.5}}, "sensors: lost_share is not within 0 to 1"),
        ({"sensors": {"lost_s": 0}}, "sensors: lost_s is not above 0"),
        ({"sensors": {"charge_step": 2}}, "sensors: charge_step is not within 0 to 1"),
        ({"sensors": {"seed": -1}}, "sensors: seed is not within"),
    ],
)
def test_an_impossible_board_is_named_in_one_line(board: dict[str, object], words: str) -> None:
    (fault, *_) = msgspec.convert(board, Board).faults()
    assert words in fault
    assert "\n" not in fault


def test_a_rich_board_is_possible() -> None:
    board = msgspec.convert(
        {
            "thermal": {"resistance_c_per_w": 2, "time_constant_s": 4},
            "case": {"resistance_c_per_w": 6, "time_constant_s": 300},
            "leak": {"power_w": 0.3, "at_c": 40, "e_fold_c": 40},
            "governor": {"ratios": [1, 0.8, 0.6], "hot_c": 80, "cool_c": 75, "interval_s": 0.5},
            "fan": {"on_c": 60, "off_c": 55, "resistance_ratio": 0.6},
            "battery_wh": 20,
            "cell": {"voltage_v": 7.4, "resistance_ohm": 0.1},
            "sensors": {"temperature_step_c": 1, "temperature_lag_s": 3, "lost_share": 0.1},
        },
        Board,
    )
    assert board.faults() == ()

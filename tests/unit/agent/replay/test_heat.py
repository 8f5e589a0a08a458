"""Chip and case: the steady state and the way to it are those of the equations."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replay.board import Board, BoardState, Inputs, advance
from agent.replay.heat import HOTTEST_C, Case, Leak, chip_and_case_c
from agent.replay.plant import ThermalPlant

CHIP = ThermalPlant(resistance_c_per_w=2.0, time_constant_s=4.0, idle_w=1.0, busy_w=6.0)
CASE = Case(resistance_c_per_w=6.0, time_constant_s=300.0)
LEAK = Leak(power_w=0.5, at_c=40.0, e_fold_c=40.0)
IDLE = Inputs(ambient_c=20.0, demand_per_s=0.0)


def settled(board: Board, *, work: float = 0.0, ambient_c: float = 20.0) -> BoardState:
    """Return the state after ten hours of the same."""
    state = board.start()
    inputs = msgspec.structs.replace(IDLE, ambient_c=ambient_c)
    for _ in range(1800):
        state = advance(board, state, inputs, work_share=work, period_s=20.0)
    return state


def test_the_steady_state_is_that_of_two_resistances() -> None:
    # 60 % of the span of 5 W: 4 W through 6 and then 2 C/W over 20 C.
    state = settled(Board(thermal=CHIP, case=CASE), work=0.6)
    assert state.case_c == pytest.approx(20.0 + 6.0 * 4.0, abs=1e-6)
    assert state.temperature_c == pytest.approx(20.0 + 8.0 * 4.0, abs=1e-6)
    assert state.draw_w == pytest.approx(4.0)


def by_small_steps(
    chip_c: float, case_c: float, watts: float, time_s: float
) -> tuple[float, float]:
    """Integrate the two equations with Heun's method."""
    chip_j_per_c = CHIP.time_constant_s / CHIP.resistance_c_per_w
    case_j_per_c = CASE.time_constant_s / CASE.resistance_c_per_w

    def rates(chip: float, case: float) -> tuple[float, float]:
        flow_w = (chip - case) / CHIP.resistance_c_per_w
        out_w = (case - 20.0) / CASE.resistance_c_per_w
        return (watts - flow_w) / chip_j_per_c, (flow_w - out_w) / case_j_per_c

    step_s = 0.01
    for _ in range(round(time_s / step_s)):
        a = rates(chip_c, case_c)
        b = rates(chip_c + step_s * a[0], case_c + step_s * a[1])
        chip_c += step_s * (a[0] + b[0]) / 2
        case_c += step_s * (a[1] + b[1]) / 2
    return chip_c, case_c


@pytest.mark.parametrize("time_s", [0.5, 4.0, 30.0, 120.0])
def test_the_way_there_solves_the_equations(time_s: float) -> None:
    found = chip_and_case_c(
        CHIP, CASE, 70.0, 35.0, ambient_c=20.0, power_w=5.0, fan_ratio=1.0, step_s=time_s
    )
    assert found == pytest.approx(by_small_steps(70.0, 35.0, 5.0, time_s), abs=1e-3)


@given(st.floats(0.01, 500), st.floats(0, 20), st.floats(-40, 150), st.floats(-40, 150))
def test_a_step_is_as_good_as_two_halves(
    time_s: float, watts: float, chip_c: float, case_c: float
) -> None:
    def after(chip: float, case: float, step_s: float) -> tuple[float, float]:
        return chip_and_case_c(
            CHIP, CASE, chip, case, ambient_c=20.0, power_w=watts, fan_ratio=0.5, step_s=step_s
        )

    halves = after(*after(chip_c, case_c, time_s / 2), time_s / 2)
    assert after(chip_c, case_c, time_s) == pytest.approx(halves, abs=1e-6)


def test_the_chip_warms_in_seconds_and_the_case_in_minutes() -> None:
    board = Board(thermal=CHIP, case=CASE, start_c=28.0)
    state = advance(board, board.start(), IDLE, work_share=1.0, period_s=20.0)
    assert state.case_c is not None
    assert state.temperature_c - state.case_c > 0.95 * 2.0 * 6.0
    assert state.case_c < 28.0 + 0.15 * 6.0 * 6.0


def test_a_case_starts_where_it_is_said() -> None:
    board = Board(thermal=CHIP, case=msgspec.structs.replace(CASE, start_c=33.0), start_c=50.0)
    assert (board.start().temperature_c, board.start().case_c) == (50.0, 33.0)
    assert Board(thermal=CHIP, case=CASE, start_c=50.0).start().case_c == 50.0
    assert Board(thermal=CHIP).start().case_c is None


def test_a_leak_warms_to_where_its_heat_flows_off() -> None:
    state = settled(Board(thermal=CHIP, case=CASE, leak=LEAK), work=0.2)
    watts = 1.0 + 0.2 * 5.0 + LEAK.watts(state.temperature_c)
    assert state.draw_w == pytest.approx(watts, rel=1e-6)
    assert state.temperature_c == pytest.approx(20.0 + 8.0 * watts, abs=1e-5)
    assert LEAK.watts(40.0) == 0.5
    assert LEAK.watts(80.0) == pytest.approx(0.5 * math.e)


def test_a_runaway_ends_where_the_leak_stops_growing() -> None:
    board = Board(thermal=CHIP, case=CASE, leak=LEAK)
    state = settled(board, work=1.0, ambient_c=70.0)
    most_w = 1.0 + LEAK.watts(HOTTEST_C)
    assert LEAK.watts(1000.0) == LEAK.watts(HOTTEST_C)
    assert state.temperature_c <= 70.0 + 8.0 * (most_w + 5.0)
    assert math.isfinite(state.temperature_c)


def test_the_limit_of_a_leak_is_where_no_steady_state_exists() -> None:
    def runs_away(power_w: float) -> bool:
        faults = Leak(power_w=power_w, at_c=40.0, e_fold_c=40.0).faults(CHIP, 8.0)
        assert faults in {(), ("has no steady temperature: it runs away on an idle board at 25 C",)}
        return faults != ()

    def is_steady(power_w: float) -> bool:
        leak = Leak(power_w=power_w, at_c=40.0, e_fold_c=40.0)
        return any(25.0 + 8.0 * (1.0 + leak.watts(c / 10)) <= c / 10 for c in range(250, 1500))

    watts = [0.1 * i for i in range(1, 40)]
    assert [runs_away(w) for w in watts] == [not is_steady(w) for w in watts]
    assert [runs_away(w) for w in (0.0, 0.5, 5.0)] == [False, False, True]

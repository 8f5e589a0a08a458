"""A recording: from known inputs to readings and back, and the replay of what came back."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.replay.board import Board, Inputs, advance
from agent.replay.controllers import Fan
from agent.replay.plant import ThermalPlant
from agent.replay.recording import (
    AMBIENT_MAX_C,
    ASSUMED_AMBIENT_C,
    BoardObserver,
    Figures,
    Sample,
    Terms,
    begin,
    ticks,
)
from agent.replay.run import replay
from agent.replay.traces import Header, Sensed, Tick, Trace, trace_from_bytes, trace_to_bytes
from agent.select.decisions import Candidate
from wire.policy import PolicySpec

MIB = 1024 * 1024
WORKER, HELD = 7, 50 * MIB
ALONE_S = 0.04
VARIANT = Candidate(
    name="int8", latency_p50_ms=1000 * ALONE_S, peak_memory_bytes=HELD, accuracy=1.0, load_ms=0.0
)
BOARD = Board(thermal=ThermalPlant(time_constant_s=60.0), memory_bytes=2048 * MIB)


FIGURES = Figures(pid=1, release="d", variant="int8", declared_ms=1000 * ALONE_S)


class Device(NamedTuple):
    """A simulated device as a recording sees it."""

    samples: list[Sample]
    temperatures_c: list[float]


def device(
    board: Board, inputs: Sequence[Inputs], *, period_s: float = 1.0, step_c: float = 0.0
) -> Device:
    """Let a board live through inputs under one variant; sample it before and after each tick."""
    state, busy_s, own_s = board.start(), 0.0, 0.0
    told = FIGURES
    samples, temperatures_c = [], []
    for number in range(len(inputs) + 1):
        now = inputs[min(number, len(inputs) - 1)]
        net_w = state.draw_w - now.charger_w
        celsius, charge = state.temperature_c, state.charge_ratio
        sensed = Sensed(
            temperature_c=round(celsius / step_c) * step_c if step_c else celsius,
            memory_available_bytes=(now.memory_bytes or board.memory_bytes) - HELD,
            battery_ratio=None if charge is None else round(charge, 2),
            battery_discharging=None if charge is None else net_w > 0.0,
            power_mw=None if charge is None else max(net_w, 0.0) * 1000,
        )
        samples.append(Sample(number * period_s, sensed, busy_s, {WORKER: own_s}, HELD, told))
        temperatures_c.append(celsius)
        frequency = board.frequency_ratio(celsius)
        answered, alone_s = now.demand_per_s * period_s, ALONE_S * now.slowdown
        work = now.demand_per_s * alone_s
        state = advance(board, state, now, work_share=work, period_s=period_s)
        own_s += work / frequency * period_s
        busy_s += min((work + now.other_share) / frequency, 1.0) * period_s
        told = msgspec.structs.replace(
            told,
            requests=told.requests + answered,
            answered=told.answered + answered,
            compute_s=told.compute_s + answered * alone_s / frequency,
        )
    return Device(samples, temperatures_c)


def recorded(board: Board, samples: Sequence[Sample], *, period_s: float = 1.0) -> Trace:
    first_c = samples[0].sensed.temperature_c
    board = board if first_c is None else msgspec.structs.replace(board, start_c=first_c)
    terms, observer = Terms(board, period_s), begin(board)
    made: list[Tick] = []
    for before, after in itertools.pairwise(samples):
        new, observer = ticks(terms, observer, before, after, first=len(made))
        made += new
    header = Header(
        trace=1, name="test", profile="bench", period_s=period_s, origin="recorded",
        source="a test", deadline_ms=100.0, board=board,
    )  # fmt: skip
    # What cannot be read back is no trace.
    return trace_from_bytes(trace_to_bytes(Trace(header=header, ticks=tuple(made))))


def replayed_c(trace: Trace) -> list[float]:
    done = replay(trace, (VARIANT,), PolicySpec(kind="rules"), pinned="int8")
    return [step.temperature_c for step in done.steps]


def inputs(**values: float) -> Inputs:
    return msgspec.convert({"ambient_c": 25.0, "demand_per_s": 5.0} | values, Inputs)


boards = st.builds(
    lambda r, tau, start: msgspec.structs.replace(
        BOARD, thermal=ThermalPlant(resistance_c_per_w=r, time_constant_s=tau), start_c=start
    ),
    st.floats(1.0, 8.0), st.floats(20.0, 90.0), st.floats(10.0, 60.0),
)  # fmt: skip
surroundings = st.builds(
    lambda ambient, demand, slowdown, other, free: inputs(
        ambient_c=ambient, demand_per_s=demand, slowdown=slowdown, other_share=other,
        memory_bytes=free,
    ),
    st.floats(-10, 30), st.floats(1, 5), st.floats(0.5, 3), st.floats(0, 0.3),
    st.integers(HELD, 1000 * MIB),
)  # fmt: skip


@settings(max_examples=40)
@given(boards, surroundings)
def test_the_inputs_behind_the_readings_are_found(board: Board, truth: Inputs) -> None:
    tau_s = board.thermal.time_constant_s
    world = device(board, [truth] * int(4 * tau_s))
    trace = recorded(board, world.samples)
    for tick in trace.ticks:
        found = tick.inputs
        assert found.demand_per_s == pytest.approx(truth.demand_per_s, abs=1e-3)
        assert found.slowdown == pytest.approx(truth.slowdown, rel=1e-3)
        assert found.other_share == pytest.approx(truth.other_share, abs=1e-3)
        assert found.memory_bytes == truth.memory_bytes
    # How far the board was from its steady temperature is how wrong the first guess was; after
    # four time constants the observer has forgotten all but (1 + 8) / e**8 of it, the rounding
    # aside.
    ambients_c = [tick.inputs.ambient_c for tick in trace.ticks]
    assert abs(ambients_c[-1] - truth.ambient_c) < 0.3
    # The replay is within a fifth of that wrong guess of what was recorded, and much nearer later.
    errors_c = [abs(a - b) for a, b in zip(replayed_c(trace), world.temperatures_c, strict=False)]
    guess_c = abs(ambients_c[0] - truth.ambient_c)
    assert max(errors_c) < 0.2 * guess_c + 0.1
    assert errors_c[-1] < 0.005 * guess_c + 0.1


@settings(max_examples=20)
@given(boards, surroundings, st.sampled_from([0.1, 0.5, 1.0]))
def test_a_coarse_sensor_costs_no_more_than_its_steps(
    board: Board, truth: Inputs, step_c: float
) -> None:
    world = device(board, [truth] * int(4 * board.thermal.time_constant_s), step_c=step_c)
    trace = recorded(board, world.samples)
    wrong_c = abs(trace.ticks[0].inputs.ambient_c - truth.ambient_c)
    errors_c = [abs(a - b) for a, b in zip(replayed_c(trace), world.temperatures_c, strict=False)]
    assert max(errors_c) < 0.2 * wrong_c + step_c
    later = trace.ticks[len(trace.ticks) // 2 :]
    mean_c = math.fsum(tick.inputs.ambient_c for tick in later) / len(later)
    assert abs(mean_c - truth.ambient_c) < 0.5 + step_c


def test_the_sun_comes_and_goes() -> None:
    shade, sun = [inputs(ambient_c=20.0)] * 300, [inputs(ambient_c=40.0)] * 300
    board = msgspec.structs.replace(BOARD, start_c=30.0)
    world = device(board, shade + sun + shade)
    trace = recorded(board, world.samples)
    found = [tick.inputs.ambient_c for tick in trace.ticks]
    assert [round(found[at]) for at in (290, 590, 890)] == [20, 40, 20]
    # A step of 20 C: the observer is never further from the temperature than a fifth of it.
    errors_c = [abs(a - b) for a, b in zip(replayed_c(trace), world.temperatures_c, strict=False)]
    assert max(errors_c) < 4.0
    assert math.fsum(errors_c) / len(errors_c) < 0.8


def test_a_board_that_throttles_with_a_fan_is_followed() -> None:
    fan = Fan(on_c=68.0, off_c=62.0, resistance_ratio=0.6)
    board = msgspec.structs.replace(BOARD, fan=fan, throttle_c=64.0, slowest_c=74.0, start_c=50.0)
    busy = [inputs(ambient_c=50.0, demand_per_s=12.0, other_share=0.2)] * 600
    world = device(board, busy)
    assert max(world.temperatures_c) > 66
    trace = recorded(board, world.samples)
    errors_c = [abs(a - b) for a, b in zip(replayed_c(trace), world.temperatures_c, strict=False)]
    assert max(errors_c) < 5.0
    assert math.fsum(errors_c) / len(errors_c) < 1.0


@pytest.mark.parametrize("period_s", [0.1, 10.0, 60.0, 600.0])
def test_slow_and_quick_recordings_follow_too(period_s: float) -> None:
    count = max(int(400 / period_s), 12)
    world = device(BOARD, [inputs()] * count, period_s=period_s)
    trace = recorded(BOARD, world.samples, period_s=period_s)
    assert trace.ticks[-1].inputs.ambient_c == pytest.approx(25.0, abs=0.5)
    assert trace.ticks[-1].inputs.demand_per_s == 5.0
    assert replayed_c(trace)[-1] == pytest.approx(world.temperatures_c[-2], abs=0.2)


def one(before: Sample, after: Sample, board: Board = BOARD) -> tuple[Tick, BoardObserver]:
    made, observer = ticks(Terms(board, 1.0), begin(board), before, after, first=0)
    return made[0], observer


def figures(**values: float | str) -> Figures:
    return msgspec.structs.replace(FIGURES, **values)


def sample(at_s: float = 0.0, told: Figures | None = FIGURES, **seen: float) -> Sample:
    return Sample(at_s, msgspec.convert({"temperature_c": 40.0} | seen, Sensed), figures=told)


def test_without_an_agent_there_is_no_demand() -> None:
    tick, _ = one(sample(told=None), sample(1.0, told=None))
    assert (tick.inputs.demand_per_s, tick.inputs.slowdown, tick.inputs.other_share) == (0, 1, 0)


def test_an_agent_that_began_anew_counts_from_nothing() -> None:
    tick, _ = one(
        sample(told=figures(requests=900.0)), sample(2.0, told=figures(requests=6.0, pid=2))
    )
    assert tick.inputs.demand_per_s == 3.0


def test_a_slowdown_is_known_of_one_variant_only() -> None:
    before = sample(told=figures(answered=10.0, compute_s=1.0))
    same = sample(1.0, told=figures(answered=20.0, compute_s=1.8))
    assert one(before, same)[0].inputs.slowdown == 2.0
    switched = sample(1.0, told=figures(answered=20.0, compute_s=1.8, variant="small"))
    assert one(before, switched)[0].inputs.slowdown == 1.0


def test_a_slowdown_stays_while_nobody_asks() -> None:
    terms = Terms(BOARD, 1.0)
    told = figures(answered=10.0, compute_s=0.8)
    _, observer = ticks(terms, begin(BOARD), sample(), sample(1.0, told=told), first=0)
    quiet, _ = ticks(terms, observer, sample(1.0, told=told), sample(2.0, told=told), first=1)
    assert quiet[0].inputs.slowdown == 2.0


def test_a_lost_sensor_is_lost_in_the_trace_and_the_ambient_stays() -> None:
    samples = device(BOARD, [inputs()] * 200).samples
    blind = [at._replace(sensed=Sensed()) if 100 <= n < 150 else at for n, at in enumerate(samples)]
    trace = recorded(BOARD, blind)
    assert trace.ticks[120].sensed == Sensed()
    assert {tick.inputs.ambient_c for tick in trace.ticks[101:150]} == {
        trace.ticks[101].inputs.ambient_c
    }
    assert trace.ticks[120].inputs.memory_bytes == trace.ticks[99].inputs.memory_bytes


def test_where_no_temperature_is_read_the_ambient_is_assumed() -> None:
    seen = Sensed(memory_available_bytes=MIB)
    tick, observer = one(Sample(0.0, seen), Sample(1.0, seen))
    assert tick.inputs.ambient_c == ASSUMED_AMBIENT_C
    assert observer.error_c is None


def test_an_impossible_ambient_is_clamped() -> None:
    cold = Board(thermal=ThermalPlant(resistance_c_per_w=0.0), start_c=150.0)
    tick, _ = one(sample(temperature_c=150.0), sample(1.0, temperature_c=150.0), cold)
    assert tick.inputs.ambient_c == AMBIENT_MAX_C


def test_ticks_that_were_missed_have_their_share_and_no_readings() -> None:
    made, _ = ticks(
        Terms(BOARD, 1.0), begin(BOARD), sample(), sample(3.0, told=figures(requests=6.0)),
        first=4, count=3,
    )  # fmt: skip
    assert [tick.at_s for tick in made] == [4.0, 5.0, 6.0]
    assert [tick.inputs.demand_per_s for tick in made] == [2.0, 2.0, 2.0]
    assert [tick.sensed for tick in made[1:]] == [Sensed(), Sensed()]


def test_time_of_a_new_worker_is_its_own_and_that_of_one_that_ended_is_nobodys() -> None:
    before = sample()._replace(busy_s=10.0, own_s={1: 3.0, 2: 4.0})
    after = sample(1.0)._replace(busy_s=10.7, own_s={2: 4.1, 3: 0.2})
    assert one(before, after)[0].inputs.other_share == pytest.approx(0.4)


BATTERY = msgspec.structs.replace(BOARD, battery_wh=10.0, start_charge_ratio=0.5)


def charger_w(**seen: float | bool) -> float:
    sensed = msgspec.convert({"temperature_c": 40.0, "battery_ratio": 0.5} | seen, Sensed)
    first = Sample(0.0, sensed)
    return one(first, first._replace(at_s=1.0), BATTERY)[0].inputs.charger_w


def test_a_battery_that_empties_as_modelled_has_no_charger() -> None:
    assert charger_w(battery_discharging=True) == 0.0
    assert charger_w(battery_discharging=True, power_mw=1000.0) == 0.0


def test_what_a_battery_need_not_give_comes_from_a_charger() -> None:
    # The idle board draws 1 W; 0.4 W of it come from the battery.
    assert charger_w(battery_discharging=True, power_mw=400.0) == pytest.approx(0.6)


def test_a_full_battery_on_its_charger_carries_any_load() -> None:
    assert charger_w(battery_discharging=False, battery_ratio=1.0) >= BATTERY.thermal.busy_w


def test_a_board_without_a_battery_has_no_charger() -> None:
    seen = sample(battery_ratio=0.5, battery_discharging=False)
    assert one(seen, seen._replace(at_s=1.0))[0].inputs.charger_w == 0.0


@pytest.mark.parametrize("sun_w", [0.0, 2.0, 8.0])
def test_the_modelled_battery_does_as_the_recorded_one(sun_w: float) -> None:
    truth = [inputs(charger_w=sun_w, demand_per_s=10.0)] * 3600
    world = device(BATTERY, truth)
    trace = recorded(BATTERY, world.samples)
    done = replay(trace, (VARIANT,), PolicySpec(kind="rules"), pinned="int8")
    charges = [at.sensed.battery_ratio for at in world.samples]
    for step, charge in zip(done.steps, charges, strict=False):
        assert step.charge_ratio == pytest.approx(charge, abs=0.04)
    # What it charges in 600 s / e while the charger's power is learnt, and then no more.
    assert done.steps[-1].charge_ratio == pytest.approx(charges[-2], abs=0.01)

"""A replay: the policy sees what the trace and the model say, and the totals add up."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.cli.main import main
from agent.cli.replay import EXAMPLE, VariantList, report
from agent.errors import ReplayError
from agent.replay.board import Board, BoardState, Inputs, advance, is_off
from agent.replay.controllers import Fan
from agent.replay.plant import ThermalPlant
from agent.replay.run import Replay, replay
from agent.replay.server import QUEUE_REQUESTS
from agent.replay.trace_file import load_trace, shipped_names
from agent.replay.traces import Header, Sensed, Tick, Trace, trace_to_bytes
from agent.select.decisions import Candidate
from tests.simulators.packages import package, variant
from wire.codec import from_json
from wire.policy import PolicySpec

MIB = 1024 * 1024
PLANT = ThermalPlant(resistance_c_per_w=5.0, time_constant_s=60.0, idle_w=1.0, busy_w=6.0)
BOARD = Board(thermal=PLANT)
BEST = Candidate(
    name="best", latency_p50_ms=100.0, peak_memory_bytes=300 * MIB, accuracy=1.0, load_ms=0.0
)
QUICK = Candidate(
    name="quick", latency_p50_ms=10.0, peak_memory_bytes=100 * MIB, accuracy=0.9, load_ms=0.0
)
BOTH = (BEST, QUICK)
RULES = PolicySpec(kind="rules")


def trace(*ticks: Tick, board: Board = BOARD, period_s: float = 1.0) -> Trace:
    header = Header(
        trace=1, name="test", profile="bench", period_s=period_s, origin="synthetic",
        source="a test", deadline_ms=150.0, board=board,
    )  # fmt: skip
    numbered = (msgspec.structs.replace(t, at_s=i * period_s) for i, t in enumerate(ticks))
    return Trace(header=header, ticks=tuple(numbered))


def tick(sensed: Sensed | None = None, **inputs: float) -> Tick:
    values = {"ambient_c": 25.0, "demand_per_s": 5.0} | inputs
    return Tick(at_s=0.0, inputs=msgspec.convert(values, Inputs), sensed=sensed)


def served(done: Replay) -> list[str | None]:
    return [s.variant for s in done.steps]


def test_a_cool_trace_by_hand() -> None:
    done = replay(trace(tick(), tick()), BOTH, RULES)
    assert served(done) == ["best", "best"]
    assert (done.totals.switches, len(done.switches)) == (0, 1)
    assert done.totals.requests == 10.0
    assert done.totals.missed == 0.0
    assert done.totals.mean_retention == 1.0
    # Half of the processor is busy: 1 + 0.5 * 5 W for two seconds.
    assert done.totals.energy_j == pytest.approx(7.0)
    assert done.steps[0].served.latency_ms == pytest.approx(100.0)
    assert done.steps[1].temperature_c == pytest.approx(
        PLANT.step(BOARD.start_c, ambient_c=25.0, utilization=0.5, step_s=1.0)
    )


def test_heat_makes_the_policy_switch_and_the_reasons_are_kept() -> None:
    hot = msgspec.structs.replace(BOARD, start_c=84.0)
    done = replay(trace(*[tick(ambient_c=20.0)] * 200, board=hot), BOTH, RULES)
    assert [(s.before, s.after) for s in done.switches] == [(None, "quick"), ("quick", "best")]
    assert done.switches[0].reason == "hot: the cheapest variant"
    assert done.switches[0].verdicts == {"best": "slower: 100 against 10 ms"}
    assert done.totals.switches == 1
    back = next(s for s in done.steps if s.at_s == done.switches[1].at_s)
    assert back.readings.headroom is not None
    assert back.readings.headroom < RULES.cool_headroom


def test_what_loads_serves_only_then_and_what_served_before_goes_on() -> None:
    slow = msgspec.structs.replace(BEST, load_ms=2500.0)
    hot = msgspec.structs.replace(BOARD, start_c=84.0)
    done = replay(trace(*[tick(ambient_c=20.0)] * 200, board=hot), (slow, QUICK), RULES)
    chosen = next(s.at_s for s in done.switches if s.after == "best")
    came = next(s.at_s for s in done.steps if s.variant == "best")
    assert came - chosen == 2.0  # of 2.5 s the last half is in the tick in which it serves
    while_loading = [s for s in done.steps if chosen <= s.at_s < came]
    assert [s.variant for s in while_loading] == ["quick", "quick"]
    assert while_loading[1].decision is None
    assert all(s.observed is not None and s.observed.mixed for s in while_loading)


def test_a_device_that_was_at_work_has_loaded_what_is_chosen_first() -> None:
    slow = (msgspec.structs.replace(BEST, load_ms=5000.0),)
    cold = trace(*[tick()] * 3)
    warm = Trace(header=msgspec.structs.replace(cold.header, at_work=True), ticks=cold.ticks)
    assert served(replay(cold, slow, RULES)) == [None, None, None]
    assert served(replay(warm, slow, RULES)) == ["best"] * 3


def test_a_request_that_takes_one_core_of_four_heats_less() -> None:
    shared = msgspec.structs.replace(BOARD, cpu_share=0.25)
    whole, quarter = (
        replay(trace(*[tick(demand_per_s=9.0)] * 60, board=board), (BEST,), RULES)
        for board in (BOARD, shared)
    )
    assert quarter.steps[-1].temperature_c < whole.steps[-1].temperature_c - 5
    assert quarter.totals.missed == whole.totals.missed == 0.0
    seen = quarter.steps[-1].observed
    assert seen is not None
    assert seen.cpu_share == 0.25
    assert seen.own_load == pytest.approx(0.225)


def test_worth_counts_what_was_in_time_on_a_board_that_was_not_too_hot() -> None:
    hot = msgspec.structs.replace(BOARD, start_c=95.0)
    done = replay(trace(*[tick(demand_per_s=1.0)] * 60, board=hot), (QUICK,), RULES)
    below = sum(s.temperature_c < BOARD.limits.severe_c for s in done.steps)
    assert 0 < below < 60
    assert done.totals.worth == pytest.approx(below * 0.9)


def test_the_variant_moves_the_temperature() -> None:
    many = trace(*[tick(demand_per_s=9.0)] * 120)
    best, quick = (replay(many, BOTH, RULES, pinned=name) for name in ("best", "quick"))
    assert best.steps[-1].temperature_c > quick.steps[-1].temperature_c + 10
    assert best.totals.energy_j > 3 * quick.totals.energy_j
    assert quick.totals.mean_retention == pytest.approx(0.9)
    assert quick.policy == "pinned to quick"


def test_a_sensor_lost_in_the_trace_is_lost_in_the_replay() -> None:
    hot = msgspec.structs.replace(BOARD, start_c=84.0)
    seen = Sensed(temperature_c=50.0, memory_available_bytes=1)
    done = replay(trace(tick(Sensed()), tick(seen), board=hot), BOTH, RULES)
    first, second = done.steps
    assert (first.readings.temperature_c, first.readings.headroom) == (None, None)
    assert first.readings.memory_available_bytes is None
    assert served(done)[0] == "best"
    # The temperature is the model's, not the recorded one.
    assert second.readings.temperature_c == pytest.approx(second.temperature_c)
    assert second.temperature_c > 80
    assert second.readings.cpu_frequency_ratio is None


def test_requests_that_wait_are_late_and_a_full_queue_refuses() -> None:
    flood = trace(*[tick(demand_per_s=100.0)] * 3)
    done = replay(flood, (BEST,), RULES)
    totals = done.totals
    # Ten are answered each second, and no more than the queue holds are left over.
    assert totals.requests - totals.refused == pytest.approx(30 + QUEUE_REQUESTS)
    assert totals.missed == totals.requests
    assert totals.miss_ratio == 1.0


def test_a_co_runner_slows_and_an_own_deadline_decides() -> None:
    slow = trace(tick(slowdown=2.0, demand_per_s=1.0))
    assert replay(slow, (BEST,), RULES).totals.missed == 1.0
    assert replay(slow, (BEST,), RULES, deadline_ms=250.0).totals.missed == 0.0


def test_memory_that_is_not_there_is_counted() -> None:
    little = trace(tick(memory_bytes=200 * MIB), tick(memory_bytes=200 * MIB))
    done = replay(little, BOTH, RULES)
    assert served(done) == ["best", "best"]  # nothing is short before it is loaded, then it dwells
    assert done.totals.short_of_memory_s == 2.0
    assert done.totals.refused == 10.0  # the kernel ends what does not fit
    assert done.steps[1].readings.memory_available_bytes == 0


def test_an_empty_battery_switches_the_board_off_and_sun_on_again() -> None:
    board = msgspec.structs.replace(BOARD, battery_wh=0.001, start_charge_ratio=1.0)
    dark, sun = [tick()] * 4, [tick(charger_w=8.0)] * 2
    done = replay(trace(*dark, *sun, board=board), (BEST,), RULES)
    assert served(done) == ["best", "best", None, None, "best", "best"]
    assert done.totals.off_s == 2.0
    assert done.totals.refused == 10.0
    assert done.totals.switches == 0
    discharging = [s.readings.battery_discharging for s in done.steps if s.decision is not None]
    assert discharging == [True, True, False, False]


def test_a_board_that_comes_back_chooses_anew() -> None:
    # It went off hot and comes back neither hot nor cool: of the heat before nothing is known.
    board = msgspec.structs.replace(BOARD, battery_wh=0.001, start_c=84.0)
    done = replay(trace(*[tick()] * 8, tick(charger_w=8.0), board=board), BOTH, RULES)
    first, last = done.steps[0], done.steps[-1]
    assert last.readings.headroom is not None
    assert RULES.cool_headroom < last.readings.headroom < RULES.hot_headroom
    assert (served(done)[0], served(done)[-2:]) == ("quick", [None, "best"])
    assert first.decision is not None
    assert first.decision.state.pressures == {"heat"}
    assert (done.totals.switches, len(done.switches)) == (0, 2)


def test_retention_is_weighted_by_answers() -> None:
    # A second of `best` with one request, then one of `quick` with nine.
    rules = msgspec.structs.replace(RULES, dwell_s=0.0, low_memory_bytes=64 * MIB)
    busy = tick(demand_per_s=9.0, memory_bytes=320 * MIB)
    done = replay(trace(tick(demand_per_s=1.0), busy), BOTH, rules)
    assert served(done) == ["best", "quick"]
    assert done.totals.mean_retention == pytest.approx((1.0 + 9 * 0.9) / 10)


def test_energy_drawn_is_charge_lost() -> None:
    board = msgspec.structs.replace(BOARD, battery_wh=1.0)
    done = replay(trace(*[tick()] * 60, board=board), BOTH, RULES)
    last = done.steps[-1]
    assert last.charge_ratio is not None
    drawn_j = done.totals.energy_j - last.power_w
    assert 1.0 - last.charge_ratio == pytest.approx(drawn_j / 3600.0)


def test_throttling_slows_and_saves_power() -> None:
    cool = BoardState(temperature_c=40.0, draw_w=1.0)
    hot = msgspec.structs.replace(cool, temperature_c=90.0)
    inputs = Inputs(ambient_c=25.0, demand_per_s=1.0)
    full, slow = (
        advance(BOARD, state, inputs, work_share=1.0, period_s=0.1) for state in (cool, hot)
    )
    assert full.draw_w == pytest.approx(6.0)
    assert slow.draw_w == pytest.approx(1.0 + 5.0 * 0.4**3)
    hot_board = msgspec.structs.replace(BOARD, start_c=90.0)
    done = replay(trace(tick(demand_per_s=1.0), board=hot_board), (BEST,), RULES)
    assert done.steps[0].served.latency_ms == pytest.approx(250.0)


def test_a_fan_cools_and_stays_on_until_it_is_cool() -> None:
    board = msgspec.structs.replace(BOARD, fan=Fan(on_c=50, off_c=45, resistance_ratio=0.5))
    inputs = Inputs(ambient_c=25.0, demand_per_s=1.0)

    def after(celsius: float, *, fan_on: bool) -> BoardState:
        state = BoardState(temperature_c=celsius, fan_step=int(fan_on), draw_w=1.0)
        return advance(board, state, inputs, work_share=1.0, period_s=1.0)

    assert [after(c, fan_on=False).fan_step for c in (44, 48, 51)] == [0, 0, 1]
    assert [after(c, fan_on=True).fan_step for c in (44, 48, 51)] == [0, 1, 1]
    assert after(48, fan_on=True).temperature_c < after(48, fan_on=False).temperature_c


def test_a_tick_is_as_good_as_ten_short_ones() -> None:
    inputs = Inputs(ambient_c=35.0, demand_per_s=1.0)
    start = BoardState(temperature_c=70.0, draw_w=1.0)
    once = advance(BOARD, start, inputs, work_share=0.9, period_s=60.0)
    state = start
    for _ in range(10):
        state = advance(BOARD, state, inputs, work_share=0.9, period_s=6.0)
    assert once.temperature_c == pytest.approx(state.temperature_c, abs=1e-9)


@given(
    ambient_c=st.floats(-100, 150), slowdown=st.floats(1e-5, 1e5), demand=st.floats(0, 1e5),
    charger_w=st.floats(0, 1e5), start_c=st.floats(-100, 150), free=st.integers(0, 2**40),
)  # fmt: skip
def test_whatever_the_surroundings_the_figures_are_numbers(
    ambient_c: float, slowdown: float, demand: float, charger_w: float, start_c: float, free: int
) -> None:
    board = msgspec.structs.replace(BOARD, battery_wh=0.01, start_c=start_c)
    one = tick(
        ambient_c=ambient_c, slowdown=slowdown, demand_per_s=demand, charger_w=charger_w,
        memory_bytes=free,
    )  # fmt: skip
    totals = replay(trace(*[one] * 3, board=board), BOTH, RULES).totals
    assert all(math.isfinite(v) for v in msgspec.structs.astuple(totals)[:5])
    assert math.isfinite(totals.energy_j)
    assert math.isfinite(totals.hottest_c)
    assert 0.0 <= totals.refused <= totals.missed <= totals.requests


def test_a_board_on_mains_is_never_off() -> None:
    assert not is_off(BOARD, BOARD.start(), Inputs(ambient_c=25.0, demand_per_s=0.0))


@pytest.mark.parametrize(
    ("candidates", "pinned", "words"),
    [
        ((), None, "no variants"),
        ((BEST, BEST), None, "one name"),
        (
            (msgspec.structs.replace(BEST, latency_p50_ms=None),),
            None,
            "latency_p50_ms is missing, or not within 1e-06 to 1e",
        ),
        (
            (msgspec.structs.replace(BEST, latency_p50_ms=0.0),),
            None,
            "latency_p50_ms is missing, or not within 1e-06 to 1e",
        ),
        (
            (msgspec.structs.replace(BEST, latency_p50_ms=5e-324),),
            None,
            "latency_p50_ms is missing, or not within 1e-06 to 1e",
        ),
        (
            (msgspec.structs.replace(BEST, latency_p50_ms=float("inf")),),
            None,
            "latency_p50_ms is missing, or not within 1e-06 to 1e",
        ),
        (
            (msgspec.structs.replace(BEST, peak_memory_bytes=None),),
            None,
            "peak_memory_bytes is missing",
        ),
        (BOTH, "other", "choose one of best, quick"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    candidates: tuple[Candidate, ...], pinned: str | None, words: str
) -> None:
    with pytest.raises(ReplayError, match=words):
        replay(trace(tick()), candidates, RULES, pinned=pinned)


def test_what_was_not_measured_has_no_mean() -> None:
    unknown = msgspec.structs.replace(BEST, accuracy=None)
    assert replay(trace(tick()), (unknown,), RULES).totals.mean_retention is None
    assert replay(trace(tick()), (unknown, QUICK), RULES).totals.mean_retention == 0.9


def test_when_all_are_benched_nothing_serves() -> None:
    done = replay(trace(tick()), (msgspec.structs.replace(BEST, benched="it crashed"),), RULES)
    assert (served(done), done.totals.refused, done.totals.off_s) == ([None], 5.0, 0.0)
    assert done.totals.mean_retention is None


@pytest.fixture(scope="module")
def shipped() -> dict[str, Replay]:
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    return {name: replay(load_trace(name), variants, RULES) for name in shipped_names()}


def test_the_totals_of_every_shipped_trace_add_up(shipped: dict[str, Replay]) -> None:
    for name, done in shipped.items():
        totals = done.totals
        served_s, period_s = sum(totals.served_s.values()), totals.duration_s / len(done.steps)
        assert served_s + totals.off_s >= totals.duration_s - 3.0 * period_s  # the first loads
        assert 0.0 <= totals.refused <= totals.missed <= totals.requests, name
        variants = [v for v, _ in itertools.groupby(served(done)) if v is not None]
        assert totals.switches >= len(variants) - 1, name
        assert totals.flaps <= totals.switches


def test_each_shipped_trace_asks_something_of_the_rules(shipped: dict[str, Replay]) -> None:
    quiet = {name for name, done in shipped.items() if not done.totals.switches}
    assert quiet == {"cold-start", "noisy-corunner"}  # rules look at no latency
    assert shipped["noisy-corunner"].totals.miss_ratio > 0.5
    assert shipped["sensor-loss"].totals.severe_s > 0
    assert shipped["threshold-flapping"].totals.flaps > 10


def test_equal_replays_are_equal(shipped: dict[str, Replay]) -> None:
    variants = from_json(EXAMPLE.read_bytes(), VariantList).variants
    assert replay(load_trace("cold-start"), variants, RULES) == shipped["cold-start"]


def test_the_command_prints_totals_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "memory-bursts", "--policy", "rules"]) == 0
    out = capsys.readouterr().out
    assert "trace     memory-bursts (synthetic, rpi4): imitates a neighbour" in out
    assert "made up" in out
    assert "switches  7" in out
    assert "float32 -> small-int8: little memory: the smallest variant" in out


def test_the_command_prints_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "cold-start", "--pin", "int8", "--deadline-ms", "1", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["trace"]["origin"] == "synthetic"
    assert answer["replay"]["totals"]["miss_ratio"] == 1.0
    assert len(answer["replay"]["steps"]) == 300


def test_the_variants_of_a_package_are_taken(tmp_path: Path) -> None:
    package("1", [(variant("only"), b"{}")]).write_to(tmp_path)
    assert "served    only 300 s" in report("cold-start", policy="rules", package=tmp_path)


def test_of_a_package_what_was_kept_for_the_profile_is_taken(tmp_path: Path) -> None:
    kept, other = variant("kept", accuracy=0.8), variant("other", accuracy=0.9)
    info = msgspec.structs.replace(kept.info, profiles=("rpi4",))
    kept = msgspec.structs.replace(kept, info=info)
    package("1", [(kept, b"{}"), (other, b"{}")]).write_to(tmp_path)
    assert "served    kept 300 s" in report("cold-start", policy="rules", package=tmp_path)
    assert "served    other 86400 s" in report("battery-day", policy="rules", package=tmp_path)


def test_thresholds_come_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.json"
    path.write_text('{"kind": "rules", "low_memory_bytes": 0}')
    assert "switches  0" in report("memory-bursts", policy=str(path))
    path.write_text('{"kind": "rules", "low_memory": 0}')
    with pytest.raises(ReplayError, match="did you mean low_memory_bytes"):
        report("memory-bursts", policy=str(path))


@pytest.mark.parametrize(
    "words",
    [
        ["nope"],
        ["cold-start", "--pin", "other"],
        ["cold-start", "--policy", "guess"],
        ["cold-start", "--package", "/nonexistent"],
        ["cold-start", "--variants", __file__],
        ["cold-start", "--deadline-ms", "nan"],
        [__file__],
    ],
)
def test_a_fault_is_one_line_and_status_2(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("fleet-agent: ")
    assert captured.err.count("\n") == 1


def test_a_trace_from_a_file_replays(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_bytes(trace_to_bytes(trace(tick(), tick())))
    assert "trace     test (synthetic, bench): a test" in report(str(path), policy="rules")


def test_the_supervisor_does_not_load_it() -> None:
    code = """
import sys
import agent.cli.main, agent.app.daemon
print([m for m in sys.modules if m.startswith("agent.replay")])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")

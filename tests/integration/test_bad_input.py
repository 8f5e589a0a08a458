"""`fleet-agent replay` over what cannot be: one line with fault, place and remedy, and status 2."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from agent.cli.main import main
from tests.simulators.patience import PATIENCE_S

HEADER: Final[dict[str, Any]] = {
    "trace": 1, "name": "lab", "profile": "rpi4", "period_s": 1, "origin": "synthetic",
    "source": "a test", "deadline_ms": 50,
}  # fmt: skip
INPUTS: Final = {"ambient_c": 25, "demand_per_s": 5}
GOOD: Final[dict[str, Any]] = {
    "name": "best", "latency_p50_ms": 10, "peak_memory_bytes": 1000, "accuracy": 1, "load_ms": 9,
}  # fmt: skip
FAN: Final = {"on_c": 50, "off_c": 40, "resistance_ratio": 0.5}
GOVERNOR: Final = {"ratios": [1, 0.5], "hot_c": 80, "cool_c": 70}
OTHER: Final = GOOD | {"name": "fast", "latency_p50_ms": 4, "accuracy": 0.9}
TRACE, VARIANTS, POLICY = "trace.jsonl", "variants.json", "policy.json"


class Desk:
    """A directory with a trace, variants and a policy, all in order until a test changes one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trace([HEADER, *({"at_s": at_s, "inputs": INPUTS} for at_s in range(3))])
        self.variants([GOOD, OTHER])
        self.write(POLICY, {"kind": "adaptive"})

    def write(self, name: str, value: object) -> None:
        text = value if isinstance(value, str) else json.dumps(value)
        (self.directory / name).write_text(text)

    def trace(self, rows: list[Any]) -> None:
        lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
        self.write(TRACE, "".join(f"{line}\n" for line in lines))

    def variants(self, listed: list[Any]) -> None:
        self.write(VARIANTS, {"source": "a test", "variants": listed})

    def arguments(self, *more: str) -> list[str]:
        given = ("--variants", VARIANTS, "--policy", POLICY)
        return ["replay", TRACE, *given, *more]


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Desk:
    monkeypatch.chdir(tmp_path)
    return Desk(tmp_path)


def refused(desk: Desk, capsys: pytest.CaptureFixture[str], *more: str) -> str:
    """Return the one line that the command says; nothing else may come of it."""
    before = {path.name: path.read_bytes() for path in desk.directory.iterdir()}
    try:
        code = main(desk.arguments(*more))
    except SystemExit as exc:
        code = int(exc.code or 0)
    said = capsys.readouterr()
    assert (code, said.out) == (2, "")
    assert said.err.startswith("fleet-agent: ")
    assert said.err.count("\n") == 1
    assert said.err.endswith("\n")
    assert "Traceback" not in said.err
    assert len(said.err) < 300
    assert {path.name: path.read_bytes() for path in desk.directory.iterdir()} == before
    return said.err.strip()


def test_what_is_in_order_is_replayed(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(desk.arguments()) == 0
    assert "policy    adaptive" in capsys.readouterr().out


BOARDS: Final[list[tuple[dict[str, Any], str]]] = [
    ({"thermal": {"resistance_c_per_w": -1}}, "thermal.resistance_c_per_w is not within"),
    ({"thermal": {"time_constant_s": 0}}, "thermal.time_constant_s is not 1 to"),
    ({"thermal": {"time_constant_s": -5}}, "thermal.time_constant_s is not 1 to"),
    ({"thermal": {"idle_w": 9, "busy_w": 2}}, "0 <= idle_w <= busy_w"),
    ({"battery_wh": -1}, "battery_wh is not above 0"),
    ({"battery_wh": 1e300}, "battery_wh is not above 0 and at most"),
    ({"limits": {"severe_c": 40, "nominal_c": 60}}, "limits.nominal_c is not below severe_c"),
    ({"limits": {"severe_c": 1e300, "nominal_c": 60}}, "limits are not within -100 to 150"),
    ({"throttle_c": 90, "slowest_c": 80}, "throttle_c is not below slowest_c"),
    ({"throttle_c": -1e300}, "throttle_c and slowest_c are not within"),
    ({"slowest_ratio": 0}, "slowest_ratio is not within"),
    ({"memory_bytes": 0}, "memory_bytes is not within 1 to"),
    ({"memory_bytes": 10**30}, "memory_bytes is not within 1 to"),
    ({"cpu_share": 2}, "cpu_share is not within"),
    ({"slowdowns": {"best": -1}}, "slowdowns are not all within"),
    ({"start_c": 1000}, "start_c is not within"),
    ({"start_charge_ratio": 2}, "start_charge_ratio is not within"),
    ({"governor": GOVERNOR | {"ratios": []}}, "governor: has not 1 to 32 ratios"),
    ({"governor": GOVERNOR | {"ratios": [1.5, 0.5]}}, "governor: ratios do not fall from 1"),
    ({"governor": GOVERNOR | {"ratios": [1, -0.5]}}, "governor: ratios do not fall from 1"),
    ({"governor": GOVERNOR | {"cool_c": 90}}, "governor: cool_c is not below hot_c"),
    ({"governor": GOVERNOR | {"hot_c": 1e300}}, "governor: cool_c and hot_c are not within"),
    ({"governor": GOVERNOR | {"interval_s": 0}}, "governor: interval_s is not within"),
    ({"fan": FAN | {"off_c": 60}}, "fan: off_c is not below on_c"),
    ({"fan": FAN | {"on_c": 1e300}}, "fan: off_c and on_c are not within"),
    ({"fan": FAN | {"resistance_ratio": -0.5}}, "fan: resistance_ratio is not within"),
    ({"fan": FAN | {"faster": [FAN | {"on_c": 45, "off_c": 30}]}}, "fan: faster: the temperatures"),
    ({"case": {"resistance_c_per_w": -1, "time_constant_s": 9}}, "case: resistance_c_per_w"),
    ({"leak": {"power_w": -1, "at_c": 25, "e_fold_c": 40}}, "leak: power_w is not within"),
    ({"cell": {"voltage_v": 3.7, "resistance_ohm": 0.1}}, "cell: there is no battery_wh"),
    ({"sensors": {"lost_share": 2}}, "sensors: lost_share is not within"),
    ({"thermal": {"resistance": 2}}, "unknown field `resistance`"),
]


@pytest.mark.parametrize(("board", "fault"), BOARDS, ids=[text for _, text in BOARDS])
def test_a_plant_that_cannot_be(
    desk: Desk, capsys: pytest.CaptureFixture[str], board: dict[str, Any], fault: str
) -> None:
    desk.trace([HEADER | {"board": board}, {"at_s": 0, "inputs": INPUTS}])
    said = refused(desk, capsys)
    assert f"{TRACE}: line 1: " in said
    assert fault in said
    assert said.endswith("docs/traces.md describes the format")


TICKS: Final[list[tuple[object, str]]] = [
    ({"at_s": 1, "inputs": INPUTS | {"demand_per_s": -1}}, "inputs: demand_per_s is not within"),
    ({"at_s": 0, "inputs": INPUTS}, "at_s is 0 where 1 follows"),
    ({"at_s": -1, "inputs": INPUTS}, "at_s is -1 where 1 follows"),
    ({"at_s": 1e300, "inputs": INPUTS}, "at_s is 1e+300 where 1 follows"),
    ('{"at_s":NaN,"inputs":{"ambient_c":1,"demand_per_s":1}}', "JSON is malformed"),
    ('{"at_s":1e999,"inputs":{"ambient_c":1,"demand_per_s":1}}', "out of range - at `$.at_s`"),
    ({"at_s": "1", "inputs": INPUTS}, "at `$.at_s`"),
    ({"at_s": 1, "inputs": INPUTS | {"ambient_c": -300}}, "inputs: ambient_c is not within"),
    ({"at_s": 1, "inputs": INPUTS | {"slowdown": 0}}, "inputs: slowdown is not within"),
    ({"at_s": 1, "inputs": INPUTS | {"other_share": 1.5}}, "inputs: other_share is not within"),
    ({"at_s": 1, "inputs": INPUTS | {"charger_w": -1}}, "inputs: charger_w is not within"),
    ({"at_s": 1, "inputs": INPUTS | {"memory_bytes": -1}}, "inputs: memory_bytes is not within"),
    ({"at_s": 1, "inputs": INPUTS, "sensed": {"temperature_c": -300}}, "sensed: temperature_c is"),
    ({"at_s": 1, "inputs": INPUTS, "sensed": {"battery_ratio": 1.5}}, "sensed: battery_ratio is"),
    (
        {"at_s": 1, "inputs": INPUTS, "sensed": {"cpu_frequency_ratio": 2}},
        "sensed: cpu_frequency_ratio is not within 0 to 1",
    ),
    (
        {"at_s": 1, "inputs": INPUTS, "sensed": {"memory_available_bytes": -1}},
        "sensed: memory_available_bytes is not within",
    ),
    ({"at_s": 1, "inputs": INPUTS, "sensed": {"power_mw": -5}}, "sensed: power_mw is not within"),
    ({"at_s": 1, "inputs": INPUTS, "sensed": {"load_ratio": -1}}, "sensed: load_ratio is not"),
    ("hello", "JSON is malformed"),
    ("", "Input data was truncated"),
]


@pytest.mark.parametrize(("tick", "fault"), TICKS, ids=[text for _, text in TICKS])
def test_a_tick_that_cannot_be(
    desk: Desk, capsys: pytest.CaptureFixture[str], tick: object, fault: str
) -> None:
    desk.trace([HEADER, {"at_s": 0, "inputs": INPUTS}, tick])
    said = refused(desk, capsys)
    assert f"{TRACE}: line 3: " in said
    assert fault in said
    assert said.endswith("docs/traces.md describes the format")


HEADERS: Final[list[tuple[dict[str, Any], str]]] = [
    ({"period_s": 0}, "period_s is not within"),
    ({"period_s": -1}, "period_s is not within"),
    ({"deadline_ms": 0}, "deadline_ms is not above 0"),
    ({"deadline_ms": 1e300}, "deadline_ms is not above 0 and at most"),
    ({"requests": {"arrivals": "poisson", "seed": -1}}, "requests: seed is not within"),
    ({"requests": {"arrivals": "bursts", "burst_size": 0}}, "requests: burst_size is not within"),
    ({"requests": {"arrivals": "late"}}, "at `$.requests.arrivals`"),
    ({"requests": {"service_sigma": -1}}, "requests: service_sigma is not within"),
]


@pytest.mark.parametrize(("header", "fault"), HEADERS, ids=[text for _, text in HEADERS])
def test_a_header_that_cannot_be(
    desk: Desk, capsys: pytest.CaptureFixture[str], header: dict[str, Any], fault: str
) -> None:
    desk.trace([HEADER | header, {"at_s": 0, "inputs": INPUTS}])
    said = refused(desk, capsys)
    assert f"{TRACE}: line 1: " in said
    assert fault in said


@pytest.mark.parametrize(
    ("text", "fault"),
    [("", "0 lines"), ("hello", "line 1: is cut off"), ("\0\n\0\n", "line 1: not a valid Header")],
)
def test_a_trace_that_is_none(
    desk: Desk, capsys: pytest.CaptureFixture[str], text: str, fault: str
) -> None:
    desk.write(TRACE, text)
    said = refused(desk, capsys)
    assert f"{TRACE}: {fault}" in said
    assert said.endswith("docs/traces.md describes the format")


FIGURES: Final[list[tuple[dict[str, Any], str]]] = [
    ({"latency_p50_ms": -3}, "variant 'best': latency_p50_ms is missing, or not within"),
    ({"latency_p50_ms": 0}, "variant 'best': latency_p50_ms is missing, or not within"),
    ({"latency_p50_ms": None}, "variant 'best': latency_p50_ms is missing, or not within"),
    ({"latency_p50_ms": 1e300}, "variant 'best': latency_p50_ms is missing, or not within"),
    ({"latency_p50_ms": "fast"}, "at `$.variants[0].latency_p50_ms`"),
    ({"peak_memory_bytes": -1}, "variant 'best': peak_memory_bytes is missing, or not within"),
    ({"accuracy": -1}, "variant 'best': accuracy is not within"),
    ({"accuracy": 1e300}, "variant 'best': accuracy is not within"),
    ({"worst_error": -1}, "variant 'best': worst_error is negative"),
    ({"load_ms": -5}, "variant 'best': load_ms is not within"),
    ({"load_ms": 1e300}, "variant 'best': load_ms is not within"),
    ({"name": ""}, "variant '': name is not a plain name"),
    ({"name": "two\nlines"}, "variant 'two\\nlines': name is not a plain name"),
    ({"name": "a" * 3000}, "name is not a plain name"),
    ({"name": "fast"}, "two variants have one name"),
    ({"latency_ms": 5}, "unknown field `latency_ms` - at `$.variants[0]`"),
]


@pytest.mark.parametrize(("figures", "fault"), FIGURES, ids=[text for _, text in FIGURES])
def test_a_variant_that_cannot_be(
    desk: Desk, capsys: pytest.CaptureFixture[str], figures: dict[str, Any], fault: str
) -> None:
    desk.variants([GOOD | figures, OTHER])
    said = refused(desk, capsys)
    assert f"fleet-agent: {VARIANTS}: " in said
    assert fault in said


@pytest.mark.parametrize(
    "text",
    ["", "x", "[]", '{"source":"x","variants":[]}', '{"source":"x","variants":[{"name":NaN}]}'],
)
def test_a_file_of_variants_that_is_none(
    desk: Desk, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    desk.write(VARIANTS, text)
    assert f"fleet-agent: {VARIANTS}: " in refused(desk, capsys)


POLICIES: Final[list[tuple[object, str]]] = [
    ({"objective": {"deadline_ms": 0}}, "objective.deadline_ms is not positive"),
    ({"objective": {"deadline_ms": -5}}, "objective.deadline_ms is not positive"),
    ({"objective": {"deadline_probability": 1}}, "objective.deadline_probability is not within"),
    ({"objective": {"deadline_probability": 0.2}}, "objective.deadline_probability is not within"),
    ({"objective": {"min_retention": 1.5}}, "objective.min_retention is not within 0 to 1"),
    ({"objective": {"battery_lasts_s": -1}}, "objective.battery_lasts_s is negative"),
    ({"objective": {"dead_line": 1}}, "there is no setting objective.dead_line (did you mean"),
    ({"objective": 3}, "objective is not a table; write it as [objective]"),
    ({"hot_headroom": 0.5, "cool_headroom": 0.7}, "cool_headroom is above hot_headroom"),
    ({"low_battery_ratio": 0.5, "ok_battery_ratio": 0.1}, "low_battery_ratio is above"),
    ({"low_battery_ratio": 5, "ok_battery_ratio": 6}, "low_battery_ratio is not within 0 to 1"),
    ({"low_memory_bytes": -1}, "low_memory_bytes is negative"),
    ({"dwell_s": -1}, "dwell_s is negative"),
    ({"kind": "magic"}, "kind is rules or adaptive, not 'magic'; write one of them"),
    ({"kind": "rules", "objective": {}}, 'has an objective; write kind = "adaptive"'),
    ({"kind": "rules", "objective": {"deadline_ms": 9}}, "only the adaptive policy has an"),
    ({"objective": {"battery_until": "6 pm"}}, 'give a time of day in quotes, such as "18:00"'),
    ({"objective": {"battery_hours": 6}}, "did you mean objective.battery_lasts_s, in seconds"),
    ({"battery_until": "18:00"}, "battery_until stands outside of the objective"),
    ({"policy": {"kind": "rules"}}, "write its keys without that heading"),
    ({"dwell_s": "5"}, "dwell_s must be a number, not a text; give 0 or more"),
    ({"more": 1}, "there is no setting more; docs/policies.md"),
    ([1], "Expected `object`, got `array`"),
    ('{"hot_headroom": NaN}', "JSON is malformed"),
    ("", "Input data was truncated"),
]


@pytest.mark.parametrize(("policy", "fault"), POLICIES, ids=[text for _, text in POLICIES])
def test_a_policy_that_contradicts_itself(
    desk: Desk, capsys: pytest.CaptureFixture[str], policy: object, fault: str
) -> None:
    desk.write(POLICY, policy)
    said = refused(desk, capsys)
    assert f"fleet-agent: {POLICY}: " in said
    assert fault in said
    assert "; " in said, "no remedy"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("kind = ", "without that heading"),
        ("[policy]\nkind = 'rules'", "write its keys without that heading"),
        ("[objective]\nbattery_until = 18:00", 'write it in quotes: "18:00"'),
        ("[objective]\nbattery_until = 18:00:00", 'write it in quotes: "18:00"'),
        ("dwell_s = nan", "dwell_s is not a number: nan; give 0 or more"),
        ("kind = 'rules'\n[objective]\ndeadline_ms = 5", 'write kind = "adaptive"'),
    ],
)
def test_a_policy_in_toml_that_cannot_be(
    desk: Desk, capsys: pytest.CaptureFixture[str], text: str, fault: str
) -> None:
    desk.write("policy.toml", text)
    assert fault in refused(desk, capsys, "--policy", "policy.toml")


def test_a_policy_in_toml_is_that_in_json(desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    desk.write(POLICY, {"kind": "adaptive", "objective": {"deadline_ms": 7}})
    desk.write("policy.toml", 'kind = "adaptive"\n[objective]\ndeadline_ms = 7\n')
    shown = []
    for name in (POLICY, "policy.toml"):
        assert main(desk.arguments("--policy", name)) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1]


@pytest.mark.parametrize(
    ("policy", "more", "told"),
    [
        ({}, (), "deadline of the trace: 50 ms\n"),
        ({}, ("--deadline-ms", "7"), "deadline of --deadline-ms: 7 ms\n"),
        ({"objective": {"deadline_ms": 50}}, (), "deadline of the trace: 50 ms\n"),
        (
            {"objective": {"deadline_ms": 7}},
            (),
            "50 ms; the policy's own is 7 ms: --deadline-ms 7 counts by that one\n",
        ),
        (
            {"objective": {"deadline_ms": 7}},
            ("--deadline-ms", "7"),
            "deadline of --deadline-ms: 7 ms\n",
        ),
    ],
)
def test_the_deadline_that_counts_is_told(
    desk: Desk,
    capsys: pytest.CaptureFixture[str],
    policy: dict[str, Any],
    more: tuple[str, ...],
    told: str,
) -> None:
    desk.write(POLICY, {"kind": "adaptive"} | policy)
    assert main(desk.arguments(*more)) == 0
    assert told in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--pin", "nothing"), "there is no variant 'nothing' to pin; choose one of best, fast"),
        (("--deadline-ms", "0"), "--deadline-ms: 0 is not a positive number; give"),
        (("--deadline-ms", "-1"), "--deadline-ms: -1 is not a positive number; give"),
        (("--deadline-ms", "nan"), "--deadline-ms: nan is not a positive number; give"),
        (("--deadline-ms", "inf"), "--deadline-ms: inf is not a positive number; give"),
        (("--deadline-ms", "soon"), "--deadline-ms: invalid float value: 'soon'; see"),
    ],
)
def test_an_option_that_cannot_be(
    desk: Desk, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], fault: str
) -> None:
    assert fault in refused(desk, capsys, *arguments)


def test_the_process_ends_with_the_same_status(desk: Desk) -> None:
    desk.variants([GOOD | {"latency_p50_ms": -3}])
    done = subprocess.run(
        [sys.executable, "-P", "-m", "agent", *desk.arguments()],
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1

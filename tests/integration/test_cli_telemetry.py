"""How `fleet telemetry` answers: its forms, on a terminal and through a pipe, and saved queries."""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from matplotlib.image import imread

from controller.api.server import HttpServer
from controller.cli import main
from controller.cli.repeating import PATIENCE_S
from tests.simulators.stack import Done, fleet_here
from tests.simulators.telemetry_fleet import DEVICES, VARIANTS, Served, answering
from wire.clock import SystemClock
from wire.codec import to_json, to_msgpack
from wire.console.table import cell_width
from wire.messages import decode_message
from wire.presence import Presence
from wire.reporting import ReportRequest
from wire.telemetry import TelemetryBatch
from wire.topics import down, up
from wire.transport import Received

pytestmark = pytest.mark.xdist_group("cli-telemetry")

ANSI = re.compile(r"\x1b\[[0-9;]*m")
LATENCY = ("telemetry", "query", "inference_latency_ms")
HEAT = ("telemetry", "query", "temperature_c")
BLOCKS = re.compile("[▁▂▃▄▅▆▇█]{18,}")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with answering(tmp_path_factory.mktemp("fleet")) as running:
        yield running


@pytest.fixture(autouse=True)
def size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give terminals of commands in this process 100 columns."""
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("LINES", "30")
    monkeypatch.setenv("TERM", "xterm-256color")


def shown(done: Done) -> list[str]:
    assert done.code == 0, done.err
    return [ANSI.sub("", line) for line in done.out.replace("\r", "").splitlines()]


def test_a_pipe_gets_plain_values_and_no_other_column(served: Served) -> None:
    table = served.ok(*LATENCY, "--by", "variant")
    heading, *rows = table.out.splitlines()
    assert heading.split() == ["VARIANT", "COUNT", "MEAN", "P50", "P95", "MAX"]
    assert len(rows) == 2
    assert float(rows[0].split()[-1]) > 40
    assert table.err == ""
    as_csv = served.ok(*LATENCY, "--by", "variant", "--format", "csv").out
    assert as_csv == served.ok(*LATENCY, "--by", "variant", "--csv").out
    assert [row[0] for row in csv.reader(io.StringIO(as_csv))] == ["variant", *VARIANTS]
    as_json = served.ok(*LATENCY, "--by", "variant", "--format", "json").json
    assert as_json == served.ok(*LATENCY, "--by", "variant", "--json").json
    assert set(as_json) == {"columns", "rows", "sources"}


def test_a_terminal_gets_units_and_how_it_went(served: Served) -> None:
    heading, *rows = shown(served.on_terminal(*LATENCY, "--by", "variant"))
    assert heading.endswith("  P95 OVER TIME")
    for row, variant in zip(rows, VARIANTS, strict=True):
        assert row.startswith(f"{variant}  ")
        assert re.search(r"  [\d.]+ ms +[\d.]+ ms +[\d.]+ ms +[\d.]+ ms  [·▁]", row)
        assert BLOCKS.search(row)
    ends = {cell_width(row[: re.search("[·▁]", row).start()]) for row in rows}  # type: ignore[union-attr]
    assert len(ends) == 1, "wide characters do not shift a column"
    plain = served.on_terminal(*LATENCY, "--by", "variant", NO_COLOR="1").out
    assert "\x1b" not in plain


def test_how_it_went_can_be_left_out_or_asked_for(served: Served) -> None:
    def has_it(*words: str) -> bool:
        return BLOCKS.search(served.ok(*words, terminal=True).out) is not None

    assert has_it(*LATENCY)
    assert has_it("telemetry", "top", "temperature_c")
    assert not has_it(*LATENCY, "--no-spark")
    assert not has_it(*LATENCY, "--step", "10m")
    assert not has_it(*LATENCY, "--by", "minute")


def test_through_a_pipe_it_can_be_asked_for(served: Served) -> None:
    assert BLOCKS.search(served.ok(*LATENCY, "--spark").out)


def test_a_narrow_terminal_leaves_it_out(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    done = served.ok(*LATENCY, "--by", "variant", terminal=True)
    assert not BLOCKS.search(done.out)
    assert done.err.startswith("(P95 OVER TIME: not shown")
    assert max(map(cell_width, shown(done))) <= 60


@pytest.mark.parametrize("columns", [30, 80, 200])
def test_a_plot_over_time_fits(served: Served, columns: int) -> None:
    asked = (*LATENCY, "--by", "variant", "--step", "5m", "--format", "plot")
    lines = shown(served.on_terminal(*asked, columns=columns))
    assert max(map(cell_width, lines)) <= columns
    text = " ".join(lines)
    assert "p95 of inference_latency_ms by variant" in text
    assert "p95, ms" in text
    assert re.search(r"\d\d[:-]\d\d", text)
    assert re.search("[\u2801-\u28ff]", text)
    assert all(f"━━ {variant}" in text for variant in VARIANTS)


def test_a_plot_for_an_output_without_unicode_is_of_ascii(served: Served) -> None:
    asked = (*HEAT, "--by", "device", "--step", "5m", "--format", "plot")
    lines = shown(served.on_terminal(*asked, PYTHONIOENCODING="ascii", NO_COLOR="1"))
    assert "".join(lines).isascii()
    assert lines[-1] == "* cam-1   + cam-2   x cam-3"
    named = served.on_terminal(*LATENCY, "--by", "variant", PYTHONIOENCODING="ascii")
    assert "int8 ?? ??????" in named.out
    exact = served.on_terminal(*LATENCY, "--by", "variant", "--json", PYTHONIOENCODING="ascii")
    assert (exact.code, exact.err.count("\n")) == (2, 1)
    assert exact.err.endswith("set PYTHONIOENCODING=utf-8\n")


def test_without_a_step_a_plot_has_bars(served: Served) -> None:
    asked = ("telemetry", "top", "temperature_c", "--format", "plot")
    title, *bars = served.ok(*asked).out.splitlines()
    assert title == "max of temperature_c by device, the last 1h"
    assert [bar.split()[0] for bar in bars] == ["cam-3", "cam-2", "cam-1"]
    lengths = [bar.count("█") for bar in bars]
    assert lengths == sorted(lengths, reverse=True)
    assert all(bar.endswith(" °C") for bar in bars)


def test_a_comparison_has_units_on_a_terminal_alone(served: Served) -> None:
    asked = ("telemetry", "compare", "inference_latency_ms", *VARIANTS, "--by", "variant")
    heading, first, *_ = served.ok(*asked).out.splitlines()
    assert heading.split() == ["VARIANT", "MEAN", "DEVICES", "VALUES"]
    assert re.fullmatch(r"fp32 +[\d.]+ +3 +1800", first)
    heading, first, *_ = shown(served.ok(*asked, terminal=True))
    assert re.fullmatch(r"fp32 +[\d.]+ ms +3 +1800", first)
    records = served.ok(*asked, "--format", "csv").out.splitlines()
    assert records[0] == "variant,mean,devices,values"
    assert [line.split(",")[0] for line in records[1:]] == list(VARIANTS)
    whole = served.ok(*asked, "--json").json
    assert {"first", "second", "difference", "low", "high", "told"} <= set(whole)


def test_a_picture_is_a_png(served: Served, tmp_path: Path) -> None:
    place = tmp_path / "heat.png"
    for more in (("--step", "5m"), (), ("--since", "2h", "--until", "90m")):
        done = served.ok(*HEAT, "--by", "device", *more, "--format", "png", "-o", str(place))
        assert done.out == ""
        assert place.read_bytes().startswith(b"\x89PNG")
        height, width, _ = imread(place).shape
        assert (width, height >= 250) == (1152, True)


@pytest.mark.parametrize(
    ("words", "types"),
    [
        (
            (*LATENCY, "--by", "variant", "--step", "5m"),
            {"start_s": "int64", "variant": "string", "count": "double", "mean": "double",
             "p50": "double", "p95": "double", "max": "double"},
        ),
        (("telemetry", "top", "temperature_c"), {"device": "string", "max": "double"}),
        (
            ("telemetry", "devices"),
            {"device": "string", "online": "bool", "newest_at_s": "double", "batches": "int64",
             "dropped": "int64", "refused": "int64", "clock_ahead_s": "double"},
        ),
        (
            ("telemetry", "events"),
            {"device": "string", "at_s": "double", "kind": "string", "reason": "string",
             "data": "string"},
        ),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_parquet_has_the_same_rows_as_json(
    served: Served, tmp_path: Path, words: tuple[str, ...], types: dict[str, str]
) -> None:
    place = tmp_path / "answer.parquet"
    served.ok(*words, "--format", "parquet", "--output", str(place))
    table = pq.read_table(place)
    assert {field.name: str(field.type) for field in table.schema} == types
    known = served.ok(*words, "--json").json
    if isinstance(known, dict):
        assert [list(row.values()) for row in table.to_pylist()] == known["rows"]
    else:
        assert table.num_rows == len(known)


@pytest.mark.parametrize("form", ["parquet", "png"])
def test_no_terminal_gets_a_file(served: Served, form: str) -> None:
    done = served.run(*HEAT, "--format", form, terminal=True)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "add --output FILE" in done.err


@pytest.mark.parametrize(("form", "extra"), [("parquet", "parquet"), ("png", "plots")])
def test_what_is_not_installed_is_told_with_its_extra(
    served: Served, monkeypatch: pytest.MonkeyPatch, form: str, extra: str
) -> None:
    library = {"parquet": "pyarrow", "png": "matplotlib"}[form]
    found = [name for name in sys.modules if name.partition(".")[0] == library]
    for name in found:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.setattr(sys, "path_importer_cache", {})
    done = served.run(*HEAT, "--format", form, "-o", "x")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert done.err.startswith(f"fleet: {library} is not installed here")
    assert done.err.endswith(f"pip install 'edgefleet[{extra}]'\n")


def test_nothing_to_show_is_said(served: Served) -> None:
    before = ("--since", "2h", "--until", "90m")
    told = "no values: p95 of inference_latency_ms, the last 2h, until 90m ago\n"
    table = served.ok(*LATENCY, *before)
    assert (table.out.split(), table.err) == (["COUNT", "MEAN", "P50", "P95", "MAX"], told)
    assert served.ok(*LATENCY, *before, "--format", "plot") == Done(0, "", told)
    assert served.ok(*LATENCY, *before, "--csv") == Done(0, "count,mean,p50,p95,max\n", "")


EMPTY = [
    (("query", "temperature_c", "--selector", "sit=berlin"),
     ("no values: mean of temperature_c where sit=berlin, the last 1h; no device has a label "
      "'sit'; did you mean site? there are the labels site, arch, id and profile")),
    (("events", "--kind", "switch", "--since", "2d"), "no events of switch, the last 2d"),
    (("events", "--where", "variant=fp32"),
     ("no events where variant=fp32, the last 1h; no event has 'variant' in its data; did you mean "
      "cost.variants? there are the keys cost.variants, cost and to")),
    (("events", "--where", "to=int8"), "no events where to=int8, the last 1h"),
    (("events", "--selector", "sit"), "no events where sit, the last 1h; no device has a label"),
    (("devices", "--silent", "3h"), "no device is silent for 3h"),
    (("devices", "--losing"), "nothing of these devices was lost"),
    (("devices", "--selector", "site=x"), "no device matches site=x"),
    (("dead-letters",), "no dead letters: nothing was refused"),
    (("saved",), "no queries are saved; `fleet telemetry save` keeps one"),
]  # fmt: skip


def test_an_empty_list_says_so_in_a_line(served: Served) -> None:
    for words, said in EMPTY:
        done = served.ok("telemetry", *words)
        assert (len(done.out.splitlines()), done.err.count("\n")) == (1, 1), "the heading alone"
        assert done.err.startswith(said)


def test_no_capture_is_said(served: Served, tmp_path: Path) -> None:
    assert served.ok("capture", "list").err.startswith("no captures, and no samples; `fleet cap")
    key = tmp_path / "samples.key"
    assert fleet_here("capture", "key", str(key)).code == 0
    pull = ("--private-key", str(key), "--to", str(tmp_path / "samples"))
    misspelt = served.run("capture", "pull", "digitz", *pull)
    assert (misspelt.code, "there is no model 'digitz'" in misspelt.err) == (2, True)
    assert not (tmp_path / "samples").exists()


def test_times_are_shown_with_their_zone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        heading, *_ = served.ok(*HEAT, "--step", "5m").out.splitlines()
        assert heading.split() == ["START", "(IST)", "COUNT", "MEAN", "MIN", "MAX"]
        heading, *_ = served.ok("telemetry", "devices").out.splitlines()
        assert heading.split()[2:4] == ["NEWEST", "(IST)"]
    finally:
        monkeypatch.undo()
        time.tzset()
    newest = [each["newest_at_s"] for each in served.ok("telemetry", "devices", "--json").json]
    assert max(newest) <= SystemClock().now_s(), "not the end of a minute that is not over"
    assert served.ok(*HEAT, "--step", "5m", "--csv").out.startswith("start_s,count")


MANY = "release,variant,device,site,profile,arch,agent_version"


def test_a_narrow_terminal_keeps_what_was_asked_for(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    heading, *lines = shown(served.ok(*LATENCY, "--by", MANY, "--stat", "p95,max", terminal=True))
    assert heading.split() == ["GROUP", "P95", "MAX"]
    assert max(map(cell_width, lines)) <= 80
    assert lines[0].endswith(" ms")
    text = " ".join(lines)
    assert all(f"{name}=" in text for name in MANY.split(","))
    many = "count,total,mean,min,max,rate,p5,p50,p90,p95,p99,p99.9"
    heading, *lines = shown(served.ok(*LATENCY, "--by", MANY, "--stat", many, terminal=True))
    assert heading.split() == ["GROUP", "STATISTIC", "VALUE"]
    assert re.search(r" p99\.9 +[\d.]+ ms", "\n".join(lines))
    heading, *lines = shown(served.ok("telemetry", "metrics", terminal=True))
    assert heading.endswith("  MEANING")
    assert max(map(cell_width, lines)) <= 80


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--selector", "site=berln"),
         "no device has site=berln; did you mean berlin? there are the values of site berlin"),
        (("--selector", "device=cam-1"), "a device is selected by its id: id=cam-1"),
        (("--selector", "id=cam-7"), "no device has id=cam-7; did you mean cam-"),
        (("--where", "device=cam-7"), "no inference_latency_ms has device=cam-7; did you mean"),
        (("--where", "variant=fp31"),
         "no inference_latency_ms has variant=fp31; did you mean fp32? there are the values of "),
    ],
)  # fmt: skip
def test_a_value_that_there_is_not_is_named(
    served: Served, words: tuple[str, ...], said: str
) -> None:
    assert said in served.ok(*LATENCY, *words).err


def test_several_groups_may_be_given_one_by_one(served: Served) -> None:
    apart = served.ok(*LATENCY, "--by", "device", "--by", "variant", "--csv").out
    assert apart == served.ok(*LATENCY, "--by", "device,variant", "--csv").out


def test_the_greatest_are_found_by_what_suits_the_metric(served: Served) -> None:
    top = ("telemetry", "top")
    assert served.ok(*top, "install_bytes_total", "--csv").out.startswith("device,total\n")
    assert served.ok(*top, "temperature_c", "--csv").out.startswith("device,max\n")
    assert served.run(*top, "install_bytes_total", "--stat", "max").err.startswith(
        "fleet: install_bytes_total is a counter and has no statistic 'max'"
    )


def test_lines_that_are_not_drawn_are_told(served: Served) -> None:
    done = served.ok(
        *LATENCY, "--by", "device,variant", "--stat", "p50,p95", "--step", "5m", "--format", "plot"
    )
    assert done.err.startswith("drawn are the 6 with the greatest values, and 6 more are not")
    assert "fp32 p95" in done.out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*LATENCY, "--every", "5s"), "--every is for --watch; add --watch"),
        ((*LATENCY, "--watch", "--every", "5"), "--every: '5' has no unit"),
        ((*LATENCY, "--watch", "--every", "1ms"), "--every: '1ms' is too often"),
        ((*LATENCY, "--watch", "--format", "png"), "--watch would write one file of png behind"),
        ((*LATENCY, "--format", "png", "-o", "/nowhere/x"), "cannot write /nowhere/x: no such"),
        ((*HEAT, "--by", "sit"), "did you mean site? it has device, model, release, variant; dev"),
        ((*HEAT, "--since", "yesterday"), "--since: 'yesterday' is not a time; write a time ago"),
        (("telemetry", "save", "q", "temperture_c"), "did you mean temperature_c"),
        (("telemetry", "save", "q", "temperature_c", "--stat", "avg"), "did you mean mean?"),
        (
            ("telemetry", "compare", "temperature_c", "cam-1", "cam-2", "--by", "device"),
            "cannot be parted by device: a device is one observation",
        ),
        (
            ("telemetry", "compare", "install_bytes_total", "a", "b", "--by", "site"),
            "is a counter, and groups are not compared by counters",
        ),
        (("telemetry", "devices", "-o", "x"), "--output is for files of parquet; write > FILE"),
        (("telemetry", "events", "--format", "plot"), "'plot' is not possible here"),
        (("telemetry", "save", "Slow", "x_ms"), "not a name for a saved query: 'Slow'"),
        (("telemetry", "save", "slow", "X"), "not a name of a metric: 'X'"),
        (("telemetry", "save", "slow", "x_ms", "--step", "soon"), "--step: 'soon'"),
        (("telemetry", "save", "slow", "x_ms", "--step", "90s"), "is not whole minutes"),
        (("telemetry", "save", "slow", "x_ms", "--selector", "a=="), "selector"),
        (("telemetry", "save", "slow", "x_ms", "--format", "excel"), "'excel' is not possible"),
        (("telemetry", "save", "slow", "x_ms", "--where", "a"), "'a' is not a label"),
        (("telemetry", "run", "no-such"), "there is no saved query 'no-such'"),
        (("telemetry", "forget", "no-such"), "there is no saved query 'no-such'"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, tuple) else "",
)
def test_a_wrong_line_is_one_line(served: Served, words: tuple[str, ...], said: str) -> None:
    done = served.run(*words)
    shown = 2 if "--selector" in words else 0  # the place in it
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1 + shown)
    assert said in done.err


def test_a_query_is_saved_shared_and_changed(served: Served, tmp_path: Path) -> None:
    words = ("slow", "inference_latency_ms", "--stat", "p95", "--by", "variant", "--step", "5m")
    more = ("--model", "digits", "--format", "csv")
    for _ in range(2):
        assert served.ok("telemetry", "save", *words, *more).out == "saved slow\n"
    (kept,) = served.ok("telemetry", "saved", "--json").json
    assert kept["query"]["where"] == ["model=digits"]
    assert abs(kept["saved_at_s"] - SystemClock().now_s()) < 60
    listed = served.ok("telemetry", "saved").out.splitlines()[1]
    assert (
        "inference_latency_ms --stat p95 --by variant --where model=digits --step 5m --format csv"
        in listed
    )
    other = served.run("telemetry", "save", "slow", "inference_latency_ms")
    assert (other.code, "add --replace" in other.err) == (2, True)

    run = ("telemetry", "run", "slow")
    assert served.ok(*run).out == served.ok(*LATENCY, *words[2:], "--csv").out
    assert served.ok(*run, "--json", "--stat", "p50", "--step", "").json["columns"] == [
        "variant", "p50",
    ]  # fmt: skip
    one = served.ok(*run, "--where", "variant=fp32", "--step", "", "--json").json
    assert [row[0] for row in one["rows"]] == ["fp32"]
    assert served.ok(*run, "--format", "plot").out.startswith("p95 of inference_latency_ms")
    picture = tmp_path / "slow.png"
    served.ok(*run, "--format", "png", "-o", str(picture))
    assert picture.exists()
    unknown = served.run(*run, "--model", "faces")
    assert (unknown.code, "faces" in unknown.err) == (2, True)

    replaced = ("telemetry", "save", "slow", "temperature_c", "--replace")
    assert served.ok(*replaced, "--since", "2026-01-31T12:00").out == "saved slow\n"
    assert served.ok(*run, "--json").json["columns"] == ["count", "mean", "min", "max"]
    assert "temperature_c --since 2026-01-31T12:00:00" in served.ok("telemetry", "saved").out
    plotted = served.ok(*run, "--step", "1d", "--format", "plot").out
    assert plotted.startswith("mean of temperature_c, since 2026-01-31T12:00:00, step 1d")
    served.ok("telemetry", "save", "some", "load_ratio", "--selector", "id in (cam-1)")
    assert "load_ratio --selector 'id in (cam-1)'" in served.ok("telemetry", "saved").out
    served.ok("telemetry", "forget", "some")
    assert served.ok("telemetry", "forget", "slow").out == "slow is no longer saved\n"
    assert served.ok("telemetry", "saved", "--json").json == []


class SlowPipe(io.StringIO):
    """An output whose reader has seen enough after some answers."""

    def __init__(self, answers: int) -> None:
        super().__init__()
        self._left = answers

    def flush(self) -> None:
        self._left -= 1
        if not self._left:
            raise KeyboardInterrupt


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let no time pass between two questions; return how long each was meant to be."""
    waited: list[float] = []
    monkeypatch.setattr(SystemClock, "sleep", lambda _self, seconds: waited.append(seconds))
    monkeypatch.setattr(SystemClock, "monotonic_s", lambda _self: sum(waited))
    return waited


@pytest.mark.parametrize("form", ["table", "csv", "plot"])
def test_watching_through_a_pipe_prints_each_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch, no_waiting: list[float], form: str
) -> None:
    once = served.ok(*HEAT, "--by", "device", "--format", form).out
    pipe = SlowPipe(3)
    monkeypatch.setattr(sys, "stdout", pipe)
    code = main([*HEAT, "--by", "device", "--format", form, "--watch", *served.where])
    assert code == 130
    gap = "" if form == "csv" else "\n"
    assert pipe.getvalue() == gap.join([once] * 3)
    assert no_waiting == [10.0, 10.0]


def test_watching_on_a_terminal_draws_in_place(
    served: Served, monkeypatch: pytest.MonkeyPatch, no_waiting: list[float]
) -> None:
    def enough(_self: object, seconds: float) -> None:
        no_waiting.append(seconds)
        if len(no_waiting) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", enough)
    done = served.run(*HEAT, "--by", "device", "--watch", "--every", "5s", terminal=True)
    assert (done.code, no_waiting) == (130, [5.0, 5.0, 5.0])
    assert done.out.count("cam-3") >= 3
    assert "\x1b[1A" in done.out, "goes back up"
    assert done.out.endswith("\x1b[?25h"), "the cursor is shown again"


def test_watching_ends_when_the_controller_stays_away(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_waiting: list[float]
) -> None:
    gone = HttpServer("127.0.0.1", 0)
    gone.start(served.fleet.controller.app)
    where = ("--url", f"http://127.0.0.1:{gone.port}", "--token-file", str(served.token_file))
    picture = tmp_path / "heat.png"

    def stop_it(_self: object, seconds: float) -> None:
        no_waiting.append(seconds)
        if len(no_waiting) == 1:
            gone.stop()

    monkeypatch.setattr(SystemClock, "sleep", stop_it)
    done = fleet_here(*HEAT, "--watch", "--format", "png", "-o", str(picture), *where)
    assert done.code == 2
    waiting, ended = done.err.splitlines()
    assert waiting.endswith("; waiting for it")
    assert ended.startswith("fleet: no controller answers at ")
    assert sum(no_waiting) > PATIENCE_S
    assert picture.exists()


def test_a_device_is_asked_to_report_and_waited_for(served: Served) -> None:
    fleet, (silent, answers, away) = served.fleet, list(DEVICES)[:3]

    def report(received: Received) -> None:
        request = decode_message(received.payload, ReportRequest)
        batch = TelemetryBatch(device=answers, boot_id="flush", sequence=0, answers=request.id)
        fleet.hub.deliver(Received(up(answers, "telemetry"), to_msgpack(batch)))

    fleet.hub.on(down(answers, "report_request"), report)
    done = served.ok("telemetry", "flush", answers)
    assert done == Done(0, f"{answers} has reported, and its report is stored\n", "")
    done = served.run("telemetry", "flush", silent, "--wait", "10ms")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(f"{silent} has not reported within 10ms: ")
    gone = Presence(device=away, online=False, boot_id="boot-1")
    fleet.hub.deliver(Received(up(away, "presence"), to_json(gone)))
    done = served.run("telemetry", "flush", away)
    assert (done.code, done.out) == (2, "")
    assert f"device {away} is offline" in done.err
    assert len(done.err.splitlines()) == 1

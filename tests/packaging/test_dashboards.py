"""Grafana's dashboards fit what `/metrics` has, and so does the page about exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from controller.export_settings import OtlpConfig, PrometheusConfig
from controller.exporting import own_figures
from telemetry.metrics import METRICS
from telemetry.server.export import families
from tests.simulators.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
BOARDS = sorted((ROOT / "grafana").glob("*.json"))
PAGE = ROOT / "docs" / "exports.md"
PROMTOOL = shutil.which("promtool")
COLUMNS = 24
NEWEST_SCHEMA = 41
"""Of Grafana 12; a newer one would migrate what is older, and refuse nothing."""

KINDS = {"timeseries", "stat", "heatmap", "row"}
VARIABLES = {
    "$__rate_interval": "5m", "$__range": "1h", "$model": "digits", "$device": "cam-1",
    "$first": "digits:1", "$second": "digits:2", "$variant": "int8",
}  # fmt: skip


def exposed() -> dict[str, set[str]]:
    """Return the names at `/metrics`, each with its labels."""
    found: dict[str, set[str]] = {
        own_figures.ALERTS: {"severity"},
        own_figures.FAULTY_RULES: set(),
        own_figures.DEVICES: {"profile", "online"},
        own_figures.ROLLOUTS: {"state"},
        own_figures.MESSAGES: {"kind"},
        own_figures.REFUSED: {"code"},
        own_figures.REJECTED: {"what"},
        own_figures.WAITING: set(),
        own_figures.CONNECTED: set(),
        own_figures.BUILD: {"version"},
    }
    assert found.keys() == own_figures.FIGURES.keys()
    for name, metric in METRICS.items():
        labels = {*metric.attributes, "device"}
        labels |= {"model"} if "release" in labels else set()
        gauges = families.gauge_names(name)
        names = gauges if metric.kind == "gauge" else [families.prometheus_name(name, metric.kind)]
        found |= dict.fromkeys(names, labels)
    return found


def board(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads(path.read_text())
    return loaded


def expressions(of: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in of["panels"] for target in panel.get("targets", ())]


each_board = pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)


def test_there_are_three_dashboards() -> None:
    assert [path.stem for path in BOARDS] == ["device", "fleet", "releases"]
    assert len({board(path)["uid"] for path in BOARDS}) == len(BOARDS)


@each_board
def test_a_dashboard_has_what_grafana_asks_for(path: Path) -> None:
    loaded = board(path)
    assert {"uid", "title", "schemaVersion", "panels", "templating", "time"} <= loaded.keys()
    assert loaded["schemaVersion"] <= NEWEST_SCHEMA
    assert "id" not in loaded, "that is of one Grafana"
    assert re.fullmatch(r"[a-zA-Z0-9_-]{1,40}", loaded["uid"])
    identifiers = [panel["id"] for panel in loaded["panels"]]
    assert len(set(identifiers)) == len(identifiers)
    for panel in loaded["panels"]:
        assert panel["type"] in KINDS
        assert panel["title"]
        if panel["type"] == "row":
            continue
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        references = [target["refId"] for target in panel["targets"]]
        assert references
        assert len(set(references)) == len(references)
        assert "unit" in panel["fieldConfig"]["defaults"]
    named = [variable["name"] for variable in loaded["templating"]["list"]]
    assert named[0] == "datasource"
    used = set(re.findall(r"\$(\w+)", json.dumps([expressions(loaded), loaded["templating"]])))
    assert used - {"__rate_interval", "__range"} <= set(named)


@each_board
def test_panels_do_not_overlap(path: Path) -> None:
    places = [panel["gridPos"] for panel in board(path)["panels"]]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= COLUMNS
        assert min(place["w"], place["h"]) > 0
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above, (one, other)


@each_board
def test_every_name_and_label_is_there(path: Path) -> None:
    loaded, names = board(path), exposed()
    queries = [variable.get("definition", "") for variable in loaded["templating"]["list"]]
    for text in [*expressions(loaded), *queries]:
        for name, _, selected in re.findall(r"\b(edgefleet_\w+)(\{([^}]*)\})?", text):
            assert name in names, text
            labels = set(re.findall(r"(\w+)=", selected))
            assert labels <= names[name], text
    for query in filter(None, queries):
        name, label = re.findall(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", query)[0]
        assert label in names[name]


@pytest.mark.skipif(PROMTOOL is None, reason="Prometheus is not installed")
def test_prometheus_parses_every_expression(tmp_path: Path) -> None:
    found = [text for path in BOARDS for text in expressions(board(path))]
    found += re.findall(r"(?s)```\n(histogram_quantile.*?)\n```", PAGE.read_text())
    assert len(found) > 60
    rules = []
    for number, text in enumerate(found):
        expression = text
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)
        assert "$" not in expression
        rules.append({"record": f"checked:{number}", "expr": expression})
    path = tmp_path / "rules.yml"
    path.write_text(json.dumps({"groups": [{"name": "dashboards", "rules": rules}]}))
    done = subprocess.run(
        [str(PROMTOOL), "check", "rules", str(path)],
        capture_output=True, text=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert f"SUCCESS: {len(found)} rules found" in done.stdout


def test_the_page_lists_what_there_is() -> None:
    text = PAGE.read_text()
    assert families.document() in text
    assert own_figures.document() in text


def test_the_page_lists_every_setting() -> None:
    text = PAGE.read_text()
    for config in (PrometheusConfig, OtlpConfig):
        for name in config.__struct_fields__:
            assert re.search(rf"(?m)^\| .*`{name}`", text), name

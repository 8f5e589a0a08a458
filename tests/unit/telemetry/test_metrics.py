"""The table of metrics is what agents report, and what the documents say."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from telemetry.limits import MAX_ATTRIBUTES, is_name
from telemetry.metrics import METRICS, OLD_NAMES, document, names_of

ROOT = Path(__file__).parents[3]
CONVENTIONS = ("hw.", "process.", "system.")
"""What OpenTelemetry's semantic conventions have names for."""

KINDS = {"observe": "histogram", "add": "sum", "gauge": "gauge"}
SOURCES = [*ROOT.glob("agent/**/*.py"), *ROOT.glob("telemetry/device/**/*.py")]


def constants() -> dict[str, set[str]]:
    """Return the texts that module-level names stand for, in any module."""
    found: dict[str, set[str]] = {}
    for path in SOURCES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.AnnAssign) and isinstance(node.value, ast.Constant):
                found.setdefault(ast.unparse(node.target), set()).add(str(node.value.value))
    return found


def reported() -> Iterator[tuple[str, str]]:
    """Yield the names and kinds of all that agents hand to a recorder."""
    known = constants()
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef):
                continue
            keys = {
                str(key.value)
                for node in ast.walk(function)
                if isinstance(node, ast.Dict)
                for key in node.keys
                if isinstance(key, ast.Constant)
            }
            for call in ast.walk(function):
                if (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr in KINDS
                    and ast.unparse(call.func.value).split("_")[-1] in {"recorder", "events"}
                ):
                    name, kind = call.args[0], KINDS[call.func.attr]
                    if isinstance(name, ast.Constant):
                        yield str(name.value), kind
                    elif ast.unparse(name) == "metric":  # from a table in the same function
                        yield from ((key, kind) for key in keys)
                    else:
                        yield from ((text, kind) for text in known[ast.unparse(name)])


def of_requests() -> Iterator[tuple[str, str]]:
    """Yield the names and kinds of what `request` takes: pairs of a name and a value."""
    for path in SOURCES:
        text = path.read_text()
        if "recorder.request(" not in text:
            continue
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Tuple) and len(node.elts) == 2:
                name = node.elts[0]
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    yield name.value, "sum" if name.value.endswith("_total") else "histogram"


def test_all_that_agents_report_is_in_the_table_and_nothing_else() -> None:
    attributes = {name for metric in METRICS.values() for name in metric.attributes}
    found = {
        (name, kind)
        for name, kind in chain(reported(), of_requests())
        if is_name(name) and name not in attributes
    }
    table = {(name, metric.kind) for name, metric in METRICS.items()}
    made_elsewhere = {("telemetry_dropped_total", "sum")}  # by the recorder itself
    assert table - made_elsewhere <= found
    assert {name for name, _ in found} <= METRICS.keys()


def test_names_say_kind_and_unit() -> None:
    endings = {"ms": "_ms", "Cel": "_c", "1": "_ratio", "s": "_s", "J": "_j"}
    for name, metric in METRICS.items():
        assert is_name(name)
        assert all(map(is_name, metric.attributes))
        assert len(metric.attributes) <= MAX_ATTRIBUTES
        if "." in name:
            assert name.startswith(CONVENTIONS), name
            continue
        assert name.endswith("_total") == (metric.kind == "sum"), name
        if metric.kind != "sum":
            ending = endings.get(metric.unit, f"_{metric.unit.strip('{}')}s")
            assert name.endswith(ending), name
        assert metric.meaning
        assert metric.meaning[-1] != "."


def test_old_names_are_names_of_metrics_no_more() -> None:
    for old, new in OLD_NAMES.items():
        assert old not in METRICS
        assert new in METRICS
        assert names_of(old) == names_of(new) == (new, old)
    assert names_of("inference_latency_ms") == ("inference_latency_ms",)
    assert names_of("unknown") == ("unknown",)


def test_the_document_has_the_table() -> None:
    assert document() in (ROOT / "docs" / "metrics.md").read_text()

"""The page of alerts says what is so: its files are rules, its table has every key and default."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import msgspec
import pytest

from controller.alert_settings import AlertsConfig, faults
from controller.services.alert_rules import checked
from controller.telemetry_settings import TelemetryConfig
from telemetry.server.alerts.judging import MAX_ALERTS
from telemetry.server.alerts.rules import KINDS, SILENT_DEVICES, BurnRate, OfMetric, Rule, Threshold
from telemetry.server.alerts.rules_file import MAX_RULES, MAX_SUMMARY_CHARS
from telemetry.server.levels import DAYS, HOURS, MINUTES
from wire.codec import convert
from wire.durations import DAY_S

PAGE = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text()
FILES = [tomllib.loads(text) for text in re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)]
NOT_OF_FIELDS = {"kind"}
KEPT = TelemetryConfig()
RETAINED = {
    MINUTES: KEPT.keep_minutes * DAY_S,
    HOURS: KEPT.keep_hours * DAY_S,
    DAYS: KEPT.keep_days * DAY_S,
}


def rows() -> dict[str, tuple[str, str]]:
    """Return for each key of the table of what it is, and its default."""
    found = {}
    table = PAGE.partition("| key | of | default |")[2].partition("\n\n")[0]
    for line in table.splitlines()[2:]:
        keys, of, default, _ = (cell.strip() for cell in line.strip("|").split("|"))
        names = re.findall(r"`(\w+)`", keys)
        defaults = re.findall(r"`([^`]+)`", default) if len(names) > 1 else [default] * len(names)
        for name, its in zip(names, defaults or [""] * len(names), strict=True):
            found[name] = (of, its.strip("`"))
    return found


def fields(kind: type[Rule]) -> dict[str, object]:
    return {field.encode_name: field.default for field in msgspec.structs.fields(kind)}


def test_the_files_of_the_page_are_rules_and_settings() -> None:
    off, example, settings = FILES
    (silent,) = checked(off, RETAINED)
    assert (silent.name, silent.enabled) == (SILENT_DEVICES.name, False)
    rules = checked(example, RETAINED)
    assert {type(rule) for rule in rules} == set(KINDS.values())
    for rule in rules:
        if isinstance(rule, Threshold) and rule.stat in {"max", "min"}:
            assert rule.for_s > rule.window_s, "one reading would fire"
    config = convert(settings["alerts"], AlertsConfig)
    assert list(faults(config)) == []
    assert (config.interval_s, config.repeat_s, config.history_days, config.enabled) == (
        AlertsConfig().interval_s, AlertsConfig().repeat_s, AlertsConfig().history_days, True,
    )  # fmt: skip
    commented = re.findall(r"(?m)^# (\w+) =", PAGE)
    assert set(settings["alerts"]) == set(AlertsConfig.__struct_fields__)
    assert {*config.webhooks[0].__struct_fields__} == {*settings["alerts"]["webhooks"][0]} | {
        *commented
    }


def test_the_table_has_every_key_and_no_other() -> None:
    known = {name for kind in KINDS.values() for name in fields(kind)}
    assert set(rows()) - NOT_OF_FIELDS == known


@pytest.mark.parametrize("name", sorted(set(rows()) - NOT_OF_FIELDS))
def test_a_key_is_of_the_kinds_that_the_table_names(name: str) -> None:
    of, _ = rows()[name]
    has = {kind for kind, struct in KINDS.items() if name in fields(struct)}
    if of.startswith("all"):
        assert has == set(KINDS)
        is_of_metrics = name in OfMetric.__struct_fields__ and name not in fields(Rule)
        assert is_of_metrics is (of == "all, with a metric")
    else:
        assert set(re.findall(r"`(\w+)`", of.partition(" with ")[0])) == has


@pytest.mark.parametrize(("kind", "struct"), KINDS.items())
def test_defaults_are_those_of_the_table(kind: str, struct: type[Rule]) -> None:
    for name, default in fields(struct).items():
        _, shown = rows()[name]
        if default is msgspec.NODEFAULT:
            is_of_others = ": " in shown and kind not in shown
            assert not shown or is_of_others, (kind, name)
        elif isinstance(default, bool | float | int) or (default and isinstance(default, str)):
            written = json.dumps(default).removesuffix(".0")
            assert written in re.split(r"`|; |: ", shown.replace("`", "")), (kind, name, shown)


def test_limits_are_those_of_the_code() -> None:
    burn = BurnRate(name="b", errors="e", total="t", objective=0.999)
    assert f"{burn.least_count} with `0.999` and `{burn.factor}`" in PAGE
    assert burn.limits.clear == pytest.approx(0.9 * burn.factor)
    assert f"Limits: {MAX_RULES} rules, and {MAX_ALERTS:,} alerts of one rule" in PAGE
    assert f"at most {MAX_SUMMARY_CHARS} characters" in PAGE
    assert SILENT_DEVICES.window == "15m"
    assert "\n15 minutes." in PAGE

from __future__ import annotations

from dataclasses import asdict

from controller.cli.answers import _only_devices
from controller.query_schemas import TelemetryQuestion
from controller.telemetry_schemas import TelemetryTable


def test_trends_of_a_few_of_many_devices_are_asked_for_those_alone() -> None:
    asked = TelemetryQuestion(metric="m", by="site,device", selector="arch=x86_64")
    table = TelemetryTable(
        columns=["site", "device", "max"],
        rows=[["a", "cam-2", 3], ["b", "cam-1", 2], ["b", "cam-2", 1]],
    )
    narrowed = _only_devices(asked, table)
    assert narrowed.selector == "arch=x86_64,id in (cam-1,cam-2)"
    assert asdict(narrowed) | {"selector": asked.selector} == asdict(asked)
    alone = TelemetryQuestion(metric="m", by="device")
    rows = TelemetryTable(columns=["device", "max"], rows=[["cam-1", 3]])
    assert _only_devices(alone, rows).selector == "id in (cam-1)"
    assert _only_devices(alone, TelemetryTable(columns=["device", "max"], rows=[])) == alone
    by_site = TelemetryQuestion(metric="m", by="site")
    assert (
        _only_devices(by_site, TelemetryTable(columns=["site", "max"], rows=[["a", 1]])) == by_site
    )

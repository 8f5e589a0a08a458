"""The agreement of the variant that serves is recorded over and over, of no other."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from agent.app.golden_figures import record_golden
from agent.install.records import ModelRecord
from telemetry.device.recorder import Recorder
from tests.simulators.packages import variant
from wire.clock import SystemClock
from wire.telemetry import GaugePoint

DIGEST = "a" * 64


def model(serving: str | None, **tested: float) -> Any:
    active = SimpleNamespace(
        digest=DIGEST, release="digits:2", variant=variant(serving) if serving else None
    )
    return SimpleNamespace(
        model_server=SimpleNamespace(active=active if serving else None),
        store=SimpleNamespace(state=ModelRecord(agreements={DIGEST: tested})),
    )


def test_only_what_serves_and_was_tested_is_recorded() -> None:
    recorder = Recorder(SystemClock())
    models = [model("best", best=0.75, small=1.0), model("small", best=0.5), model(None, best=0.5)]
    for _ in range(2):
        record_golden(models, recorder)
    (point,) = recorder.drain(whole=True)[0]
    assert isinstance(point, GaugePoint)
    assert (point.metric, point.count, point.least) == ("golden_agreement_ratio", 2, 0.75)
    assert point.attributes == {"release": "digits:2", "variant": "best"}

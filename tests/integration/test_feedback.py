"""Feedback from an application to a query: a real agent, its workers, and a store on SQLite."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import sqlalchemy as sa

from telemetry.device.recorder import Recorder
from telemetry.server import compare
from telemetry.server.alerts.answers import Answers
from telemetry.server.alerts.rules import Threshold
from telemetry.server.alerts.rules_file import checked_rules
from telemetry.server.query import run
from telemetry.server.question import Query
from telemetry.server.store import TelemetryStore
from tests.simulators.agent_process import (
    Controller,
    Device,
    X,
    bring_to_serve,
    null_package,
)
from tests.simulators.clock import FakeClock
from tests.simulators.endpoint_client import Client
from tests.simulators.patience import PATIENCE_S, until
from wire.messages import decode_message
from wire.presence import Hello
from wire.telemetry import TelemetryBatch
from wire.topics import parse_up

SECOND = null_package("2.0.0", names=("small",))
CLASSES = 4
DOCS: Final = Path(__file__).parents[2] / "docs"


class Application:
    """Asks the endpoint, and knows the truth."""

    def __init__(self, device: Device) -> None:
        self.client = Client(device)

    def infer(self, samples: int = 1, **named: str) -> tuple[str, list[int]]:
        """Ask; return the id of the answer and the class of each sample."""
        rows = X[:samples]
        tensor = {"name": "x", "datatype": "FP32", "shape": list(rows.shape)}
        document = {"inputs": [tensor | {"data": rows.ravel().tolist()}], **named}
        status, answer = self.client.ask("POST", "/v2/models/digits/infer", document)
        assert status == 200, answer
        scores = np.array(answer["outputs"][0]["data"]).reshape(samples, CLASSES)
        return answer["id"], scores.argmax(axis=1).tolist()

    def say(self, name: str, label: int | list[int]) -> tuple[int, Any]:
        kind = {"Content-Type": "application/json"}
        document = {"id": name, "label": label}
        return self.client.ask("POST", "/v2/models/digits/feedback", document, **kind)

    def counts(self, name: str, label: int | list[int]) -> bool:
        status, answer = self.say(name, label)
        assert status == 200, answer
        return bool(answer["counted"])


def accuracies(store: TelemetryStore, controller: Controller) -> dict[tuple[Any, ...], Any]:
    """Return the accuracy and the number of samples by release, variant and thermal band."""
    for heard in list(controller.heard):
        if parse_up(heard.topic).kind == "telemetry":
            store.ingest(decode_message(heard.payload, TelemetryBatch, packed=True))
    by = ("release", "variant", "thermal_band")
    asked = Query(metric="feedback_accuracy_ratio", statistics=("mean", "count"), group_by=by)
    return {tuple(row[:3]): tuple(row[3:]) for row in run(store, asked).rows}


def as_documented(client: Client) -> str:
    """Run the example of the document; return what it prints."""
    (code,) = re.findall(r"```python\n([^`]*/feedback[^`]*)```", (DOCS / "endpoint.md").read_text())
    code = code.replace("127.0.0.1:8500", "{}:{}".format(*client.address))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S, check=True
    )
    return done.stdout


@pytest.mark.broker
def test_accuracy_in_the_field_is_a_metric_and_each_answer_counts_once(
    device: Device, controller: Controller, tmp_path: Path
) -> None:
    with device.config_path.open("a") as file:
        file.write("[feedback]\nenabled = true\n")
    bring_to_serve(device, controller)
    application = Application(device)
    example = as_documented(application.client)
    assert example in {"right counted\n", "wrong counted\n"}
    is_right = example.startswith("right")

    named, (own,) = application.infer(id="frame-7")
    assert named == "frame-7"
    given, (ours,) = application.infer()
    batch, three = application.infer(3)
    late, _ = application.infer(id="late")
    assert len({named, given, batch, late}) == 4

    assert application.counts(named, own)
    assert application.counts(given, (ours + 1) % CLASSES)
    assert application.counts(batch, [three[0], three[1], (three[2] + 1) % CLASSES])
    assert not application.counts(batch, [three[0], three[1], (three[2] + 1) % CLASSES])
    assert application.say(given, ours)[0] == 409
    assert application.say("frame-8", 0)[0] == 404

    controller.desire(2, SECOND)
    assert controller.outcome(2).outcome == "succeeded"
    device.set_temperature_c(82)
    until(lambda: application.client.ask("GET", "/v2/health/advice")[1]["defer"], "the heat")
    hot, (ours,) = application.infer()
    assert application.counts(hot, ours)

    hellos = len(controller.all("hello", Hello))
    assert device.end(signal.SIGTERM) == 0
    device.start()
    until(lambda: len(controller.all("hello", Hello)) > hellos, "the agent again")
    application = Application(device)
    assert not application.counts(hot, ours), "it counted before the restart"
    assert application.say(named, (own + 1) % CLASSES)[0] == 409
    assert application.counts(late, own), "its release is gone, and it counts for that"

    engine = sa.create_engine(f"sqlite:///{tmp_path / 'telemetry.db'}")
    store = TelemetryStore(engine)
    store.create_all()
    expected = {
        ("digits:1.0.0", "best", "cool"): ((4 + is_right) / 7, 7.0),
        ("digits:2.0.0", "small", "hot"): (1.0, 1.0),
    }
    until(lambda: accuracies(store, controller) == expected, "what was counted")
    engine.dispose()


def test_releases_are_compared_and_alerts_judge_by_accuracy(tmp_path: Path) -> None:
    """Twelve devices: the first release is right 9 times of 10, the second 6 times."""
    clock = FakeClock()
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'telemetry.db'}")
    store = TelemetryStore(engine, clock)
    store.create_all()
    for number in range(12):
        recorder = Recorder(clock)
        for release, right in (("digits:1", 9), ("digits:2", 6)):
            attributes = {"release": release, "variant": "a", "thermal_band": "cool"}
            for at in range(10):
                recorder.observe("feedback_accuracy_ratio", float(at < right), attributes)
        points, _ = recorder.drain()
        store.ingest(TelemetryBatch(device=f"pi-{number}", boot_id="b", sequence=1, points=points))
    asked = Query(metric="feedback_accuracy_ratio", statistics=("mean",))
    found = compare.run(store, asked, "release", "digits:1", "digits:2")
    assert found.result.is_told
    assert (found.result.first, found.result.difference) == pytest.approx((0.9, -0.3))

    example = tomllib.loads(
        re.findall(r"(?s)```toml\n(.*?)```", (DOCS / "alerts.md").read_text())[1]
    )
    (rule,) = (rule for rule in checked_rules(example) if rule.name == "often-wrong")
    assert isinstance(rule, Threshold)
    answer = Answers(store).of_metric(rule, lambda query: query, clock.now_s() + 60)
    limits = rule.limits
    beyond = {group for group, value in answer.values.items() if value and limits.is_beyond(value)}
    assert (len(answer.values), beyond) == (2, {("digits:2",)})
    engine.dispose()

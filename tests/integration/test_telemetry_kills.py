"""A kill -9 of the agent loses less than a second of figures, and nothing counts twice."""

from __future__ import annotations

import http.client
import random
import signal
import time
from collections import Counter

import pytest

from agent.errors import ControlError
from telemetry.device.spool import Spool
from tests.simulators.agent_process import DEVICE, Controller, Device, bring_to_serve
from tests.simulators.patience import until
from wire.clock import SystemClock
from wire.messages import decode_message
from wire.telemetry import SumPoint, TelemetryBatch
from wire.topics import parse_up

pytestmark = pytest.mark.broker

KILLS = 2
LOST_S = 1.0


class Client:
    """Counts its own answers, and when each came."""

    def __init__(self) -> None:
        self.answered_s: list[float] = []

    def ask_for(self, device: Device, address: str, duration_s: float) -> None:
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s:
            device.infer(address)
            self.answered_s.append(time.monotonic())


def endpoint(device: Device) -> str | None:
    """Return where a device answers; None as long as it does not."""
    try:
        status = device.ask("status")
        address = str(status["endpoint"])
        if status["variant"] is not None:
            device.infer(address)
            return address
    except (ControlError, OSError, http.client.HTTPException, AssertionError):
        pass
    return None


def counted(device: Device, controller: Controller) -> tuple[float, int]:
    """Return how many requests were counted, by the batches that came and those that wait."""
    heard = [
        decode_message(received.payload, TelemetryBatch, packed=True)
        for received in controller.heard
        if parse_up(received.topic).kind == "telemetry"
    ]
    state = device.config.state_dir / "telemetry.db"
    spool = Spool(
        state, device=DEVICE, boot_id="test", limit_bytes=2**24, clock=SystemClock()
    )  # as the next start of the agent does
    heard += [batch for batch, _ in spool.pending(1000)]
    spool.close()
    batches = {(batch.boot_id, batch.sequence): batch for batch in heard}
    points = [point for batch in batches.values() for point in batch.points]
    total = sum(
        point.value
        for point in points
        if isinstance(point, SumPoint) and point.metric == "inference_runs_total"
    )
    return total, len(batches)


@pytest.mark.parametrize("interval_s", [0.3, 30.0])
def test_kills_lose_less_than_a_second_and_count_nothing_twice(
    device: Device, controller: Controller, interval_s: float
) -> None:
    config = device.config_path.read_text()
    device.config_path.write_text(
        config.replace("telemetry_interval_s = 0.2", f"telemetry_interval_s = {interval_s}")
    )
    bring_to_serve(device, controller)
    client, chance, extra = Client(), random.Random(7), Counter[str]()
    lost_at_most = 0
    for _ in range(KILLS):
        address = until(lambda: endpoint(device), "answers")
        extra["asked by the wait"] += 1
        client.ask_for(device, address, 1.2 + chance.random())
        killed_s = time.monotonic()
        device.end(signal.SIGKILL)
        lost_at_most += sum(at_s >= killed_s - LOST_S for at_s in client.answered_s)
        device.start()
    until(lambda: endpoint(device), "answers")
    extra["asked by the wait"] += 1
    assert device.end(signal.SIGTERM) == 0

    answered = len(client.answered_s) + extra.total()
    total, batches = counted(device, controller)
    assert batches > KILLS
    assert answered - lost_at_most <= total <= answered, (total, answered, lost_at_most)

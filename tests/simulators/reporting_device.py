"""A device as far as telemetry goes: recorder, spool and pump, with a clock of its own."""

from __future__ import annotations

from pathlib import Path

from agent.link.connection import Link
from agent.link.controller_time import ControllerTime
from agent.link.identity import Account
from agent.link.outage import Outage
from agent.link.resending import Resending
from agent.link.telemetry import TelemetryPump
from telemetry.device.recorder import Recorder
from telemetry.device.spool import Spool
from tests.simulators.clock import FakeClock
from tests.simulators.transport import MemoryHub
from wire.messages import decode_message
from wire.reporting import ReportRequest
from wire.telemetry import TelemetryAck
from wire.topics import down_kind
from wire.transport import Received


class ReportingDevice:
    """One start of the agent.

    Args:
        hub: The broker.
        name: The device.
        directory: Where its spool is.
        start: Identifies the start.
        clock: The device's own; its steady clock is the monotonic one.
    """

    def __init__(
        self, hub: MemoryHub, name: str, directory: Path, start: str, clock: FakeClock
    ) -> None:
        self.clock = clock
        self.recorder = Recorder(clock)
        self.spool = Spool(
            directory / "spool.db", device=name, boot_id=start, limit_bytes=2**20, clock=clock
        )
        self.link = Link(name, start, Outage("here", self.recorder, clock))
        self.pump = TelemetryPump(
            name, recorder=self.recorder, spool=self.spool, link=self.link, clock=clock,
            interval_s=lambda: 60.0, resending=Resending(lambda: 0.5),
            time=ControllerTime(start, clock, clock.monotonic_s),
        )  # fmt: skip
        self._hub = hub

    def connect(self) -> None:
        self.link.open(
            lambda _login: self._hub.connect(),
            Account(client_id="c", username="u", password=None),
        )

    def count(self, number: int = 1) -> None:
        """Count some requests, and put them into the spool."""
        self.pump.tick()
        self.recorder.add("n_total", number, {})
        self.pump.collect()

    def hear(self) -> int:
        """Take what came; return how many batches are not stored yet."""
        while (received := self.link.next(0.01)) is not None:
            if not isinstance(received, Received):
                continue
            if down_kind(received.topic) == "telemetry_ack":
                self.pump.acknowledged(decode_message(received.payload, TelemetryAck))
            elif down_kind(received.topic) == "report_request":
                self.pump.report(decode_message(received.payload, ReportRequest))
        return len(self.spool.pending(1000))

    def end(self) -> None:
        self.link.close()
        self.pump.close()

"""One simulated device: it does over the real protocol what its agent would do.

Rules:
- One thread does all work of all devices; a device that waits leaves a timer. What comes from the
  broker waits in the queue of the link.
- What outlives a restart on a device outlives it here: the revision, the models, the install that
  was going on, and the telemetry that waits.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Final

from agent.install.desired import Known, check_revision, read_desired
from agent.link.connection import Link
from agent.link.enrolment import Connect
from agent.link.identity import Account
from agent.link.outage import Outage
from agent.simulate.body import Body
from agent.simulate.fate import Fate
from agent.simulate.figures import record_body, record_requests
from agent.simulate.installs import PATIENCE_S, Around, Installs
from agent.simulate.spool import MemorySpool
from telemetry.device.recorder import Recorder
from wire.codec import sha256_hex, to_json
from wire.delivery import Chunk, ChunkRequest
from wire.desired import WINDOWS
from wire.errors import FleetError
from wire.installs import InstallReport, Refusal
from wire.messages import decode_message
from wire.presence import Hello
from wire.simulation import Plan
from wire.telemetry import TelemetryAck
from wire.topics import down_kind, up
from wire.transport import Connection, Received
from wire.trust.root import Trust
from wire.version import VERSION

RESTART_S: Final = 3.0
UNTOLD_S: Final = 1.0
"""As `agent.app.messages`: a report of the install that an order begins comes within this time."""


class Device:
    """A simulated device.

    Args:
        name: Its identifier.
        number: Its place in the fleet, from which all that is drawn follows.
        plan: What is played.
        trust: The keys that may sign.
        around: The program.
    """

    def __init__(self, name: str, number: int, plan: Plan, trust: Trust, around: Around) -> None:
        self.name = name
        self._plan = plan
        self._trust = trust
        self._around = around
        self._clock = around.clock
        self._fate = fate = Fate(plan.seed, number, plan.faults)
        self._body = Body(fate, plan.profile, self._clock.now_s())
        self._recorder = Recorder(self._clock)
        first_boot = secrets.token_hex(8)
        self._spool = MemorySpool(name, first_boot, lambda: fate.draw("resending"))
        self._boot_id = first_boot
        self._installs = Installs(
            name, fate, plan, trust, recorder=self._recorder, road=self, around=around
        )
        self._link: Link | None = None
        """None while the device is off."""

        self._connect: Connect | None = None
        self._account: Account | None = None
        self._is_up = False
        self._is_off = False
        self._revision = 0
        self._measured_s = 0.0

    def begin(self, connect: Connect, account: Account) -> None:
        """Switch it on for the first time, once it is enrolled."""
        self._connect, self._account = connect, account
        self._measured_s = self._clock.now_s()
        self._around.after(self._fate.draw("phase") * self._plan.telemetry_s, self._measure)
        spells = self._fate.spells()
        first = next(spells, (True, 0.0))
        self._is_off = not first[0]
        if first[1]:
            self._around.after(first[1], lambda: self._turn(spells))
        if not self._is_off:
            self._on()

    def end(self) -> None:
        """Switch it off for good."""
        self._is_off = True
        self._off()

    def wake(self) -> None:
        """Take what has come from the broker."""
        link = self._link
        while link is not None and link is self._link and (item := link.next(0.0)) is not None:
            if isinstance(item, Connection):
                self._connection(item.up)
            else:
                self._around.tally.received += 1
                try:
                    self._received(item)
                except FleetError as exc:  # of one device, which must not end the others
                    self._around.tally.faults += 1
                    self._around.tally.last_fault = str(exc)

    def _turn(self, spells: Iterator[tuple[bool, float]]) -> None:
        """Go on or off, and on with the next spell."""
        is_on, for_s = next(spells)
        self._around.after(for_s, lambda: self._turn(spells))
        self._is_off = not is_on
        if is_on:
            self._on()
        else:
            self._off()

    def _on(self) -> None:
        if self._is_off or self._link is not None or self._connect is None:
            return
        assert self._account is not None  # noqa: S101 - it comes with the connection
        self._boot_id = secrets.token_hex(8)
        where = f"{self._plan.host}:{self._plan.port}"
        self._link = Link(self.name, self._boot_id, Outage(where, self._recorder, self._clock))
        self._link.open(self._connect, self._account)
        self._installs.on()

    def _off(self) -> None:
        self._installs.off()
        link, self._link = self._link, None
        self._connection(up=False)
        if link is not None:
            link.close()

    def tell(self, report: InstallReport) -> None:
        """Send a report."""
        if self._link is not None:
            self._link.tell(report)

    def ask(self, request: ChunkRequest) -> None:
        """Send a request for chunks."""
        if self._link is not None:
            topic = up(self.name, "chunk_request")
            self._link.publish(topic, to_json(request), int(PATIENCE_S))

    def restart(self) -> None:
        """Go off and on again."""
        self._off()
        self._around.after(RESTART_S / self._plan.speed, self._on)

    def _connection(self, up: bool) -> None:
        self._around.tally.online += int(up) - int(self._is_up)
        self._is_up = up
        if up and self._link is not None:
            self._link.greet(self._hello())
            self._send()
            self._installs.reconnected()

    def _received(self, received: Received) -> None:
        match down_kind(received.topic):
            case "desired":
                self._take_desired(received.payload)
            case "chunk":
                self._installs.take_chunk(decode_message(received.payload, Chunk, packed=True))
            case "telemetry_ack":
                ack = decode_message(received.payload, TelemetryAck)
                self._around.tally.batches_stored += self._spool.acknowledged(ack)
            case _:
                pass  # what only a real device can answer

    def _hello(self) -> Hello:
        models = self._installs.served()
        return Hello(
            device=self.name,
            boot_id=self._boot_id,
            agent_version=VERSION,
            profile=self._plan.profile,
            revision=self._revision,
            release=models[0].release if models else None,
            variant=models[0].variant if models else None,
            models=models,
            desired_form=WINDOWS,
            shadows=False,
        )

    def _take_desired(self, envelope: bytes) -> None:
        link = self._link
        if link is None:
            return
        try:
            desired = read_desired(envelope, self._trust, self.name)
            known = Known(floor=self._revision, lost=False, boot_id=self._boot_id)
            check_revision(desired, known)
        except FleetError as exc:
            refusal = Refusal(
                device=self.name,
                sha256=sha256_hex(envelope),
                error_code=exc.code,
                detail=exc.message[:300],
                at_s=self._clock.now_s(),
            )
            link.refuse(refusal)
            return
        self._revision = desired.revision
        self._installs.follow(desired)
        self._around.after(UNTOLD_S, self._tell_revision)

    def _tell_revision(self) -> None:
        """Greet if no report has told that the order was accepted."""
        link = self._link
        if link is not None and self._is_up and self._revision > link.told_revision:
            link.greet(self._hello())

    def _measure(self) -> None:
        """Record what a device measures, and send it."""
        self._around.after(self._plan.telemetry_s, self._measure)
        now_s = self._clock.now_s()
        span_s, self._measured_s = now_s - self._measured_s, now_s
        self._body.step(now_s)
        if self._link is None:
            return  # it is off
        record_body(self._recorder, self._body)
        for release, variant, is_first in self._installs.answering():
            record_requests(
                *(self._recorder, self._body, self._fate, (release, variant), span_s),
                is_first=is_first,
            )
        self._send()

    def _send(self) -> None:
        tally, lost = self._around.tally, self._spool.lost
        self._spool.collect(self._recorder)
        tally.batches_lost += self._spool.lost - lost
        link = self._link
        if link is None or not self._is_up:
            return
        topic = up(self.name, "telemetry")
        sent = self._spool.send(self._clock.monotonic_s(), lambda data: link.publish(topic, data))
        tally.batches_sent += sent

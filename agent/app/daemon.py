"""The agent: composes its parts, starts their threads, hears messages, stops in order.

Threads: this one owns the connection's messages, telemetry and the watchdog; one senses and adapts
once a second; one installs; one gets the device enrolled and ends; the endpoint, the control
socket and the transport have their own.

Rules:
- What served before a restart serves again before there is any network.
- A thread that fails in a way nobody foresaw stops the agent; systemd starts it again, and the
  install goes on from what was saved.
- SIGTERM ends everything, the workers too, within five seconds.
"""

from __future__ import annotations

import random
import signal
import threading
import traceback
from collections.abc import Callable
from typing import Final

from agent.app.assembly import Parts, assemble
from agent.app.config import AgentConfig, load_token
from agent.app.watchdog import ALIVE, READY, STOPPING, notify, watchdog_interval_s
from agent.errors import StoppedError
from agent.install.desired import check_revision, read_desired
from wire.codec import to_builtins
from wire.errors import FleetError
from wire.health import HealthSnapshot
from wire.messages import Chunk, DesiredState, Hello, PolicySpec, TelemetryAck, decode_message
from wire.topics import down_kind
from wire.transport import Connection, Received

HEAR_S: Final = 0.5
"""Longest wait for a message: a stop and the watchdog must not wait longer."""

JOIN_S: Final = 2.0
EVENTS_EVERY_S: Final = 1.0
"""Reasons do not wait for the figures: they must survive a power cut just after a switch."""

ENROL_RETRY_MIN_S: Final = 2.0
ENROL_RETRY_MAX_S: Final = 60.0


class Daemon:
    """The agent's process.

    Args:
        config: What the operator decided.

    Raises:
        FleetError: A file, the state directory, the endpoint or the control socket cannot be
            used.
    """

    def __init__(self, config: AgentConfig) -> None:
        self._config = config
        self._parts: Parts = assemble(config)
        self._failed = False
        self._threads: list[threading.Thread] = []
        self._telemetry_due_s = self._alive_due_s = self._events_due_s = float("-inf")
        self._alive_every_s = watchdog_interval_s()

    def run(self) -> int:
        """Run until told to stop.

        Returns:
            The exit code: 0 after a stop, 1 after a fault that nobody foresaw.
        """
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._parts.interrupts.stop())
        try:
            self._start()
            while not self._parts.interrupts.stopping:
                self._turn()
        finally:
            self._shut_down()
        return 1 if self._failed else 0

    def _start(self) -> None:
        parts = self._parts
        parts.endpoint.start()
        parts.control.start()
        self._tell("start", f"agent {parts.version} starts", {"boot_id": parts.boot_id})
        if parts.store.recovered:
            self._tell("start", "the state file was damaged and has been moved aside", {})
        self._restore()
        for name, body in (
            ("adapt", self._adapt),
            ("install", parts.installs.run),
            ("connect", self._connect),
        ):
            thread = threading.Thread(target=self._guarded(body), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        notify(READY)
        parts.log.write("ready", endpoint=parts.endpoint.address, serving=parts.adaptation.active())

    def _restore(self) -> None:
        """Serve what served before, under the policy and the pin that held then."""
        parts = self._parts
        record = parts.store.state
        parts.adaptation.pinned = record.pinned
        self._sense()
        try:
            if record.desired:
                desired = read_desired(record.desired, parts.trust, self._config.device)
                self._adopt(desired)
        except FleetError as exc:
            # Keys may have changed with the device's software; what serves is checked by itself.
            self._tell("refused", f"the kept desired state: {exc.message}", {"code": exc.code})
        try:
            parts.installer.restore()
        except FleetError as exc:
            self._tell("worker", f"nothing serves yet: {exc.message}", {"code": exc.code})

    def _turn(self) -> None:
        parts = self._parts
        try:
            item = parts.link.next(HEAR_S)
            if isinstance(item, Connection):
                self._changed(item)
            elif item is not None:
                self._heard(item)
            self._do_what_is_due()
        except FleetError as exc:
            parts.log.write("fault", code=exc.code, detail=exc.message)

    def _changed(self, connection: Connection) -> None:
        parts = self._parts
        parts.log.write("connection", up=connection.up, reason=connection.reason)
        if connection.refused:
            self._tell("refused", f"the broker refuses this device: {connection.reason}", {})
        if not connection.up:
            return
        release, variant = parts.adaptation.active()
        parts.link.greet(
            Hello(
                device=self._config.device,
                boot_id=parts.boot_id,
                agent_version=parts.version,
                profile=parts.profile,
                revision=parts.store.state.revision,
                release=release,
                variant=variant,
            )
        )
        self._telemetry_due_s = float("-inf")

    def _heard(self, received: Received) -> None:
        kind = down_kind(received.topic)
        if kind == "chunk":
            self._parts.fetcher.deliver(decode_message(received.payload, Chunk, packed=True))
        elif kind == "telemetry_ack":
            self._parts.pump.acknowledged(decode_message(received.payload, TelemetryAck))
        else:
            self._desired(received.payload)

    def _desired(self, envelope: bytes) -> None:
        parts = self._parts
        try:
            desired = read_desired(envelope, parts.trust, self._config.device)
            check_revision(desired, parts.installs.revision)
        except FleetError as exc:
            self._tell("refused", exc.message, {"code": exc.code, "what": "desired state"})
            return
        parts.log.write("desired", revision=desired.revision, rollout=desired.rollout)
        changed = self._adopt(desired)
        if changed:
            data = {"changed": changed, "revision": desired.revision}
            self._tell("policy", f"the controller set another policy: {desired.policy.kind}", data)
        parts.installs.offer(desired, envelope)

    def _adopt(self, desired: DesiredState) -> dict[str, object]:
        """Go by the controller's policy, unless this device has its own; return what is new."""
        if self._config.policy is not None:
            return {}
        adaptation = self._parts.adaptation
        before, adaptation.policy = adaptation.policy, desired.policy
        old, new = _settings(before), _settings(desired.policy)
        return {key: value for key, value in new.items() if value != old[key]}

    def _do_what_is_due(self) -> None:
        now_s = self._parts.clock.monotonic_s()
        if self._alive_every_s is not None and now_s >= self._alive_due_s:
            self._alive_due_s = now_s + self._alive_every_s
            notify(ALIVE)
        if now_s >= self._telemetry_due_s:
            self._telemetry_due_s = now_s + self._config.telemetry_interval_s
            self._parts.pump.collect()
            self._parts.pump.send()
        elif self._parts.recorder.holds_events and now_s >= self._events_due_s:
            self._events_due_s = now_s + EVENTS_EVERY_S
            self._parts.pump.collect()

    def _adapt(self) -> None:
        parts = self._parts
        while True:
            parts.interrupts.wait(self._config.sense_interval_s, abandon=False)
            parts.adaptation.tick(self._sense())

    def _sense(self) -> HealthSnapshot:
        health = self._parts.sensors.read()
        readings = {
            "temperature_c": health.temperature_c,
            "headroom_ratio": health.headroom,
            "battery_ratio": health.battery_ratio,
            "memory_available_bytes": health.memory_available_bytes,
        }
        for metric, value in readings.items():
            if value is not None:
                self._parts.recorder.gauge(metric, float(value), {})
        self._parts.adaptation.note(health)
        return health

    def _connect(self) -> None:
        parts = self._parts
        wait_s, told = ENROL_RETRY_MIN_S, ""
        while True:
            try:
                if not self._has_certificate:
                    parts.enrolment.ensure(load_token(self._config))
                break
            except StoppedError:
                raise
            except FleetError as exc:
                if exc.message != told:
                    # Said once: a device that waits for days must not push its reasons out.
                    self._tell("refused", f"not enrolled: {exc.message}", {"code": exc.code})
                told = exc.message
                jitter = random.SystemRandom().uniform(0.5, 1.0)
                parts.interrupts.wait(wait_s * jitter, abandon=False)
                wait_s = min(2 * wait_s, ENROL_RETRY_MAX_S)
        password = None if self._has_certificate else parts.identity.credentials.password
        parts.link.open(parts.connect, password)

    @property
    def _has_certificate(self) -> bool:
        """Whether a client certificate, and no password, says who this device is."""
        return self._config.broker.cert_file is not None

    def _tell(self, kind: str, reason: str, data: dict[str, object]) -> None:
        self._parts.events.event(kind, reason, data)

    def _guarded(self, body: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            try:
                body()
            except StoppedError:
                return
            except BaseException as exc:  # noqa: BLE001 - whatever it is, the agent must not go on
                self._failed = True
                trace = traceback.format_exc(limit=-5)
                self._parts.log.write("crash", error=repr(exc), trace=trace)
                self._parts.interrupts.stop()

        return run

    def _shut_down(self) -> None:
        parts = self._parts
        notify(STOPPING)
        parts.interrupts.stop()
        parts.log.write("stopping")
        parts.endpoint.stop()
        parts.model_server.stop()
        for thread in self._threads:
            thread.join(JOIN_S)
        # An install that was under way may have begun a worker meanwhile.
        parts.model_server.stop()
        parts.control.stop()
        parts.link.close()
        try:
            parts.pump.collect()
        except FleetError as exc:
            parts.log.write("fault", code=exc.code, detail=exc.message)
        parts.spool.close()
        parts.log.write("stopped")


def _settings(policy: PolicySpec) -> dict[str, object]:
    """Return all that a policy says, the default objective too."""
    plain: dict[str, object] = to_builtins(policy)
    plain.pop("objective", None)
    aim = to_builtins(policy.aim)
    return plain | {f"objective.{key}": value for key, value in aim.items()}

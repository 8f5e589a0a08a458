"""The agent's process: starts its threads, turns its loop, stops everything in order.

Threads: this one handles the connection's messages, telemetry and the watchdog; one senses and
adapts once a second; one for each model installs; one enrols the device and keeps it enrolled; one
lets models answer what could wait; the endpoint, the control socket and the transport have their
own.

Rules:
- What served before a restart serves again before there is any network.
- A thread that fails in a way nobody foresaw stops the agent; systemd starts it again, and the
  install goes on from what was saved.
- A file for TLS that cannot be used ends the agent at its start only if nothing serves: serving
  does not need it.
- SIGTERM ends everything, the workers too, within five seconds.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Final

from agent.app.assembly import assemble
from agent.app.broker import check_tls_files
from agent.app.config import AgentConfig
from agent.app.hooking import look_at_hooks
from agent.app.watchdog import READY, STOPPING, notify
from agent.errors import StoppedError
from wire.clock import Clock, SystemClock
from wire.errors import FleetError
from wire.stop_signals import on_stop_signal
from wire.version import VERSION

HEAR_S: Final = 0.5
"""Longest wait for a message: a stop and the watchdog must not wait longer."""

JOIN_S: Final = 2.0
NOTHING: Final = (None, None)
"""What serves when nothing does."""


class Daemon:
    """The agent's process.

    Args:
        config: What the operator decided.
        clock: The machine's by default.

    Raises:
        FleetError: A file, the state directory, the endpoint or the control socket cannot be
            used.
    """

    def __init__(self, config: AgentConfig, *, clock: Clock | None = None) -> None:
        self._config = config
        self._parts = assemble(config, clock or SystemClock())
        self._failed = False
        self._threads: list[threading.Thread] = []

    def run(self) -> int:
        """Run until told to stop.

        Returns:
            The exit code: 0 after a stop, 1 after a fault that nobody foresaw.

        Raises:
            ConfigError: Nothing serves, and a file for TLS with the broker cannot be used.
        """
        with on_stop_signal(self._parts.interrupts.stop):
            try:
                self._start()
                while not self._parts.interrupts.stopping:
                    self._turn()
            finally:
                self._shut_down()
        return 1 if self._failed else 0

    def _start(self) -> None:
        parts = self._parts
        parts.deferral.queue.load()
        if parts.feedback is not None:
            parts.feedback.load()
        parts.endpoint.start()
        if parts.control is not None:
            parts.control.start()
        parts.recorder.event("start", f"agent {VERSION} starts", {"boot_id": parts.boot_id})
        for fault in parts.faults:
            parts.recorder.event("storage", fault, {})
        look_at_hooks(self._config.hooks.directory, parts.recorder)
        parts.sensing.sense()
        serving = parts.desired_states.restore()
        if all(what == NOTHING for what in serving.values()):
            check_tls_files(self._config)
        for name, body in (
            ("adapt", parts.sensing.run),
            ("connect", parts.connector.run),
        ):
            thread = threading.Thread(target=self._guarded(body), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        parts.models.start(self._guarded)
        parts.deferral.start()
        if parts.grpc is not None:
            parts.grpc.start()
        notify(READY)
        parts.log.write("ready", endpoint=parts.endpoint.address, serving=serving)

    def _turn(self) -> None:
        parts = self._parts
        try:
            parts.messages.handle_next(HEAR_S)
            parts.watchdog.tick()
            parts.pump.tick()
            parts.capturing.tick()
        except FleetError as exc:
            parts.log.write("fault", code=exc.code, detail=exc.message)

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
        if parts.sharing is not None:
            parts.sharing.stop()
        parts.deferral.stop()
        if parts.grpc is not None:
            parts.grpc.stop()
        parts.endpoint.stop()
        parts.models.stop()
        parts.deferral.join()
        if parts.feedback is not None:
            parts.feedback.close()
        for thread in self._threads:
            thread.join(JOIN_S)
        parts.models.join(JOIN_S)
        parts.scrubber.close()
        if parts.metadata is not None:
            parts.metadata.note_time()
        # An install that was under way may have begun a worker meanwhile.
        parts.models.stop()
        if parts.control is not None:
            parts.control.stop()
        parts.link.close()
        try:
            parts.pump.close()
        except FleetError as exc:
            parts.log.write("fault", code=exc.code, detail=exc.message)
        parts.log.write("stopped")

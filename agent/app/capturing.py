"""Captures requests while a desired state asks for it; what does so is loaded only then.

Rules:
- A device whose configuration forbids it captures nothing, whatever it is asked, and removes what
  it has.
- Without a capture there is one comparison for each request, and nothing of it in memory.
"""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

from agent.app.config import AgentConfig
from agent.app.models import Model
from agent.link.connection import Link
from agent.log import Log
from agent.serve.answered import Answered
from telemetry.device.recorder import Recorder
from wire.capture import CaptureRule
from wire.clock import Clock

if TYPE_CHECKING:
    from agent.capture.sending import Sending
    from agent.capture.taking import Taking

DIRECTORY: Final = "captured"


class Capturing:
    """Takes, keeps and sends samples. `took` and `follow` are for any thread, the rest for one.

    Args:
        config: The configuration of this device.
        link: The connection to the controller.
        models: Returns the models, whose workers take samples.
        may_send: Tells whether telemetry has been sent.
        recorder: Where figures and events go.
        log: Takes a line where something is forbidden.
        clock: Time.
    """

    def __init__(
        self,
        config: AgentConfig,
        link: Link,
        *,
        models: Callable[[], Iterable[Model]],
        may_send: Callable[[], bool],
        recorder: Recorder,
        log: Log,
        clock: Clock,
    ) -> None:
        self._config = config
        self._link = link
        self._models = models
        self._may_send = may_send
        self._recorder = recorder
        self._log = log
        self._clock = clock
        self._directory = config.state_dir / DIRECTORY
        self._lock = threading.Lock()
        self._wanted: dict[str, CaptureRule] | None = None if config.capture.allow else {}
        """What the last desired state asks for, until it is followed. What is forbidden is removed
        even if no desired state can be read."""

        self._taking: Taking | None = None
        self._sending: Sending | None = None

    def follow(self, rules: Mapping[str, CaptureRule]) -> None:
        """Note what a desired state asks for; `tick` does it.

        Args:
            rules: Model to what is wanted of it; empty for nothing.
        """
        with self._lock:
            self._wanted = dict(rules)

    def took(self, answered: Answered) -> None:
        """Take note of what an answer brought."""
        if answered.captured is None and not answered.missed:
            return
        taking = self._taking
        if taking is not None:
            taking.took(answered)

    def tick(self) -> None:
        """Follow what is new, keep what was taken, and send it; called about once a second.

        Raises:
            FleetError: The disk refused.
        """
        with self._lock:
            wanted, self._wanted = self._wanted, None
        if wanted is not None:
            self._follow(wanted)
        if self._taking is None or self._sending is None:
            return
        try:
            self._taking.keep()
            self._sending.send()
        finally:
            for model in self._models():
                model.model_server.router.capture = self._taking.asked(model.name)

    def acknowledged(self, payload: bytes) -> None:
        """Take the controller's answer to a part of a sample.

        Raises:
            FleetError: It is malformed, or the disk refused.
        """
        if self._sending is not None:
            from wire.messages import decode_message
            from wire.samples import SampleAck

            self._sending.acknowledged(decode_message(payload, SampleAck))

    def connected(self) -> None:
        """Send soon what waits: there is a new connection."""
        if self._sending is not None:
            self._sending.hurry()

    def _follow(self, rules: Mapping[str, CaptureRule]) -> None:
        if not self._config.capture.allow:
            if rules:
                self._log.write("capture-forbidden", models=sorted(rules))
            rules = {}
        if not rules and self._taking is None:
            if self._directory.exists():
                with contextlib.suppress(OSError):  # the next start does it
                    shutil.rmtree(self._directory)
            return
        if self._taking is None:
            self._begin()
        if self._taking is not None:
            self._taking.follow(rules)

    def _begin(self) -> None:
        from agent.capture.sending import Sending
        from agent.capture.store import SampleStore
        from agent.capture.taking import Taking

        store = SampleStore(self._directory, self._config.capture.kept_bytes)
        store.load()
        taking = Taking(store, self._recorder, self._clock)
        self._sending = Sending(
            self._config.device,
            store=store,
            link=self._link,
            clock=self._clock,
            may_send=self._may_send,
            refused=lambda head: taking.refused(head, "refused"),
        )
        self._taking = taking

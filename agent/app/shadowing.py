"""Runs shadows while a desired state asks for them; what does so is loaded only then.

Rules:
- A device whose configuration forbids it runs none, whatever it is asked, and removes what it has.
- Without a shadow there is one comparison for each request, and nothing of it in memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from agent.app.config import AgentConfig, serving_settings
from agent.errors import StoppedError
from agent.install.slots import Slots
from agent.install.store import StateStore
from agent.interrupts import Interrupts
from agent.log import Log
from agent.select.adaptations import Adaptations
from agent.serve.router import Router
from telemetry.device.recorder import Recorder
from wire.clock import Clock, local_time
from wire.profile import DeviceProfile
from wire.shadow import ShadowRule
from wire.trust.root import Trust

if TYPE_CHECKING:
    from agent.install.fetch.fetcher import Fetcher
    from agent.shadow.shadows import Shadows


class ShadowParts(msgspec.Struct, frozen=True, kw_only=True):
    """What shadows need of the agent."""

    config: AgentConfig
    profile: DeviceProfile
    trust: Trust
    store: StateStore
    slots: Slots
    fetcher: Fetcher
    adaptations: Adaptations
    router: Callable[[str], Router | None]
    """Returns what answers requests for a model; None if the device has it no more."""

    installs: Callable[[], bool]
    """Tells whether an install is under way, or waits."""

    interrupts: Interrupts
    log: Log
    recorder: Recorder
    clock: Clock


class Shadowing:
    """The shadows of this device, if any is wanted. For any thread.

    Args:
        parts: What they need.
    """

    def __init__(self, parts: ShadowParts) -> None:
        self._parts = parts
        self._shadows: Shadows | None = None

    def follow(self, rules: Mapping[str, ShadowRule], *, has_sources: bool) -> None:
        """Run what a desired state asks for, and end all else; returns at once.

        Args:
            rules: Model to its shadow; empty for none.
            has_sources: Whether the controller has other sources than messages.
        """
        if rules and not self._parts.config.shadow.allow:
            self._parts.log.write("shadow-forbidden", models=sorted(rules))
            rules = {}
        if self._shadows is None:
            if not rules and not self._parts.slots.shadows():
                return
            self._shadows = _make(self._parts)
            self._shadows.follow(rules, has_sources=has_sources)
            threading.Thread(target=self._run, name="shadow", daemon=True).start()
        self._shadows.follow(rules, has_sources=has_sources)

    def make_room(self) -> int:
        """End what runs, for an install; returns the memory that it held, in bytes."""
        return self._shadows.make_room() if self._shadows is not None else 0

    @property
    def status(self) -> dict[str, str]:
        """By model: the release of its shadow, and what that does."""
        return self._shadows.status if self._shadows is not None else {}

    def _run(self) -> None:
        if self._shadows is not None:
            try:
                self._shadows.run()
            except StoppedError:
                return


def _make(parts: ShadowParts) -> Shadows:
    from agent.measure.package import Packages
    from agent.shadow.shadows import ShadowDevice, Shadows

    config, profile = parts.config, parts.profile
    serving = serving_settings(config, threads=profile.threads)
    return Shadows(
        ShadowDevice(
            profile=profile,
            trust=parts.trust,
            settings=config.shadow,
            install=config.install,
            limits=serving.limits,
            timeout_s=serving.infer_timeout_s,
            store=parts.store,
            slots=parts.slots,
            packages=Packages(
                profile,
                parts.trust,
                parts.slots,
                slots=parts.slots,
                is_busy=parts.installs,
                fetcher=parts.fetcher,
                interrupts=parts.interrupts,
            ),
            adaptations=parts.adaptations,
            router=parts.router,
            installs=parts.installs,
            local=local_time,
            interrupts=parts.interrupts,
            recorder=parts.recorder,
            clock=parts.clock,
        )
    )

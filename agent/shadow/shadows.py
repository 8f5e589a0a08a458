"""All shadows of this device: one thread brings, starts, asks and ends them.

Rules:
- What is wanted comes from a signed desired state alone.
- A package of a shadow lies with the others and has a link of its own: an install of the same
  release has nothing to fetch. It goes when it is not wanted any more, and when there is no room.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.errors import ShadowError, StorageError
from agent.install.conditions import ConditionSettings, low_battery, out_of_window
from agent.install.preflight import fitting
from agent.install.slots import Slots
from agent.install.store import StateStore
from agent.install.window import Local
from agent.interrupts import Interrupts
from agent.measure.package import Packages
from agent.packages import Package, open_package
from agent.ports import RecorderPort
from agent.select.adaptations import Adaptations
from agent.serve.router import Router
from agent.serve.settings import WorkerLimits
from agent.shadow.bounds import INSTALL, Hindrance, hindrance
from agent.shadow.settings import ShadowSettings
from agent.shadow.shadow import LOOK_S, Shadow
from wire.clock import Clock
from wire.package.variant import Variant
from wire.profile import DeviceProfile
from wire.shadow import ShadowRule
from wire.trust.root import Trust

CLEAN_AGAIN_S: Final = 60.0
NOT_WANTED: Final = "it is not wanted any more"


class ShadowDevice(msgspec.Struct, frozen=True, kw_only=True):
    """What shadows need of their device."""

    profile: DeviceProfile
    trust: Trust
    settings: ShadowSettings
    install: ConditionSettings
    """When packages may be fetched."""

    limits: WorkerLimits
    timeout_s: float
    store: StateStore
    slots: Slots
    packages: Packages
    adaptations: Adaptations
    router: Callable[[str], Router | None]
    """Returns what answers requests for a model; None if the device has it no more."""

    installs: Callable[[], bool]
    """Tells whether an install is under way, or waits."""

    local: Local
    """Converts wall time to what the clock on the wall shows."""

    interrupts: Interrupts
    recorder: RecorderPort
    clock: Clock


class Shadows:
    """The shadows of this device. `follow` and `make_room` are for any thread.

    Args:
        device: The device.
    """

    def __init__(self, device: ShadowDevice) -> None:
        self._device = device
        self._woken = threading.Event()
        self._wanted: tuple[Mapping[str, ShadowRule], bool] = ({}, False)
        self._shadows: dict[str, Shadow] = {}
        self._clean_s = 0.0
        device.interrupts.wake_on_stop(self._woken.set)

    def follow(self, rules: Mapping[str, ShadowRule], *, has_sources: bool) -> None:
        """Note what a desired state asks for; the thread does it.

        Args:
            rules: Model to its shadow; empty for none.
            has_sources: Whether the controller has other sources than messages.
        """
        self._wanted = (dict(rules), has_sources)
        self._woken.set()

    def make_room(self) -> int:
        """End all workers for an install; returns the memory that they held, in bytes."""
        return sum(shadow.put_down(INSTALL) for shadow in tuple(self._shadows.values()))

    @property
    def status(self) -> dict[str, str]:
        """By model: the release of its shadow, and what that does."""
        return {
            name: f"{shadow.release} {shadow.status}"
            for name, shadow in tuple(self._shadows.items())
        }

    def run(self) -> None:
        """Do all that is to be done, until the agent is stopped.

        Raises:
            StoppedError: The agent is being stopped.
        """
        device = self._device
        try:
            while True:
                device.interrupts.check(abandon=False)
                self._woken.clear()
                self._follow()
                rests = [shadow.step() for shadow in self._shadows.values()]
                if (rest_s := min(rests, default=LOOK_S)) > 0:
                    device.clock.wait(self._woken, rest_s)
        finally:
            for shadow in self._shadows.values():
                shadow.end("the agent stops")

    def router(self, model: str) -> Router | None:
        """Return what answers requests for a model; None if the device has it no more."""
        return self._device.router(model)

    def hindrance(self, *needs: Variant) -> Hindrance | None:
        """Return why no shadow may run now, if these must find room, too."""
        device, adaptations = self._device, self._device.adaptations
        return hindrance(
            adaptations.levers,
            adaptations.health,
            adaptations.policy,
            installs=device.installs(),
            needs=needs,
        )

    def bring(self, rule: ShadowRule, *, again: bool) -> tuple[Package, tuple[Variant, ...]]:
        """Bring the package of a shadow, and return it with its variants for this device.

        Args:
            rule: Which package.
            again: Whether what is damaged of it is fetched once more.

        Raises:
            StoppedError: The agent is being stopped.
            ShadowError: It may not be fetched now.
            FleetError: It does not come, or is not what was signed.
        """
        device, digest = self._device, rule.release.digest
        slot = device.slots.shadow_of(rule.release.name)
        if device.slots.has(digest) and not again:  # its worker compares the files
            with device.interrupts.turn():
                slot.switch(digest)
            package = open_package(device.slots.directory(digest), digest, device.trust)
            return package, fitting(package, device.profile)
        later = out_of_window(
            device.install.window, device.clock.now_s(), device.local
        ) or low_battery(device.install.min_battery_percent, device.adaptations.health)
        if later is not None:
            raise ShadowError(later.why)

        def keep(_package: Package) -> None:
            device.slots.stage(digest)
            slot.switch(digest)

        package, variants = device.packages.bring(
            rule.release, lambda: self._check(rule), has_sources=self._wanted[1], keep=keep
        )
        return msgspec.structs.replace(package, directory=device.slots.directory(digest)), variants

    def _check(self, rule: ShadowRule) -> None:
        """Raise an error if a package is not to be fetched any more.

        Raises:
            StoppedError: The agent is being stopped.
            ShadowError: It is not wanted any more.
        """
        self._device.interrupts.check(abandon=False)
        if self._wanted[0].get(rule.release.name) != rule:
            raise ShadowError(NOT_WANTED)

    def _follow(self) -> None:
        """End what is not wanted, and make what is."""
        device, wanted = self._device, self._wanted[0]
        for name, shadow in list(self._shadows.items()):
            if wanted.get(name) != shadow.rule:
                self._shadows.pop(name).end(NOT_WANTED)
        for name, rule in wanted.items():
            if name not in self._shadows:
                self._shadows[name] = Shadow(
                    name,
                    rule,
                    self,
                    device.settings,
                    limits=device.limits,
                    timeout_s=device.timeout_s,
                    recorder=device.recorder,
                    clock=device.clock,
                    wake=self._woken.set,
                )
        left = device.slots.shadows().keys() - wanted.keys()
        if left and device.clock.monotonic_s() >= self._clean_s and not device.installs():
            self._clean(left)

    def _clean(self, models: set[str]) -> None:
        """Remove the packages of shadows that are wanted no more, unless something else needs them.

        Raises:
            StoppedError: The agent is being stopped.
        """
        slots, store = self._device.slots, self._device.store
        self._clean_s = self._device.clock.monotonic_s() + CLEAN_AGAIN_S
        try:
            with self._device.interrupts.turn():
                for model in models:
                    slots.shadow_of(model).clear()
                kept = {*store.state.wanted, *slots.shadows().values(), slots.preloaded()}
                slots.collect(kept, keep_parts=True)
        except StorageError:
            return  # the next look does it

"""Makes the parts of one model from the configuration; nothing runs yet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from agent.app.config import AgentConfig
from agent.app.fetching import Fetching
from agent.app.hooking import put_hooks
from agent.app.models import Model
from agent.app.serving import make_serving
from agent.install.early import EarlyService
from agent.install.holding import Holding
from agent.install.installer import Installer, InstallSettings
from agent.install.mending import Mending
from agent.install.ports import Effects
from agent.install.scrub.scrubber import Scrubber
from agent.install.slots import Slots
from agent.install.store import ModelStore, StateStore
from agent.install.thread import Installs
from agent.install.trusting import TrustCondition, TrustedEffects
from agent.install.windowed import WindowCondition, WindowedEffects
from agent.install.workflow import Machine
from agent.interrupts import Interrupts
from agent.link.connection import Link
from agent.log import Log
from agent.packages import Damage
from agent.select.adaptations import Adaptations
from agent.serve.served import ServedModels
from agent.trust.keeper import MetadataTrust
from telemetry.device.recorder import Recorder
from wire.clock import Clock, local_time
from wire.profile import DeviceProfile
from wire.trust.root import Trust

if TYPE_CHECKING:
    from agent.install.hooks.override import Override


class ModelMaker(msgspec.Struct, frozen=True, kw_only=True):
    """What the parts of every model need of the device."""

    config: AgentConfig
    profile: DeviceProfile
    trust: Trust
    store: StateStore
    slots: Slots
    damage: Damage
    scrubber: Scrubber
    fetching: Fetching
    adaptations: Adaptations
    served: ServedModels
    override: Override | None
    make_room: Callable[[], int]
    """Ends what an install need not wait for; returns the memory that it held, in bytes."""

    link: Link
    interrupts: Interrupts
    log: Log
    recorder: Recorder
    clock: Clock

    def make(self, name: str) -> Model:
        """Make the parts of a model, and serve it at the endpoint as soon as something can.

        Args:
            name: Its name.

        Returns:
            The parts.
        """
        config, clock, recorder = self.config, self.clock, self.recorder
        interrupts = self.interrupts.of_model(name)
        store = ModelStore(self.store, name)
        model_server, adaptation = make_serving(
            config,
            self.profile,
            self.trust,
            self.slots,
            damage=self.damage,
            recorder=recorder,
            clock=clock,
        )
        installer = Installer(
            InstallSettings(profile=self.profile, trust=self.trust, confirm_s=config.confirm_s),
            store=store,
            slots=self.slots,
            fetcher=self.fetching.fetcher,
            adaptation=adaptation,
            early=EarlyService(
                adaptation,
                recorder,
                clock,
                allowed=config.install.early and config.hooks.directory is None,
            ),
            interrupts=interrupts,
            neighbours=lambda: self.adaptations.held_bytes(but=name),
            make_room=self.make_room,
        )
        trusting = self._trusting(installer, store, interrupts)
        hooked = put_hooks(
            config,
            trusting or installer,
            store,
            self.slots,
            log=self.log,
            recorder=recorder,
            interrupts=interrupts,
            health=lambda: adaptation.health,
            budgets=self.fetching.budgets,
            override=self.override,
            clock=clock,
        )
        windowed = self._windowed(hooked or trusting or installer, store, interrupts)
        machine = Machine(
            config.device,
            store,
            windowed,
            self.link,
            recorder,
            interrupts=interrupts,
            clock=clock,
            rng=random.Random(),  # noqa: S311 - jitter, not a secret
        )
        machine.arrivals = self.fetching.arrivals
        if trusting is not None:
            trusting.holding.on_wait = machine.tell_wait
        windowed.holding.on_wait = machine.tell_wait
        machine.slowness = lambda: self.fetching.slow.alone
        if hooked is not None:
            hooked.holding.on_wait = machine.report_running
            machine.on_end = hooked.end
        installs = Installs(
            machine,
            store,
            self.slots,
            interrupts,
            self.log,
            installer.remove,
            mending=Mending(
                self.profile,
                self.trust,
                store=store,
                slots=self.slots,
                fetcher=self.fetching.fetcher,
                damage=self.damage,
                events=recorder,
                interrupts=interrupts,
                clock=clock,
            ),
            idle=self.scrubber.work,
        )
        self.adaptations.add(name, adaptation)
        self.served.add(name, model_server.router, adaptation)
        return Model(
            name=name,
            store=store,
            model_server=model_server,
            adaptation=adaptation,
            installer=installer,
            hooked=hooked,
            machine=machine,
            installs=installs,
        )

    def _trusting(
        self, installer: Installer, store: ModelStore, interrupts: Interrupts
    ) -> TrustedEffects | None:
        """Return effects that wait for trusted metadata; None with a trust file."""
        if not isinstance(self.trust, MetadataTrust):
            return None
        holding = Holding(
            store=store,
            events=self.recorder,
            interrupts=interrupts,
            clock=self.clock,
            conditions=TrustCondition(self.trust, store, installer.current),
        )
        return TrustedEffects(installer, self.trust, store, holding, self.slots.whole)

    def _windowed(
        self, effects: Effects, store: ModelStore, interrupts: Interrupts
    ) -> WindowedEffects:
        """Return effects that wait for the windows of a rollout, outside of all others."""
        holding = Holding(
            store=store,
            events=self.recorder,
            interrupts=interrupts,
            clock=self.clock,
            conditions=WindowCondition(store, self.clock.now_s, local_time),
        )
        return WindowedEffects(effects, holding)

    def forget(self, model: Model) -> None:
        """Forget a model whose packages have been removed."""
        model.installs.end()
        self.served.remove(model.name)
        self.adaptations.remove(model.name)
        model.model_server.stop()
        self.recorder.event(
            "removed", f"model {model.name} is removed from this device", {"model": model.name}
        )

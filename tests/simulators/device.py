"""A device whose storage is real and whose power can be cut.

Everything of an install is as in production but the processes, the network and the time.

```
device = SimulatedDevice(tmp_path)
device.boot()
device.install(1, package)        # as if the controller had published it
device.hook = ...                 # raises PowerCut somewhere
```
"""

from __future__ import annotations

import io
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from pathlib import Path
from typing import Any

import msgspec

from agent.install.budget.boot import Boot
from agent.install.budget.budgets import Budgets
from agent.install.conditions import Conditions, ConditionSettings, Later
from agent.install.early import EarlyService
from agent.install.fetch.bounded import BoundedSource, bound_writes
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.local import LocalSource
from agent.install.fetch.messages import MessageSource
from agent.install.fetch.settings import DeliverySettings
from agent.install.holding import Holding
from agent.install.hooks.effects import HookedEffects
from agent.install.hooks.override import Override
from agent.install.hooks.runner import HookRunner
from agent.install.hooks.settings import HookSettings
from agent.install.installer import Installer, InstallSettings
from agent.install.mending import Mending
from agent.install.preload import Preload, Preloaded, Source
from agent.install.progress import Progress
from agent.install.records import ModelRecord
from agent.install.slots import Slots
from agent.install.states import State
from agent.install.store import FileStateStore, ModelStore
from agent.install.windowed import WindowCondition, WindowedEffects
from agent.install.workflow import Machine
from agent.interrupts import Interrupts
from agent.log import Log
from agent.packages import Damage, Package, SignedFiles, open_package
from agent.select.adaptation import Adaptation
from agent.select.meter import Meter
from agent.serve.benches import Benches
from tests.simulators.chunk_server import ChunkServer
from tests.simulators.clock import FakeClock
from tests.simulators.packages import PROFILE, TRUST, SignedPackage, desired
from tests.simulators.serving import FakeModelServer
from tests.simulators.transport import MemoryHub
from wire.codec import to_json
from wire.delivery import Chunk
from wire.desired import DesiredState, ModelState, desired_from_json
from wire.errors import FleetError
from wire.files import write_atomic
from wire.health import HealthSnapshot
from wire.installs import InstallReport, ReleaseRef
from wire.messages import decode_message
from wire.profile import DeviceProfile
from wire.progress import MQTT
from wire.topics import all_down, up
from wire.transport import Received

DEVICE = "dev-1"
FORWARD = [
    State.PREFLIGHT,
    State.FETCHING,
    State.VERIFYING,
    State.STAGING,
    State.PROBING,
    State.SWITCHING,
    State.CONFIRMING,
]
"""The states of an install that ends well, in their order."""
NO_HOOKS = HookSettings()
ANY_TIME = ConditionSettings()


class PowerCut(BaseException):
    """The device is off from here on."""


Hook = Callable[[str, State], None]


def nothing(_where: str, _state: State) -> None:
    """Let everything happen."""


class HookedStore(ModelStore):
    """The record of a model that may lose power before or after it is saved."""

    def __init__(
        self, files: FileStateStore, name: str, hook: Callable[[str, ModelRecord], None]
    ) -> None:
        super().__init__(files, name)
        self._hook = hook

    def update(self, **changes: Any) -> ModelRecord:
        self._hook("save", msgspec.structs.replace(self.state, **changes))
        saved = super().update(**changes)
        self._hook("saved", saved)
        return saved


class LogStream(io.StringIO):
    """A log that tells of each line."""

    def __init__(self, on_line: Callable[[], None]) -> None:
        super().__init__()
        self._on_line = on_line

    def write(self, text: str) -> int:
        written = super().write(text)
        if text == "\n":
            self._on_line()
        return written


class FragileEffects:
    """Effects that may fail before or after they are done."""

    def __init__(self, inner: Installer, hook: Hook) -> None:
        self._inner = inner
        self._hook = hook

    def perform(self, state: State, progress: Progress) -> None:
        self._hook("effect", state)
        self._inner.perform(state, progress)
        self._hook("effected", state)

    def serving(self) -> tuple[str | None, str | None]:
        return self._inner.serving()

    def current(self) -> str | None:
        return self._inner.current()

    def loss(self, digest: str) -> str | None:
        return self._inner.loss(digest)

    def serve_again(self, digest: str) -> str | None:
        return self._inner.serve_again(digest)

    def tidy(self) -> None:
        self._inner.tidy()


@dataclass
class Heard:
    """What the controller hears, and whether there is a road to it."""

    reports: list[InstallReport]
    events: list[tuple[str, str, Mapping[str, object]]]
    road: Iterator[bool] = field(default_factory=lambda: itertools.cycle([True]))
    """Whether there is a connection, each time that somebody asks."""

    figures: list[tuple[str, float, Mapping[str, str]]] = field(default_factory=list)
    on_tell: Callable[[InstallReport], None] = lambda _report: None

    def tell(self, report: InstallReport) -> None:
        self.reports.append(report)
        self.on_tell(report)

    def is_connected(self) -> bool:
        return next(self.road)

    def event(self, kind: str, reason: str, data: Mapping[str, object]) -> None:
        self.events.append((kind, reason, data))

    def add(self, metric: str, amount: float, attributes: Mapping[str, str]) -> None:
        """Take a figure."""
        self.figures.append((metric, amount, attributes))

    def observe(self, metric: str, value: float, attributes: Mapping[str, str]) -> None:
        """Take a figure."""
        self.figures.append((metric, value, attributes))

    @property
    def outcomes(self) -> list[InstallReport]:
        return [report for report in self.reports if report.outcome != "running"]


class SimulatedDevice:
    """A device that can be booted again and again from the same storage."""

    def __init__(
        self,
        root: Path,
        *,
        confirm_s: float = 2.0,
        profile: DeviceProfile = PROFILE,
        hooks: HookSettings = NO_HOOKS,
        conditions: ConditionSettings = ANY_TIME,
        zone: tzinfo = UTC,
        names: Sequence[str] = ("digits",),
    ) -> None:
        self.root = root
        self.windows: tuple[str, ...] = ()
        """Those of the rollouts whose packages it is offered."""

        self.names = tuple(names)
        """The models of the device; the parts of the first one are attributes of the device."""

        self.clock = FakeClock()
        self.hub = MemoryHub()
        self.heard = Heard([], [])
        self.confirm_s = confirm_s
        self.profile = profile
        self.hooks = hooks
        self.conditions = conditions
        self.zone = zone
        self.delivery = DeliverySettings()
        """What a boot takes for the settings of deliveries; of these, the budgets alone."""

        self.model_server: Callable[..., Any] = FakeModelServer
        """Makes what runs the workers at each boot; takes the arguments of the fake one."""

        self.log = Log(self.clock, LogStream(lambda: self.hook("logged", self.phase)))
        self.hook: Hook = nothing
        """Called with where it is (`save`, `saved`, `write FILE`, `written FILE`, `effect`,
        `effected`, `waits`, `logged`, or a call of the serving or `publish`) and the state."""

        self.served: list[bytes] = []
        self.bad_golden: set[str] = set()
        self.bad_load: set[str] = set()
        self.takes_ms: dict[str, float] = {}
        self.server = ChunkServer(self.hub.on("none", lambda _r: None))
        self.hub.on(up(DEVICE, "chunk_request"), self.server.hear)
        self.boots = 0
        self.phase = State.IDLE
        """The state of the last save that was begun."""

    def boot(self) -> None:
        """Start the agent's parts from what is on the storage, and serve what served."""
        self.boots += 1
        self.interrupts = Interrupts(self.clock)
        self.slots = Slots(self.root)
        self.files = FileStateStore(self.root, used=bool(self.slots.whole()), write=self._write)
        self.faults = self.files.faults
        transport = self.hub.connect()
        transport.subscribe(all_down(DEVICE))

        def publish(topic: str, payload: bytes, expiry_s: int | None) -> bool:
            self.hook("publish", self.phase)
            return transport.publish(topic, payload, expiry_s=expiry_s)

        self.transport = transport
        self.messages = MessageSource(DEVICE, publish, self.clock)
        self.budgets = Budgets(
            self.delivery.networks,
            self.delivery.write_bytes_per_day,
            self.root,
            self.root / "proc",
            self.heard,
            self.clock,
            Boot(str(self.boots), self.clock.monotonic_s),
            lambda at_s: datetime.fromtimestamp(at_s, self.zone),
            write=self._write,
        )
        budgets = self.budgets
        self.fetcher = Fetcher(
            (LocalSource(), BoundedSource(self.messages, budgets)),
            self.clock,
            bind=lambda errand: bound_writes(errand, budgets),
        )
        self.preload = Preload(
            self.profile,
            TRUST,
            slots=self.slots,
            store=self.files,
            check=lambda: self.interrupts.check(abandon=False),
        )
        self.override = Override(self.heard, self.clock)
        self.damage = Damage(self.heard)
        self.models = {name: SimulatedModel(self, name) for name in self.names}
        first = self.models[self.names[0]]
        self.slot, self.serving, self.adaptation = first.slot, first.serving, first.adaptation
        self.store, self.installer, self.hooked = first.store, first.installer, first.hooked
        self.machine, self.benches, self.mending = first.machine, first.benches, first.mending
        transport.start(self._deliver, lambda _connection: None)
        for model in self.models.values():
            try:
                model.installer.restore()
            except FleetError as exc:
                self.heard.event("worker", exc.message, {})

    def opened(self, digest: str) -> Package:
        """Return a package that is on the storage."""
        return open_package(self.slots.directory(digest), digest, TRUST)

    def hook_effect(self, where: str, state: State) -> None:
        self.hook(where, state)

    def install(self, revision: int, package: SignedPackage | None) -> None:
        """Offer a package and go on until idle."""
        if package is not None:
            self.server.add(*package.blobs)
        self.accept(revision, package)
        self.of(package).machine.run()

    def accept(
        self, revision: int, package: SignedPackage | ReleaseRef | None, **fields: Any
    ) -> None:
        """Accept a desired state with one model; what an install would do is not done."""
        state, envelope = desired(revision, package, device=DEVICE, **fields)
        self.files.accept(revision, envelope)
        model = msgspec.structs.replace(wanted(state), windows=self.windows or msgspec.UNSET)
        self.of(package).machine.accept(model, has_sources=state.has_sources is True)

    def of(self, package: SignedPackage | ReleaseRef | None) -> SimulatedModel:
        """Return the model of a package; the first one if there is none."""
        ref = package.ref if isinstance(package, SignedPackage) else package
        return self.models[self.names[0] if ref is None else ref.name]

    def hand_over(self, source: Source) -> Preloaded:
        """Store a package from a file."""
        return self.preload.store(source, self.preload.open(source))

    def lose_power(self) -> None:
        """Forget everything that is not on the storage."""
        self.transport.close()

    def reboot(self, times: int = 50) -> None:
        """Start again after a power cut, as often as it takes to be idle."""
        for _ in range(times):
            self.lose_power()
            try:
                self.boot()
                for model in self.models.values():
                    model.machine.run()
            except PowerCut:
                continue
            return
        raise AssertionError(f"not idle after {times} boots")

    def saving(self, where: str, record: ModelRecord) -> None:
        """Note that a record is being saved."""
        self.phase = record.state
        self.hook(where, record.state)

    def _write(self, path: Path, content: bytes) -> None:
        self.hook(f"write {path.name}", self.phase)
        write_atomic(path, content)
        self.hook(f"written {path.name}", self.phase)

    def _deliver(self, received: Received) -> None:
        if received.topic.endswith("/chunk"):
            self.budgets.came(len(received.payload))
            self.machine.arrivals.came(len(received.payload), MQTT)
            self.messages.deliver(decode_message(received.payload, Chunk, packed=True))


class SimulatedModel:
    """The parts of one model of a simulated device."""

    def __init__(self, device: SimulatedDevice, name: str) -> None:
        self.device = device
        self.slot = device.slots.of(name)
        self.store = HookedStore(device.files, name, device.saving)
        self.serving = device.model_server(
            hook=lambda call: device.hook(call, self.store.state.state),
            served=device.served,
            bad_golden=device.bad_golden,
            bad_load=device.bad_load,
            takes_ms=device.takes_ms,
        )
        self.serving.signed = SignedFiles(device.opened, device.damage)
        self.benches = Benches(device.clock)
        self.adaptation = Adaptation(
            self.serving,
            device.profile,
            Meter(device.clock),
            device.heard,
            device.clock,
            benches=self.benches,
            damage=device.damage,
        )
        self.adaptation.note(HealthSnapshot(at_s=0, headroom=0.1, memory_available_bytes=2**30))
        self.installer = Installer(
            InstallSettings(profile=device.profile, trust=TRUST, confirm_s=device.confirm_s),
            store=self.store,
            slots=device.slots,
            fetcher=device.fetcher,
            adaptation=self.adaptation,
            early=EarlyService(
                self.adaptation,
                device.heard,
                device.clock,
                allowed=device.conditions.early and device.hooks.directory is None,
            ),
            interrupts=device.interrupts,
        )
        holding = Holding(
            store=self.store,
            events=device.heard,
            interrupts=device.interrupts,
            clock=device.clock,
            conditions=Conditions(
                device.conditions,
                store=self.store,
                is_whole=device.slots.has,
                health=lambda: self.adaptation.health,
                now_s=device.clock.now_s,
                local=lambda at_s: datetime.fromtimestamp(at_s, device.zone),
            ),
            deferral=self._deferral,
            is_overridden=lambda: device.override.covers(self.store.install),
        )
        self.hooked = HookedEffects(
            FragileEffects(self.installer, device.hook_effect),
            runner=HookRunner(
                device.hooks,
                DEVICE,
                store=self.store,
                slots=device.slots,
                interrupts=device.interrupts,
                log=device.log,
                clock=device.clock,
            ),
            settings=device.hooks,
            override=device.override,
            store=self.store,
            events=device.heard,
            interrupts=device.interrupts,
            clock=device.clock,
            holding=holding,
            begin=self._begin,
        )
        self.windowed = WindowedEffects(
            self.hooked,
            Holding(
                store=self.store,
                events=device.heard,
                interrupts=device.interrupts,
                clock=device.clock,
                conditions=WindowCondition(
                    self.store,
                    device.clock.now_s,
                    lambda at_s: datetime.fromtimestamp(at_s, device.zone),
                ),
            ),
        )
        self.machine = Machine(
            DEVICE,
            self.store,
            self.windowed,
            device.heard,
            device.heard,
            interrupts=device.interrupts,
            clock=device.clock,
            rng=random.Random(1),
        )
        self.mending = Mending(
            device.profile,
            TRUST,
            store=self.store,
            slots=device.slots,
            fetcher=device.fetcher,
            damage=device.damage,
            events=device.heard,
            interrupts=device.interrupts,
            clock=device.clock,
        )
        holding.on_wait = self._waiting
        self.windowed.holding.on_wait = self._waiting
        self.machine.on_end = self.hooked.end

    def _begin(self) -> None:
        self.device.budgets.is_repair = lambda: self.store.state.repairing
        self.device.budgets.is_allowed = lambda: self.device.override.covers(self.store.install)

    def _deferral(self) -> Later | None:
        deferral = self.device.budgets.deferral()
        return Later(*deferral) if deferral is not None else None

    def _waiting(self, state: State, why: str) -> None:
        self.machine.report_running(state, why)
        self.device.hook("waits", state)


def wanted(state: DesiredState) -> ModelState:
    """Return what a desired state says of its model; of one without a release, of digits."""
    named = desired_from_json(to_json(state)).models
    return named[0] if named else ModelState(name="digits", revision=state.revision, release=None)

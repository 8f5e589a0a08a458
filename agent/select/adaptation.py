"""Chooses every second which variant of the package serves, and gives a reason for a change.

Rules:
- The new worker is ready before the old one loses its requests.
- One change at a time: an install and the selector wait for each other.
- Where a device has several models, one decision is made for all (`agent.select.adaptations`). A
  model that comes into service, or whose choice cannot start, is decided for alone at that moment.
- If memory cannot hold both workers, the old worker ends first; an event records how long no worker
  answered.
- `agent.select.bringing` does what was decided.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from agent.packages import Damage, Package
from agent.ports import ModelServerPort, Probed, RecorderPort
from agent.select.bringing import Bringing
from agent.select.deciding import Asking, Deciding, Loaded
from agent.select.decision_log import DecisionLog
from agent.select.decisions import Candidate, Decision
from agent.select.in_service import InService
from agent.select.learnt import Learnt
from agent.select.meter import Meter, Served
from agent.select.readings import possible
from agent.serve.advice import Advice
from agent.serve.benches import Benches
from wire.clock import Clock
from wire.health import HealthSnapshot
from wire.package.variant import Variant
from wire.policy import PolicySpec
from wire.profile import DeviceProfile


class Adaptation:
    """Keeps the variant in service that the policy chooses.

    Args:
        model_server: Runs the workers.
        profile: The profile of this device.
        meter: Counts the requests that the model server answers.
        recorder: Records switches and variants that cannot serve.
        clock: For dwell and benches.
        benches: Which variants rest, shared with the model server; None for new ones.
        damage: What was found damaged, shared with the model server; None for a new one.
        cpu_share: Share of the processor that one computing request takes.
    """

    def __init__(
        self,
        model_server: ModelServerPort,
        profile: DeviceProfile,
        meter: Meter,
        recorder: RecorderPort,
        clock: Clock,
        *,
        benches: Benches | None = None,
        damage: Damage | None = None,
        cpu_share: float = 1.0,
    ) -> None:
        self._model_server = model_server
        self._profile = profile
        self._meter = meter
        self._recorder = recorder
        self._lock = threading.RLock()
        self._benches = benches or Benches(clock)
        self._damage = damage or Damage(recorder)
        self._service = InService(self._benches, self._damage)
        self._deciding = Deciding(model_server, meter, self._benches, clock, cpu_share=cpu_share)
        self._bringing = Bringing(
            model_server,
            self._deciding,
            self._benches,
            recorder,
            DecisionLog(recorder, clock),
        )

    @property
    def policy(self) -> PolicySpec:
        """How the variant is chosen."""
        return self._deciding.policy

    @policy.setter
    def policy(self, policy: PolicySpec) -> None:
        self._deciding.policy = policy

    @property
    def pinned(self) -> str | None:
        """The variant that the operator pinned on this device."""
        return self._deciding.pinned

    @pinned.setter
    def pinned(self, name: str | None) -> None:
        self._deciding.pinned = name

    @property
    def health(self) -> HealthSnapshot:
        """The newest readings."""
        return self._deciding.health

    @property
    def decision(self) -> Decision | None:
        """The newest decision."""
        return self._deciding.last

    @property
    def learnt(self) -> Learnt:
        """What was learnt and may be kept over a restart."""
        return self._deciding.learnt

    def recall(self, learnt: Learnt) -> None:
        """Begin with what was learnt before a restart."""
        self._deciding.recall(learnt)

    def advice(self) -> Advice:
        """Return what applications should do now."""
        return self._deciding.advice(self.active()[1])

    def active(self) -> tuple[str | None, str | None]:
        """Return the digest of the package and the name of the variant that serve now."""
        active = self._model_server.active
        return (active.digest, active.variant.name) if active is not None else (None, None)

    @property
    def is_loaded(self) -> bool:
        """Whether a package has been put into service."""
        return self._service.loaded is not None

    @property
    def is_unloaded(self) -> bool:
        """Whether a client has unloaded it since."""
        return self._service.is_unloaded

    @property
    def rests(self) -> str:
        """Why what is in service does not answer, and need not; empty if it should answer."""
        return self._service.rests(self.decision)

    @property
    def version(self) -> str:
        """The version that is in service; empty if there is none."""
        package = self.package
        return package.manifest.version if package is not None else ""

    def unload(self) -> None:
        """End the workers; the package stays, and `load` or another install lets it serve again."""
        with self._lock:
            wanted = self._service.wanted
            if wanted is None:
                return
            self._service.is_unloaded = True
            self._model_server.withdraw(self.rests)
            data = {"release": wanted.package.release}
            self._recorder.event("unload", "a client unloaded the model", data)

    def load(self) -> None:
        """Let an unloaded model serve again.

        Raises:
            NoVariantError: No variant of it can serve now.
        """
        with self._lock:
            if not self._service.is_unloaded or self._service.loaded is None:
                return
            self._service.is_unloaded = False
            self._bringing.enter(self._service.loaded, "load")

    @property
    def held_bytes(self) -> int:
        """Memory that the workers hold; 0 if none serves."""
        return self._model_server.held_bytes

    def is_resting(self, digest: str) -> bool:
        """Tell whether a package is in service and does not answer because it is not meant to."""
        package = self.package
        return package is not None and package.digest == digest and bool(self.rests)

    def in_service(self) -> tuple[str | None, str | None]:
        """Return the digest of the package in service, and the variant that serves now.

        A package that rests, because a client unloaded it or it is parked, is in service.
        """
        digest, variant = self.active()
        package = self.package
        if digest is None and package is not None and self.is_resting(package.digest):
            digest = package.digest
        return digest, variant

    def served(self) -> Served:
        """Return the counts since the agent started: all requests, the active variant's answers."""
        return self._meter.served(self.active()[1])

    def declared_ms(self) -> float | None:
        """Return the latency that the variant in service declares."""
        active = self._model_server.active
        performance = active.variant.info.performance if active is not None else None
        return performance.latency_p50_ms if performance is not None else None

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the variants of the package in service, benched ones with the reason."""
        with self._lock:
            loaded = self._service.loaded
            return self._deciding.candidates(loaded) if loaded is not None else ()

    def serve(
        self,
        package: Package,
        dropped: Mapping[str, str],
        latencies_ms: Mapping[str, float],
        *,
        why: str,
        whole: bool = True,
    ) -> None:
        """Bring a package into service, with the variant that suits the device now.

        Args:
            package: The package; each worker compares the files that it loads.
            dropped: Variants that must not serve, and why.
            latencies_ms: Latencies measured on this device; other variants have declared ones.
            why: Reason for the event that records the switch.
            whole: Whether all its files for this device are here.

        Raises:
            NoVariantError: None of its variants can serve.
        """
        fitting = package.manifest.fitting(self._profile)
        loaded = Loaded(
            package=package,
            variants=tuple(v for v in fitting if v.name not in dropped),
            latencies_ms=latencies_ms,
            whole=whole,
        )
        with self._lock:
            if self._service.is_unloaded and self._service.is_same(package):
                # An install that goes back, or a repair: it stays unloaded.
                self._service.loaded = loaded
                return
            self._service.is_unloaded = False
            was_damaged = self._damage.of(package.digest) is not None
            # What serves may have been loaded from a file that has been replaced since.
            is_stale = self.active()[1] in self._damage.variants(package.digest)
            self._damage.forget(package.digest)
            if is_stale or self.active()[0] != package.digest or self._service.has_moved(package):
                self._bringing.enter(loaded, why)
            elif was_damaged:
                self._benches.clear()  # the variants whose files were damaged may be tried
            self._service.loaded = loaded

    @property
    def package(self) -> Package | None:
        """The package in service; None if there is none."""
        return self._service.package

    @property
    def partial(self) -> Loaded | None:
        """The package in service, if not all of it is here; None otherwise."""
        with self._lock:
            loaded = self._service.loaded
            return loaded if loaded is not None and not loaded.whole else None

    def withdraw(self) -> None:
        """Take the package out of service; no other package replaces it."""
        with self._lock:
            self._service.loaded = None
            self._model_server.withdraw()

    def keep_only(self, digests: Collection[str | None]) -> int:
        """End the version before, if it is loaded, unless its package is one of these.

        Args:
            digests: Digests of packages.

        Returns:
            The memory that it held, in bytes; 0 if it goes on or there is none.
        """
        return self._model_server.keep_only(digests)

    def probe(self, package: Package, variant: Variant) -> Probed:
        """Run the golden test of a variant in a new worker.

        Args:
            package: The package.
            variant: One of its variants.

        Returns:
            The result of the test.

        Raises:
            FleetError: The files differ from what was signed, or the worker does not start.
        """
        return self._model_server.probe(package.directory, package.digest, variant)

    def probe_active(self) -> Probed:
        """Run the golden test in the worker that serves; raises FleetError when it cannot."""
        return self._model_server.probe_active()

    def fault(self, digest: str) -> str | None:
        """Return the first fault of a package that should be serving, or None.

        Args:
            digest: Digest of the package.
        """
        active = self._model_server.active
        return self._service.fault(digest, active, rests=self.is_resting(digest))

    def loss(self, digest: str) -> str | None:
        """Return why a package does not serve whole, or None.

        Args:
            digest: Digest of the package that should serve.

        Returns:
            What is known: another package serves, none does, or a file of it is damaged. A worker
            that crashed or a variant that rests is no loss: the files are there.
        """
        with self._lock:
            return self._service.loss(digest)

    def note(self, health: HealthSnapshot) -> None:
        """Keep new readings for the next decision."""
        self._deciding.health = possible(health)

    def tick(self, health: HealthSnapshot) -> None:
        """Supervise the workers, choose a variant, and switch to it if another one serves.

        Args:
            health: The newest readings.
        """
        self.note(health)
        self.supervise()
        self.decide(health)

    def decide(self, health: HealthSnapshot) -> None:
        """Choose a variant, and switch to it if another one serves.

        Args:
            health: The newest readings.
        """
        self.note(health)
        with self._lock:
            wanted = self._service.wanted
            if wanted is not None:
                self._bringing.adapt(wanted)

    @property
    def is_calm(self) -> bool:
        """Whether nothing was asked since the last decision, which is done and still holds."""
        return self._service.wanted is None or self._deciding.is_calm(self.active()[1])

    def supervise(self) -> None:
        """Replace a worker that died."""
        self._model_server.supervise()

    def asked(self) -> Asking | None:
        """Return what a decision for all models needs of this one.

        What was counted since the last decision counts for this one: `follow` must come next.

        Returns:
            It; None if nothing is to serve, or an install changes what serves at this moment: the
            other models do not wait for that.
        """
        with self._at_once() as is_free:
            wanted = self._service.wanted
            if not is_free or wanted is None:
                return None
            return Asking(loaded=wanted, asked=self._deciding.asked(wanted))

    def follow(self, asking: Asking, decision: Decision) -> None:
        """Do what was decided for all models, unless an install changes what is in service.

        Args:
            asking: What `asked` returned.
            decision: The decision for this model.
        """
        with self._at_once() as is_free:
            if not is_free or self._service.wanted is not asking.loaded:
                return
            self._deciding.take(decision)
            if decision.parked:
                if self.active()[1] is not None:
                    self._bringing.park(asking.loaded, decision)
            elif not self._bringing.tried(asking.loaded, decision):
                self._bringing.adapt(asking.loaded)

    @contextmanager
    def _at_once(self) -> Iterator[bool]:
        """Yield whether no install changes what is in service; none does in the `with` block."""
        is_free = self._lock.acquire(blocking=False)
        try:
            yield is_free
        finally:
            if is_free:
                self._lock.release()

"""Fetches again what is damaged of the version before, so that it can be returned to.

The installed release has its own repair (`agent.install.workflow`), with states and reports. The
version before needs none: it does not serve, and a fleet need not know before it is needed.

Rules:
- Only while nothing is installed; a newer desired state or a package by hand goes first.
- Files alone are fetched again. Without its signed index nobody knows what to fetch.
- Each try waits twice as long as the one before, up to an hour.
"""

from __future__ import annotations

from agent.errors import InterjectedError, StoppedError, SupersededError
from agent.install.bringing import Bringer
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.local import LocalPackages
from agent.install.fetch.part import Blob
from agent.install.fetch.sources import Errand
from agent.install.repair_pace import REPAIR_MAX_S, REPAIR_MIN_S
from agent.install.slots import Slots
from agent.install.states import State
from agent.install.store import ModelStore
from agent.interrupts import Interrupts
from agent.package_files import is_intact
from agent.packages import Damage, Package, open_package
from agent.ports import RecorderPort
from wire.clock import Clock
from wire.errors import FleetError
from wire.profile import DeviceProfile
from wire.trust.root import Trust


class Mending:
    """Mends the version before of one model.

    Args:
        profile: The profile of this device.
        trust: The keys that may sign packages.
        store: Knows which version that is.
        slots: Where packages are.
        fetcher: Fetches blobs.
        damage: Knows what is damaged.
        events: Takes an event when it is mended, or cannot be.
        interrupts: Those of the model.
        clock: For the rests between two tries.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it connects
        self,
        profile: DeviceProfile,
        trust: Trust,
        *,
        store: ModelStore,
        slots: Slots,
        fetcher: Fetcher,
        damage: Damage,
        events: RecorderPort,
        interrupts: Interrupts,
        clock: Clock,
    ) -> None:
        self._profile = profile
        self._trust = trust
        self._store = store
        self._slots = slots
        self._fetcher = fetcher
        self._bringer = Bringer(fetcher, trust, slots.parts)
        self._damage = damage
        self._events = events
        self._interrupts = interrupts
        self._clock = clock
        self._tried_s = float("-inf")
        self._rest_s = REPAIR_MIN_S
        self._told = ""

    def is_due(self) -> bool:
        """Tell whether something is to be mended now."""
        if self._damaged() is None:
            self._rest_s, self._told = REPAIR_MIN_S, ""
            return False
        return self._clock.monotonic_s() - self._tried_s >= self._rest_s

    def run(self) -> None:
        """Mend what is damaged, if it is time.

        Raises:
            StoppedError: The agent is being stopped.
        """
        digest = self._damaged()
        if digest is None or not self.is_due():
            return
        try:
            with self._interrupts.turn(abandon=True):
                package = self._mended(digest)
        except StoppedError:
            raise
        except (SupersededError, InterjectedError):
            return  # what goes first may have made an end of it
        except FleetError as exc:
            self._tell_failure(digest, exc)
        else:
            self._damage.forget(digest)
            self._events.event("damage", f"{package.release} is whole again", {"package": digest})
        self._tried_s = self._clock.monotonic_s()
        self._rest_s = min(2 * self._rest_s, REPAIR_MAX_S)

    def _damaged(self) -> str | None:
        """Return the digest of the version before, if it is damaged and nothing is installed."""
        record = self._store.state
        digest, target = record.previous, record.target
        if digest is None or record.state is not State.IDLE:
            return None
        if (target is not None and target.digest == digest) or not self._slots.has(digest):
            return None
        return digest if self._damage.of(digest) is not None else None

    def _mended(self, digest: str) -> Package:
        """Fetch what is damaged, and compare all of it.

        Raises:
            FleetError: The index cannot be used, or a file does not come.
        """
        package = open_package(self._slots.directory(digest), digest, self._trust)
        variants = package.manifest.fitting(self._profile)
        lacking = [e for e in package.files(variants) if not is_intact(package.directory, e)]
        errand = Errand(
            check=lambda: self._interrupts.check(abandon=True),
            asks=self._store.state.has_sources,
            holdings=LocalPackages(
                [self._slots.directory(d) for d in self._slots.whole() if d != digest],
                self._trust,
                own=package.directory,
            ),
            blobs=tuple(dict.fromkeys(entry.sha256 for entry in lacking)),
        )
        try:
            for entry in lacking:
                blob = Blob.of_file(entry, package.index.chunk_bytes)
                self._bringer.bring(package.directory, entry, blob, errand)
        finally:
            self._fetcher.end()
        package.verify(variants)
        return package

    def _tell_failure(self, digest: str, fault: FleetError) -> None:
        if fault.message == self._told:
            return
        self._told = fault.message
        reason = f"the version before stays damaged for now: {fault.message}"
        self._events.event("damage", reason, {"package": digest, "code": fault.code})

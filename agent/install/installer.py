"""Carries out the states of an install. Carrying out a state twice is safe.

Rules:
- No package is activated before it is verified: the signature of the index, then every file's hash,
  and the hashes again before each start of a worker.
- The previous package serves until the new one has passed its golden test on this device. It is
  kept until the new one has stayed healthy for `confirm_s`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from agent.errors import ConfirmError, DeferredError, RefusedError
from agent.install.bringing import Bringer
from agent.install.early import EarlyService
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.part import Blob
from agent.install.fetch.sources import Errand
from agent.install.lacking import lacking_files
from agent.install.model_packages import ModelPackages
from agent.install.preflight import check_memory, check_storage, fitting, reserved_bytes
from agent.install.probing import Prober
from agent.install.progress import Progress
from agent.install.slots import Slots
from agent.install.states import State, may_abandon
from agent.install.store import ModelStore
from agent.install.ways_back import is_bad
from agent.interrupts import Interrupts
from agent.select.adaptation import Adaptation
from wire.errors import TransportError
from wire.installs import ReleaseRef
from wire.profile import DeviceProfile
from wire.progress import FILE, LOCAL
from wire.trust.root import Trust

CONFIRM_POLL_S: Final = 0.5


class InstallSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of an install on this device."""

    profile: DeviceProfile
    trust: Trust
    confirm_s: float


class Installer:
    """The effects of the install workflow.

    Args:
        settings: The settings of this device.
        store: Knows what to install of the model, and remembers dropped variants.
        slots: Where packages are.
        fetcher: Fetches blobs.
        adaptation: Puts packages into service.
        early: Serves what is here while the rest comes.
        interrupts: Tells when an install must end.
        neighbours: Returns the memory that the other models of the device hold, in bytes.
        make_room: Ends what an install need not wait for; returns the memory that it held, in
            bytes.
    """

    def __init__(  # noqa: PLR0913 - one parameter for each part that it connects
        self,
        settings: InstallSettings,
        *,
        store: ModelStore,
        slots: Slots,
        fetcher: Fetcher,
        adaptation: Adaptation,
        early: EarlyService,
        interrupts: Interrupts,
        neighbours: Callable[[], Mapping[str, int]] = dict,
        make_room: Callable[[], int] = lambda: 0,
    ) -> None:
        self._settings = settings
        self._profile = settings.profile
        self._store = store
        self._slots = slots
        self._packages = ModelPackages(settings.trust, store, slots, adaptation)
        self._fetcher = fetcher
        self._bringer = Bringer(fetcher, settings.trust, slots.parts)
        self._adaptation = adaptation
        self._early = early
        self._prober = Prober(adaptation, early)
        self._interrupts = interrupts
        self._neighbours = neighbours
        self._make_room = make_room
        self._abandon = False
        self._effects: dict[State, Callable[[ReleaseRef, Progress], None]] = {
            State.PREFLIGHT: self._preflight,
            State.FETCHING: self._fetch,
            State.VERIFYING: self._verify,
            State.STAGING: self._stage,
            State.PROBING: self._probe,
            State.SWITCHING: self._switch,
            State.CONFIRMING: self._confirm,
            State.REVERTING: self._revert,
        }

    def serving(self) -> tuple[str | None, str | None]:
        """Return the digest of the package in service and the variant that serves now."""
        return self._packages.serving()

    def current(self) -> str | None:
        """Return the digest of the package that serves after a restart."""
        return self._packages.current()

    def loss(self, digest: str) -> str | None:
        """Return why a package that should serve does not serve whole, or None."""
        return self._packages.loss(digest)

    def serve_again(self, digest: str) -> str | None:
        """Let an installed package serve that is ordered again; see `Effects.serve_again`."""
        return self._packages.serve_again(digest)

    def restore(self) -> None:
        """Serve again what served before a restart; raises FleetError if nothing can serve."""
        self._packages.restore()

    def tidy(self) -> None:
        """Remove what no model needs any more, if it can be removed now."""
        self._packages.tidy()

    def remove(self) -> None:
        """Take the model out of service, and remove what only it needs; twice is safe."""
        self._packages.remove()

    def perform(self, state: State, progress: Progress) -> None:
        """Do the effect of a state.

        Args:
            state: The state; not idle.
            progress: Takes how a fetch goes on.

        Raises:
            RefusedError: There is nothing to install.
            FleetError: The effect failed.
        """
        target = self._store.state.target
        if target is None:
            raise RefusedError("there is nothing to install")
        self._abandon = may_abandon(state)
        self._effects[state](target, progress)

    def _preflight(self, target: ReleaseRef, _progress: Progress) -> None:
        """Fetch the index and the manifest, and refuse a package that cannot run here."""
        self._check_storage(target.envelope_size_bytes)
        directory = self._slots.directory(target.digest)
        package = self._bringer.describe(target, directory, self._errand())
        variants = fitting(package, self._profile)
        # The version before the present one gives way to the next one.
        freed_bytes = self._adaptation.keep_only({package.digest, self._packages.linked()})
        freed_bytes += self._make_room()
        check_memory(
            package.release,
            variants,
            self._adaptation.health,
            self._neighbours(),
            freed_bytes=freed_bytes,
        )
        if self._store.is_alone:  # else another install needs its own
            self._slots.keep_parts({entry.sha256 for entry in package.index.files})
        lacking = lacking_files(package, variants, self._check)
        self._check_storage(sum(entry.size_bytes for entry in lacking))
        self._slots.settle(package.digest)

    def _fetch(self, target: ReleaseRef, progress: Progress) -> None:
        package = self._packages.open(target.digest)
        variants = fitting(package, self._profile)
        entries = package.files(variants)
        lacking = lacking_files(package, variants, self._check)
        total = sum(entry.size_bytes for entry in entries)
        by_hand = self._slots.preloaded() == target.digest
        here = total - sum(entry.size_bytes for entry in lacking)
        progress.begin(total, here, FILE if by_hand else LOCAL)

        def found(size_bytes: int) -> None:
            progress.came(size_bytes, LOCAL)

        windowed = bool(self._store.state.windows)
        early = self._early.during(package, variants, progress, allowed=not windowed)

        def check() -> None:
            self._check()
            early.look()

        errand = msgspec.structs.replace(
            self._errand(),
            check=check,
            progress=progress.came,
            found=found,
            holdings=self._packages.others(package.index),
            blobs=tuple(dict.fromkeys(entry.sha256 for entry in lacking)),
        )
        chunk_bytes = package.index.chunk_bytes
        try:
            for place, entry in enumerate(lacking):
                early.lacks(lacking[place:])
                blob = Blob.of_file(entry, chunk_bytes)
                self._bringer.bring(package.directory, entry, blob, errand)
        except (DeferredError, TransportError):
            early.look(waits=True)
            raise
        finally:
            self._fetcher.end()
        self._slots.settle(target.digest)

    def _verify(self, target: ReleaseRef, _progress: Progress) -> None:
        package = self._packages.open(target.digest)
        package.verify(fitting(package, self._profile))

    def _stage(self, target: ReleaseRef, _progress: Progress) -> None:
        self._slots.stage(target.digest)
        self._early.move(self._packages.open(target.digest))

    def _probe(self, target: ReleaseRef, _progress: Progress) -> None:
        package, digest = self._packages.open(target.digest), target.digest
        found = self._prober.probe(package, fitting(package, self._profile), self._check)
        record = self._store.state
        self._store.update(
            dropped={**record.dropped, digest: found.dropped},
            latencies_ms={**record.latencies_ms, digest: found.latencies_ms},
            agreements={**record.agreements, digest: found.agreements},
        )

    def _switch(self, target: ReleaseRef, _progress: Progress) -> None:
        self._packages.serve(
            target.digest, why="repair" if self._store.state.repairing else "install"
        )
        self._packages.keep_as_current(target.digest)

    def _confirm(self, target: ReleaseRef, _progress: Progress) -> None:
        rest_s = self._settings.confirm_s
        while True:
            fault = self._adaptation.fault(target.digest)
            if fault is not None:
                raise ConfirmError(fault)
            if rest_s <= 0:
                break
            self._interrupts.wait(min(rest_s, CONFIRM_POLL_S), abandon=False)
            rest_s -= CONFIRM_POLL_S
        probed = None
        if not self._adaptation.is_resting(target.digest):
            probed = self._adaptation.probe_active()
        if probed is not None and not probed.passed:
            raise ConfirmError(f"the golden test fails after the switch: {probed.detail}")
        self._packages.tidy()

    def _revert(self, target: ReleaseRef, _progress: Progress) -> None:
        record = self._store.state
        if is_bad(record) or not record.repairing:
            self._early.end(target.digest)
        if record.repairing:
            # What serves goes on, and what came of the package is kept for the next attempt.
            if self._packages.serving()[0] is None:
                self._packages.restore()
            return
        self._packages.go_back(record.previous, target.digest)
        if not record.abandoned:
            self._packages.clean(keep={record.previous})

    def _errand(self) -> Errand:
        return Errand(check=self._check, asks=self._store.state.has_sources)

    def _check(self) -> None:
        self._interrupts.check(abandon=self._abandon)

    def _check_storage(self, needed_bytes: int) -> None:
        check_storage(
            self._slots,
            needed_bytes=needed_bytes,
            allowed_bytes=self._profile.storage_bytes,
            keep=self._store.kept,
            reserved_bytes=reserved_bytes(
                self._store.elsewhere, self._slots, self._profile, self._settings.trust
            ),
            keep_parts=not self._store.is_alone,
        )

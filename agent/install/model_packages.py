"""The packages of one model on this device: which of them serves, which is kept, which goes.

Rules:
- The package before the one that serves is kept until an install is confirmed.
- A package that cannot be removed now is removed later; that is no failure.
"""

from __future__ import annotations

import contextlib

from agent.errors import StorageError
from agent.install.fetch.local import LocalPackages
from agent.install.records import has_failed, has_served
from agent.install.slots import Slots
from agent.install.store import ModelStore
from agent.install.ways_back import ways_back
from agent.packages import Package, open_package
from agent.select.adaptation import Adaptation
from wire.errors import FleetError
from wire.package.index import PackageIndex
from wire.trust.root import Trust


class ModelPackages:
    """What is installed of a model.

    Args:
        trust: The keys that may sign packages.
        store: Knows what was installed, and remembers dropped variants.
        slots: Where packages are.
        adaptation: Puts packages into service.
    """

    def __init__(
        self, trust: Trust, store: ModelStore, slots: Slots, adaptation: Adaptation
    ) -> None:
        self._trust = trust
        self._store = store
        self._slots = slots
        self._slot = slots.of(store.name)
        self._adaptation = adaptation

    def serving(self) -> tuple[str | None, str | None]:
        """Return the digest of the package in service and the variant that serves now."""
        return self._adaptation.in_service()

    def current(self) -> str | None:
        """Return the digest of the package that serves after a restart."""
        linked = self._slot.current()
        if linked is not None and has_failed(self._store.state, linked):
            linked = self._store.state.previous
        return linked or self._served()

    def linked(self) -> str | None:
        """Return the digest that the model's link names; None if that is lost, or there is none."""
        return self._slot.current()

    def loss(self, digest: str) -> str | None:
        """Return why a package that should serve does not serve whole, or None."""
        return self._adaptation.loss(digest)

    def serve_again(self, digest: str) -> str | None:
        """Let an installed package serve that is ordered again, also one that a client unloaded.

        Returns why it does not answer rightly, or None; runs its golden test.
        """
        if (loss := self._adaptation.loss(digest)) is not None:
            return loss
        try:
            self._adaptation.load()
            if self._adaptation.is_resting(digest):  # it is parked
                return None
            probed = self._adaptation.probe_active()
        except FleetError as exc:
            return exc.message
        return None if probed.passed else f"the golden test fails: {probed.detail}"

    def restore(self) -> None:
        """Serve again the package that served before a restart, or else the package before it.

        If `current` is lost, the record says what served. If `current` names a package whose
        install has failed, the way back was not written, and the package before goes first.
        `current` is made again if the storage can be written.

        Raises:
            FleetError: Neither can serve; this is the error of the first.
        """
        fault: FleetError | None = None
        linked = self._slot.current()
        for digest in ways_back(self._store.state, linked, self._served()):
            if not self._slots.has(digest):
                continue
            try:
                self.serve(digest, why="start")
            except FleetError as exc:
                fault = fault or exc
                continue
            is_lost = linked is None and digest == self._served()
            if is_lost or (linked is not None and has_failed(self._store.state, linked)):
                with contextlib.suppress(StorageError):
                    self._slot.switch(digest)
            return
        if fault is not None:
            raise fault

    def tidy(self) -> None:
        """Remove what no model needs any more, if it can be removed now."""
        self.clean(keep={self._store.state.previous})

    def remove(self) -> None:
        """Take the model out of service, and remove what only it needs; doing it twice is safe.

        Raises:
            StorageError: The storage failed.
        """
        self._adaptation.withdraw()
        self._adaptation.pinned = None
        self._slot.clear()
        self._collect(set())
        self._store.forget()  # last: until then a restart finds that there is something to remove

    def open(self, digest: str) -> Package:
        """Return a package that is on this device; raises FleetError if it is damaged."""
        return open_package(self._slots.directory(digest), digest, self._trust)

    def serve(self, digest: str, *, why: str) -> None:
        """Put a package into service, without the variants that failed their golden test.

        Args:
            digest: The package, which is on this device.
            why: Reason for the event that records the switch.

        Raises:
            FleetError: It is damaged, or none of its variants can serve.
        """
        record = self._store.state
        self._adaptation.serve(
            self.open(digest),
            record.dropped.get(digest, {}),
            record.latencies_ms.get(digest, {}),
            why=why,
        )

    def others(self, index: PackageIndex) -> LocalPackages:
        """Return what the other packages on this device have."""
        return LocalPackages(
            [self._slots.directory(d) for d in self._slots.whole() if d != index.digest],
            self._trust,
            own=self._slots.directory(index.digest),
        )

    def go_back(self, previous: str | None, rejected: str) -> None:
        """Serve again what served before an install; nothing, if there was nothing.

        Args:
            previous: The package that served before.
            rejected: The package that is not to serve.

        Raises:
            FleetError: It cannot serve, or the storage failed.
        """
        if previous is not None and self._slots.has(previous):
            self.serve(previous, why="revert")
            self._slot.switch(previous)
        elif self._slot.current() in {None, rejected}:
            self._adaptation.withdraw()
            self._slot.clear()

    def keep_as_current(self, digest: str) -> None:
        """Let a package serve after a restart, too; raises StorageError if that fails."""
        self._slot.switch(digest)

    def clean(self, keep: set[str | None]) -> None:
        """Remove what no model needs any more, if it can be removed now.

        Args:
            keep: What this model needs beside what serves of it.
        """
        kept = {*keep, self._slot.current()}
        self._adaptation.keep_only(kept)
        # A package that cannot be removed now is removed after the next install; it is no failure.
        with contextlib.suppress(StorageError):
            self._collect(keep)
        record = self._store.state
        with contextlib.suppress(StorageError):
            self._store.update(
                dropped={d: v for d, v in record.dropped.items() if d in kept},
                latencies_ms={d: v for d, v in record.latencies_ms.items() if d in kept},
                agreements={d: v for d, v in record.agreements.items() if d in kept},
            )

    def _served(self) -> str | None:
        """Return the digest of the installed release, if its package is whole."""
        record = self._store.state
        if record.target is None or not has_served(record):
            return None
        return record.target.digest if self._slots.has(record.target.digest) else None

    def _collect(self, keep: set[str | None]) -> None:
        """Remove the packages that nothing on this device needs.

        Args:
            keep: What this model needs beside what serves of it.

        Raises:
            StorageError: The storage failed.
        """
        elsewhere = {*self._store.kept_elsewhere, self._slots.preloaded()}
        self._slots.collect(
            {*keep, *elsewhere, *self._slots.shadows().values()},
            keep_parts=not self._store.is_alone,
        )

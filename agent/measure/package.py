"""Brings a package that no install brings, by the roads and with the checks of one.

It is to be measured, or to run as a shadow.

Rules:
- It fetches while no install does: one that comes ends it.
- What it fetches counts for the budgets of the networks and of the storage, and for the room that
  the profile gives to packages. Nothing that is installed is removed for it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

from agent.errors import MeasureError, StorageFullError
from agent.install.bringing import Bringer
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.local import LocalPackages
from agent.install.fetch.part import Blob
from agent.install.fetch.sources import Errand
from agent.install.preflight import FREE_MARGIN_BYTES, fitting
from agent.install.slots import Slots
from agent.interrupts import Interrupts
from agent.package_files import is_intact
from agent.packages import Package
from agent.trust.keeper import MetadataTrust
from wire.installs import ReleaseRef
from wire.package.variant import Variant
from wire.profile import DeviceProfile
from wire.trust.root import Trust

LIST_LOOKS: Final = 60
LIST_LOOK_S: Final = 1.0
"""How often, and in which steps, a device looks whether the list with a package has come."""


class Place(Protocol):
    """Where packages come."""

    @property
    def parts(self) -> Path:
        """Where files are that are partly here."""
        ...

    def directory(self, digest: str) -> Path:
        """Return the directory of a package."""
        ...


def _nothing(_package: Package) -> None:
    """Keep a package where it is."""


class Packages:
    """Brings packages to a place.

    Args:
        profile: This device, with the runtimes that are installed here.
        trust: The keys that may sign packages.
        place: Where they come.
        slots: What is installed: it gives files, and counts as used room.
        is_busy: Tells whether an install is under way, or waits.
        fetcher: Fetches blobs.
        interrupts: Lets one thread at a time fetch.
    """

    def __init__(
        self,
        profile: DeviceProfile,
        trust: Trust,
        place: Place,
        *,
        slots: Slots,
        is_busy: Callable[[], bool],
        fetcher: Fetcher,
        interrupts: Interrupts,
    ) -> None:
        self._profile = profile
        self._trust = trust
        self._place = place
        self._slots = slots
        self._is_busy = is_busy
        self._fetcher = fetcher
        self._interrupts = interrupts

    def bring(
        self,
        release: ReleaseRef,
        check: Callable[[], None],
        *,
        has_sources: bool,
        keep: Callable[[Package], None] = _nothing,
    ) -> tuple[Package, tuple[Variant, ...]]:
        """Bring a package, and verify every file that this device would run.

        Args:
            release: Which package.
            check: Called often; raises to end it.
            has_sources: Whether the controller has other sources than messages.
            keep: Called with the verified package, before any install goes on.

        Returns:
            The package, and its variants for this device.

        Raises:
            MeasureError: An install goes first.
            NoVariantError: No variant fits.
            StorageFullError: There is too little room.
            FleetError: It does not come, or is not what was signed.
        """
        found: list[tuple[Package, tuple[Variant, ...]]] = []

        def look() -> None:
            if self._is_busy():
                raise MeasureError("an install is under way, and goes first")
            check()

        def work() -> None:
            look()
            found.append(self._fetched(release, look, has_sources=has_sources))
            keep(found[0][0])

        look()  # what begins to wait would interrupt an install
        self._wait_for_its_list(release, look)
        self._interrupts.interject(work, look)
        return found[0]

    def _wait_for_its_list(self, release: ReleaseRef, look: Callable[[], None]) -> None:
        """Wait until trusted metadata lists the package; a list comes when it is needed.

        Raises:
            MeasureError: It does not come, or does not list the package.
            FleetError: `look` raised it.
        """
        if not isinstance(self._trust, MetadataTrust):
            return
        why = None
        for _ in range(LIST_LOOKS):
            why = self._trust.later(release.name, release.version, release.digest)
            if why is None:
                return
            look()
            self._interrupts.wait(LIST_LOOK_S, abandon=False)
        raise MeasureError(why or "the package is not listed")

    def _fetched(
        self, release: ReleaseRef, check: Callable[[], None], *, has_sources: bool
    ) -> tuple[Package, tuple[Variant, ...]]:
        directory = self._place.directory(release.digest)
        errand = Errand(
            check=check,
            asks=has_sources,
            holdings=LocalPackages(
                [self._slots.directory(digest) for digest in self._slots.whole()],
                self._trust,
                own=directory,
            ),
        )
        bringer = Bringer(self._fetcher, self._trust, self._place.parts)
        try:
            self._check_room(release.envelope_size_bytes)
            package = bringer.describe(release, directory, errand)
            variants = fitting(package, self._profile)
            lacking = [e for e in package.files(variants) if not is_intact(directory, e)]
            self._check_room(sum(entry.size_bytes for entry in lacking))
            for entry in lacking:
                blob = Blob.of_file(entry, package.index.chunk_bytes)
                bringer.bring(directory, entry, blob, errand)
        finally:
            self._fetcher.end()
        package.verify(variants)
        return package, variants

    def _check_room(self, needed_bytes: int) -> None:
        """Refuse what the storage cannot hold beside what is installed.

        Raises:
            StorageFullError: There is too little room.
        """
        free = self._slots.free_bytes() - FREE_MARGIN_BYTES
        left = min(free, self._profile.storage_bytes - self._slots.used_bytes())
        if needed_bytes > left:
            raise StorageFullError(
                f"the package needs {needed_bytes} bytes beside what is installed, but only "
                f"{max(left, 0)} are left",
                remedy="free some storage on the device, or raise storage_bytes in its profile",
            )

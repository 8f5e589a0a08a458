"""Serves the variant that is fetched first while the rest of its package comes.

Rules:
- Only where nothing serves: what serves goes on until the whole package has been proven.
- Only after the variant's golden test, and only if what lacks takes so long that it pays. A variant
  that fails the test ends the install now, as it would later, before more is fetched.
- Nothing is saved. The files say what is here, and `current` names this package only when the
  install has switched to it; so a restart and a newer release need no rule of their own.
- It never stands in the way of the install: it ends before something is said to fail beside it, and
  when the install fails.
- Where hooks or windows of the rollout may hold the later states, nothing serves before them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from agent.errors import GoldenError
from agent.install.progress import Progress
from agent.packages import Package
from agent.ports import RecorderPort
from agent.select.adaptation import Adaptation
from agent.select.decisions import candidate, preference
from wire.clock import Clock
from wire.errors import FleetError
from wire.package.index import FileEntry
from wire.package.variant import Variant

PAYS_S: Final = 10.0
"""The golden test takes some seconds, and the transfer waits meanwhile."""

SETTLED_S: Final = 5.0
"""A transfer begins slowly, so its first rate tells little of the rest."""

AGAIN_S: Final = 300.0
"""After this time a variant that could not start is tried again: memory may be free then."""

NOT_YET: Final = "has not been tested yet"


class EarlyService:
    """Serves what is here of a package that is being fetched.

    Args:
        adaptation: Puts packages into service.
        events: Takes an event when a variant cannot serve early.
        clock: For how long a fetch has taken.
        allowed: Whether it may do anything on this device.
    """

    def __init__(
        self, adaptation: Adaptation, events: RecorderPort, clock: Clock, *, allowed: bool
    ) -> None:
        self._adaptation = adaptation
        self._events = events
        self._clock = clock
        self._allowed = allowed
        self._failed_s = float("-inf")

    def during(
        self,
        package: Package,
        variants: Sequence[Variant],
        progress: Progress,
        *,
        allowed: bool = True,
    ) -> EarlyFetch:
        """Return what looks again and again while a package is fetched.

        Args:
            package: The package.
            variants: Its variants that fit this device.
            progress: How the fetch goes on.
            allowed: Whether this install may put something into service before it has ended.
        """
        name = preference(candidate(variant) for variant in variants)[0]
        first = next(variant for variant in variants if variant.name == name)
        others = tuple(variant.name for variant in variants if variant is not first)
        return EarlyFetch(self, package, first, others, progress, self._clock, allowed=allowed)

    def may(self) -> bool:
        """Tell whether a variant may be tried now."""
        rested_s = self._clock.monotonic_s() - self._failed_s
        return self._allowed and rested_s >= AGAIN_S and self._adaptation.active()[0] is None

    def serve(self, package: Package, first: Variant, others: Sequence[str]) -> None:
        """Test a variant, and serve it if it can be served now.

        Args:
            package: The package.
            first: The variant, whose files are here.
            others: Names of the others.

        Raises:
            GoldenError: It does not reproduce the reference's outputs.
        """
        try:
            probed = self._adaptation.probe(package, first)
            if probed.passed:
                latencies_ms = {} if probed.latency_ms is None else {first.name: probed.latency_ms}
                dropped = dict.fromkeys(others, NOT_YET)
                self._adaptation.serve(package, dropped, latencies_ms, why="early", whole=False)
        except FleetError as exc:  # the install finds out later whether that is a fault
            self._failed_s = self._clock.monotonic_s()
            data = {"variant": first.name, "release": package.release, "code": exc.code}
            self._events.event("worker", f"variant {first.name} cannot serve yet: {exc}", data)
            return
        if not probed.passed:
            raise GoldenError(f"variant {first.name} fails its golden test: {probed.detail}")

    def move(self, package: Package) -> None:
        """Go on from where the package has been moved to; its workers read their files there."""
        partial = self._adaptation.partial
        if partial is None or partial.package.digest != package.digest:
            return
        names = {variant.name for variant in partial.variants}
        others = {v.name: NOT_YET for v in package.manifest.variants if v.name not in names}
        try:
            self._adaptation.serve(package, others, partial.latencies_ms, why="moved", whole=False)
        except FleetError:
            self._adaptation.withdraw()

    def end(self, digest: str) -> bool:
        """Take a package out of service if it serves early; tell whether it did."""
        partial = self._adaptation.partial
        if partial is None or partial.package.digest != digest:
            return False
        self._adaptation.withdraw()
        return True


class EarlyFetch:
    """Looks whether the first variant of a package may serve.

    Args:
        service: Serves it.
        package: The package.
        first: The variant that is fetched first.
        others: Names of the others.
        progress: How the fetch goes on.
        clock: For how long it has taken.
        allowed: Whether it may serve at all.
    """

    def __init__(
        self,
        service: EarlyService,
        package: Package,
        first: Variant,
        others: Sequence[str],
        progress: Progress,
        clock: Clock,
        *,
        allowed: bool = True,
    ) -> None:
        self._allowed = allowed
        self._service = service
        self._package = package
        self._first = first
        self._others = others
        self._progress = progress
        self._clock = clock
        self._needed = {entry.path for entry in package.files((first,))}
        self._began_s = clock.monotonic_s()
        self._is_here = False

    def lacks(self, entries: Collection[FileEntry]) -> None:
        """Note which files are not here; all others are intact."""
        paths = {entry.path for entry in entries}
        self._is_here = bool(paths) and not self._needed & paths

    def look(self, *, waits: bool = False) -> None:
        """Serve the variant if it is here, nothing serves, and the rest takes long.

        Args:
            waits: Whether the fetch stops for a while, nobody knows how long.

        Raises:
            GoldenError: The variant does not reproduce the reference's outputs.
        """
        if not (self._allowed and self._is_here and self._service.may()):
            return
        taken_s, rest_s = self._clock.monotonic_s() - self._began_s, self._progress.rest_s
        if rest_s is None:  # what has taken long already may take as long again
            rest_s = taken_s
        if waits or (taken_s >= SETTLED_S and rest_s >= PAYS_S):
            self._service.serve(self._package, self._first, self._others)

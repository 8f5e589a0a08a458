"""Serves the variant that is fetched first while the rest of its package comes.

Rules:
- Only where nothing serves: what serves goes on until the whole package has been proven.
- Only after the variant's golden test, and only if what lacks takes so long that it pays. A variant
  that fails the test ends the install now, as it would later, before more is fetched.
- Nothing is saved. The files say what is here, and `current` names this package only when the
  install has switched to it; so a restart, a failure and a newer release need no rule of their own.
- Where hooks may hold the later states, nothing serves before them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from agent.errors import GoldenError
from agent.packages import Package
from agent.ports import RecorderPort
from agent.select.adaptation import Adaptation
from agent.select.decisions import candidate, preference
from wire.errors import FleetError
from wire.package.index import FileEntry
from wire.package.manifest import Variant

PAYS_S: Final = 10.0
"""The golden test takes some seconds, and the transfer waits meanwhile."""

NOT_YET: Final = "has not come yet"


class EarlyService:
    """Serves what is here of a package that is being fetched.

    Args:
        adaptation: Puts packages into service.
        events: Takes an event when a variant cannot serve early.
        allowed: Whether it may do anything on this device.
    """

    def __init__(self, adaptation: Adaptation, events: RecorderPort, *, allowed: bool) -> None:
        self._adaptation = adaptation
        self._events = events
        self._allowed = allowed
        self._failed: str | None = None
        """Digest of the package that cannot serve early, in this run of the agent."""

    def look(
        self,
        package: Package,
        variants: Sequence[Variant],
        lacking: Collection[FileEntry],
        rest_s: float,
    ) -> None:
        """Serve the preferred variant if nothing serves, it is here, and the rest takes long.

        Args:
            package: The package that is being fetched.
            variants: Its variants that fit this device.
            lacking: Its files that are not here; all others are intact.
            rest_s: The time that they will take.

        Raises:
            GoldenError: The variant does not reproduce the reference's outputs.
        """
        if not self._allowed or self._failed == package.digest or not lacking:
            return
        if self._adaptation.active()[0] is not None or rest_s < PAYS_S:
            return
        name = preference(candidate(variant) for variant in variants)[0]
        first = next(variant for variant in variants if variant.name == name)
        lacking_paths = {entry.path for entry in lacking}
        if any(entry.path in lacking_paths for entry in package.files((first,))):
            return
        try:
            self._serve(package, first, [each.name for each in variants])
        except GoldenError:
            raise
        except FleetError as exc:  # the install finds out later whether that is a fault
            self._failed = package.digest
            data = {"variant": name, "release": package.release, "code": exc.code}
            self._events.event("worker", f"variant {name} cannot serve yet: {exc.message}", data)

    def _serve(self, package: Package, first: Variant, names: Sequence[str]) -> None:
        """Test a variant and serve it.

        Raises:
            GoldenError: It does not reproduce the reference's outputs.
            FleetError: It cannot serve now.
        """
        probed = self._adaptation.probe(package, first)
        if not probed.passed:
            raise GoldenError(f"variant {first.name} fails its golden test: {probed.detail}")
        self._adaptation.serve(
            package,
            {name: NOT_YET for name in names if name != first.name},
            {} if probed.latency_ms is None else {first.name: probed.latency_ms},
            why="early",
            whole=False,
        )

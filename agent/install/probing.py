"""Runs the golden tests of a package that is to serve.

Rules:
- If the variant that this device prefers fails its golden test, the install fails. If another
  variant fails, it is dropped with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from agent.errors import GoldenError
from agent.install.early import EarlyService
from agent.packages import Package
from agent.ports import Probed
from agent.select.adaptation import Adaptation
from agent.select.decisions import candidate, preference
from wire.errors import FleetError
from wire.package.variant import Variant


class ProbedVariants(msgspec.Struct, frozen=True, kw_only=True):
    """What golden tests have shown, by variant."""

    dropped: dict[str, str] = {}
    """Why a variant is not to serve."""

    latencies_ms: dict[str, float] = {}
    agreements: dict[str, float] = {}


class Prober:
    """Probes the variants of a model's packages.

    Args:
        adaptation: Runs golden tests.
        early: Gives way where the memory does not hold two workers.
    """

    def __init__(self, adaptation: Adaptation, early: EarlyService) -> None:
        self._adaptation = adaptation
        self._early = early

    def probe(
        self, package: Package, variants: Sequence[Variant], check: Callable[[], None]
    ) -> ProbedVariants:
        """Run the golden tests of variants, first that of the one that is preferred.

        Args:
            package: Their package.
            variants: Those that can run here.
            check: Raises an error when the install must end.

        Raises:
            GoldenError: The first one fails its test.
            FleetError: The test of the first one cannot be run.
        """
        by_name = {variant.name: variant for variant in variants}
        found = ProbedVariants(dropped={}, latencies_ms={}, agreements={})
        for rank, name in enumerate(preference(map(candidate, variants))):
            check()
            try:
                probed = self._probed(package, by_name[name])
            except FleetError as exc:
                if rank == 0:
                    raise
                found.dropped[name] = exc.message
                continue
            if not probed.passed and rank == 0:
                raise GoldenError(f"variant {name} fails its golden test: {probed.detail}")
            if not probed.passed:
                found.dropped[name] = f"fails its golden test: {probed.detail}"
                continue
            found.agreements[name] = probed.agreement
            if probed.latency_ms is not None:
                found.latencies_ms[name] = probed.latency_ms
        return found

    def _probed(self, package: Package, variant: Variant) -> Probed:
        """Run the golden test of a variant.

        Raises:
            FleetError: It cannot be run.
        """
        try:
            return self._adaptation.probe(package, variant)
        except FleetError:
            # The memory may not hold two workers, and without early service there is one.
            if not self._early.end(package.digest):
                raise
            return self._adaptation.probe(package, variant)

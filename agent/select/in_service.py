"""The package that is to serve: whether it rests, moved, or does not serve as it should."""

from __future__ import annotations

from typing import Final

from agent.packages import Damage, Package
from agent.ports import ActiveVariant
from agent.select.deciding import Loaded
from agent.select.decisions import Decision
from agent.serve.benches import Benches

UNLOADED: Final = (
    "model {0} was unloaded by a client: POST /v2/repository/models/{0}/load loads it again, and "
    "so does a new release of it or a restart of the agent"
)


class InService:
    """What was put into service, and what became of it; for one thread at a time.

    Args:
        benches: Which variants rest.
        damage: What was found damaged.
    """

    def __init__(self, benches: Benches, damage: Damage) -> None:
        self._benches = benches
        self._damage = damage
        self.loaded: Loaded | None = None
        self.is_unloaded = False
        """Whether a client has unloaded it since."""

    @property
    def wanted(self) -> Loaded | None:
        """What is to serve; None for nothing, and for what a client unloaded."""
        return None if self.is_unloaded else self.loaded

    @property
    def package(self) -> Package | None:
        """The package; None if there is none."""
        loaded = self.loaded
        return loaded.package if loaded is not None else None

    def rests(self, decision: Decision | None) -> str:
        """Return why it does not answer, and need not; empty if it should answer.

        Args:
            decision: The newest one.
        """
        loaded = self.loaded
        if loaded is not None and self.is_unloaded:
            return UNLOADED.format(loaded.package.manifest.name)
        return decision.reason if decision is not None and decision.parked else ""

    def is_same(self, package: Package) -> bool:
        """Tell whether a package is the one in service, at the same place."""
        own = self.package
        is_it = own is not None and own.digest == package.digest
        return is_it and not self.has_moved(package)

    def has_moved(self, package: Package) -> bool:
        """Tell whether the workers read the files of a package at another place."""
        own = self.package
        return own is None or own.directory != package.directory

    def fault(self, digest: str, active: ActiveVariant | None, *, rests: bool) -> str | None:
        """Return what is wrong with a package that should be serving, or None.

        Args:
            digest: Digest of the package.
            active: What answers requests now.
            rests: Whether the package is in service and need not answer.
        """
        if active is None:
            return None if rests else "nothing serves"
        if active.digest != digest:
            return f"package {active.digest} serves instead"
        for name, reason in self._benches.of(digest, by_crashes=True).items():
            return f"variant {name} was benched: {reason}"
        return None

    def loss(self, digest: str) -> str | None:
        """Return why a package does not serve whole, or None.

        Args:
            digest: Digest of the package that should serve.
        """
        loaded = self.loaded
        if loaded is None:
            return "no package serves"
        if loaded.package.digest != digest:
            return f"{loaded.package.release} serves instead"
        if not loaded.whole:
            return f"not all of {loaded.package.release} has come"
        return self._damage.of(digest)

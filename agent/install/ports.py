"""What the install workflow needs of others: the effect of each state, and the controller's ear."""

from __future__ import annotations

from typing import Protocol

from agent.install.progress import Progress
from agent.install.states import State
from wire.installs import InstallReport


class Effects(Protocol):
    """The effect of each state. Doing it twice must be safe."""

    def perform(self, state: State, progress: Progress) -> None:
        """Do the effect of a state; it is done on return, and not done on a FleetError."""
        ...

    def serving(self) -> tuple[str | None, str | None]:
        """Return the digest of the package and the name of the variant that serve now."""
        ...

    def current(self) -> str | None:
        """Return the digest of the package that serves after a restart."""
        ...

    def loss(self, digest: str) -> str | None:
        """Return why a package that should serve does not serve whole, or None."""
        ...

    def serve_again(self, digest: str) -> str | None:
        """Let an installed package serve that is ordered again, also one that a client unloaded.

        Returns why it does not answer rightly, or None; runs its golden test.
        """
        ...

    def tidy(self) -> None:
        """Remove what no model needs any more, if it can be removed now."""
        ...


class ReportLink(Protocol):
    """The connection to the controller."""

    def tell(self, report: InstallReport) -> None:
        """Send a report. If it gets lost, the controller sends its desired state again."""
        ...

    def is_connected(self) -> bool:
        """Tell whether the broker is connected now."""
        ...

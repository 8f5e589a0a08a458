"""Which release runs as the shadow of the one that serves a model. Pure.

A shadow gets copies of some requests after they have been answered. It is compared with the release
that serves, and nothing that it answers reaches a client.

Rules:
- A rule comes only within a signed desired state. An agent that knows no shadows ignores it.
- Its release is checked, fetched and verified as one that is to serve.
"""

from __future__ import annotations

import msgspec

from wire.installs import ReleaseRef


class ShadowRule(msgspec.Struct, frozen=True, kw_only=True):
    """The release that runs beside the one that serves, and how much it sees."""

    release: ReleaseRef
    share: float = 0.01
    """The probability with which a request that was answered is copied to it."""

    def faults(self, model: str) -> tuple[str, ...]:
        """Return what is wrong, each as one line; empty if it can be.

        Args:
            model: The model that it is for.
        """
        release = self.release
        rules = (
            (
                release.name == model,
                f"shadow.release is of another model: {release.name[:64]}:{release.version[:64]}",
            ),
            (0.0 < self.share <= 1.0, "shadow.share is not above 0 and at most 1"),
        )
        return tuple(text for holds, text in rules if not holds)

"""Effects around other effects: whoever has a say in when they begin overrides `perform`."""

from __future__ import annotations

from agent.install.ports import Effects


class EffectsAround:
    """What serves is that of the effects inside.

    Args:
        effects: The effects inside.
    """

    def __init__(self, effects: Effects) -> None:
        self._effects = effects

    def serving(self) -> tuple[str | None, str | None]:
        """Return the digest of the package and the name of the variant that serve now."""
        return self._effects.serving()

    def current(self) -> str | None:
        """Return the digest of the package that serves after a restart."""
        return self._effects.current()

    def loss(self, digest: str) -> str | None:
        """Return why a package that should serve does not serve whole, or None."""
        return self._effects.loss(digest)

    def serve_again(self, digest: str) -> str | None:
        """Let an installed package serve again; return why it does not answer rightly, or None."""
        return self._effects.serve_again(digest)

    def tidy(self) -> None:
        """Remove what no model needs any more, if it can be removed now."""
        self._effects.tidy()

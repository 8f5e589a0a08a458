"""The codes with which the controller itself ends the part of a device in a rollout. Pure."""

from __future__ import annotations

from typing import Final

SILENT: Final = "controller.deadline"
"""It sent no report before its deadline."""

LOST: Final = "controller.lost"
"""It went offline when the release may have run on it, and did not come back."""

SUPERSEDED: Final = "controller.superseded"
"""Another rollout took it."""

EXCLUDED: Final = "controller.excluded"
"""The operator took it out: it does not come back."""

REPLACED: Final = "controller.replaced"
"""It had succeeded, and another device enrolled in its name."""

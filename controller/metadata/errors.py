"""What can be wrong with trusted metadata."""

from __future__ import annotations

from controller.errors import ControllerError


class MetadataError(ControllerError):
    """Metadata is malformed, does not follow what holds, or lacks signatures."""

    code = "controller.metadata"

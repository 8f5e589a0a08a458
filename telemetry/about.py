"""Which model an event is about. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_about(data: Mapping[str, Any], model: str | None) -> bool:
    """Tell whether an event is about a model, or about the device as a whole.

    Args:
        data: The data of the event.
        model: Name of the model; None for all.
    """
    if model is None:
        return True
    release = str(data.get("release") or "")
    named = data.get("model") or release.partition(":")[0]
    return not named or named == model

"""What may serve of a model after a restart or a failed install. Pure."""

from __future__ import annotations

from typing import Final

from agent.errors import ConfirmError, GoldenError
from agent.install.records import ModelRecord, has_failed

BAD: Final = frozenset({GoldenError.code, ConfirmError.code})
"""How an install fails if the package itself is bad."""


def is_bad(record: ModelRecord) -> bool:
    """Tell whether an install has failed by the package itself."""
    return record.failure is not None and record.failure.code in BAD


def ways_back(record: ModelRecord, linked: str | None, installed: str | None) -> list[str]:
    """Return the digests of what may serve after a restart, the first choice first.

    Args:
        record: What is saved of the model.
        linked: What its link names; None if that is lost.
        installed: The installed release, if its package is whole.
    """
    found = [linked, installed, record.previous]
    if linked is not None and has_failed(record, linked):
        found = [record.previous, *([] if is_bad(record) else [linked])]
    return [digest for digest in dict.fromkeys(found) if digest is not None]

"""The requests and answers of the HTTP API about trusted metadata."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from controller.schemas import Request

MAX_METADATA_CHARS = 256 * 1024
"""Of one file of trusted metadata."""


@dataclass(kw_only=True)
class MetadataSubmission(Request):
    """Files of trusted metadata, as they were signed."""

    __pydantic_config__: ClassVar[dict[str, object]] = {
        "extra": "forbid",
        "str_max_length": MAX_METADATA_CHARS,
    }

    files: dict[str, str]
    """By the name that TUF gives a file, without `.json`, such as `2.root`."""


@dataclass(kw_only=True)
class RoleState:
    """A role of trusted metadata."""

    role: str
    version: int | None
    """None for a role without a file of its own, such as the director."""

    expires_at_s: float | None
    threshold: int
    keys: list[str]
    """Names of the keys that may sign it."""

    releases: int | None = None
    """How many releases it lists; None if it lists none by its kind."""


@dataclass(kw_only=True)
class MetadataState:
    """What trusted metadata says, in short."""

    fleet: str
    roles: list[RoleState]
    fault: str = ""
    """Why the controller cannot sign what is newest, and what to do; empty if it can."""

    trust_file_devices: int = 0
    """How many devices trust keys in a trust file, and so nothing of this."""

    unknown_devices: int = 0
    """How many devices have not said yet which of both they trust."""

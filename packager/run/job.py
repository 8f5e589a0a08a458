"""What a build hands to a step's process, and where that leaves its result."""

from __future__ import annotations

from typing import Any, Final

import msgspec

RESULT_FILE: Final = "result.json"
FAILURE_FILE: Final = "failure.json"
FAILED: Final = 3
"""Exit status of a step that failed and said why."""

GOLDEN_FOLDER: Final = "golden"
DATABASE_FOLDER: Final = "database"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What a step's process is to do."""

    kind: str
    inputs: dict[str, str]
    """Role to a user's file or the folder of an earlier step."""

    options: dict[str, Any]
    output: str
    memory_bytes: int
    """Limit of the process's data, in bytes."""

    machine: str


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Why a step failed."""

    code: str
    message: str
    remedy: str = ""
    lasting: bool = False
    """Whether the same inputs must fail again: the step itself said what is wrong with them."""

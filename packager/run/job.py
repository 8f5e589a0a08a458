"""The job that a build gives to a step's process, and the files of its result."""

from __future__ import annotations

from typing import Any, Final

import msgspec

RESULT_FILE: Final = "result.json"
FAILURE_FILE: Final = "failure.json"
FAILED: Final = 3
"""Exit status of a step that failed and reported the reason."""

GOLDEN_FOLDER: Final = "golden"
DATABASE_FOLDER: Final = "database"


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """The work of a step's process."""

    kind: str
    inputs: dict[str, str]
    """Each role with a user's file or the folder of an earlier step."""

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
    """Whether the same inputs must fail again, because the step itself reported a fault in them."""

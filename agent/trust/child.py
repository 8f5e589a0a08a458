"""The process that checks metadata: `python -P -m agent.trust.child JOB RESULT LIFELINE NOW GRACE`.

Rules:
- It ends with its result, so the memory of the client is free between updates.
- It never outlives the agent.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from agent.lifeline import hang_on
from agent.trust.check import check
from agent.trust.job import MAX_BYTES, Job, Outcome
from wire.codec import from_json, to_json
from wire.files import PRIVATE, write_atomic

EXIT_STORAGE: Final = 3


def main() -> None:
    """Carry out the job of the command line, and write what came of it."""
    job_file, result_file, lifeline, now_s, grace_s = sys.argv[1:]
    hang_on(int(lifeline))
    try:
        job = from_json(Path(job_file).read_bytes(), Job, limit_bytes=MAX_BYTES)
        outcome = _checked(job, now_s=float(now_s), grace_s=float(grace_s))
        write_atomic(Path(result_file), to_json(outcome), mode=PRIVATE)
    except OSError:
        sys.exit(EXIT_STORAGE)


def _checked(job: Job, *, now_s: float, grace_s: float) -> Outcome:
    """Check what came; it is a stranger's, and nothing unforeseen in it may make it stay.

    Raises:
        OSError: The storage failed.
    """
    try:
        return check(job, now_s=now_s, grace_s=grace_s)
    except OSError:
        raise
    except Exception as exc:  # noqa: BLE001 - see above
        fault = f"what came cannot be read: {type(exc).__name__}"
        return Outcome(floors=job.floors, code="malformed", fault=fault)


if __name__ == "__main__":
    main()

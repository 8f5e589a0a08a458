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
from agent.trust.job import MAX_BYTES, Job
from wire.codec import from_json, to_json
from wire.files import PRIVATE, write_atomic

EXIT_STORAGE: Final = 3


def main() -> None:
    """Carry out the job of the command line, and write what came of it."""
    job_file, result_file, lifeline, now_s, grace_s = sys.argv[1:]
    hang_on(int(lifeline))
    try:
        job = from_json(Path(job_file).read_bytes(), Job, limit_bytes=MAX_BYTES)
        outcome = check(job, now_s=float(now_s), grace_s=float(grace_s))
        write_atomic(Path(result_file), to_json(outcome), mode=PRIVATE)
    except OSError:
        sys.exit(EXIT_STORAGE)


if __name__ == "__main__":
    main()

"""The process that measures one variant: `python -P -m agent.measure.child JOB RESULT LIFELINE`.

Rules:
- It waits for the processor and the memory behind everything else on the device: it has the least
  priority, runs only while nothing else wants to, and is the first to be ended when memory runs
  out.
- It loads what a worker loads, so that its memory is that of a worker.
- A variant that does not reproduce its golden samples here is not measured: its figures would be
  those of a wrong answer.
- It never outlives the agent.
"""

from __future__ import annotations

import sys
from pathlib import Path

from agent.lifeline import hang_on
from agent.measure.job import EXIT_STORAGE, MAX_BYTES, Job, Outcome, Side
from agent.serve.worker.process import plain_inputs
from agent.standing_back import stand_back
from runtime_adapters.batches import one_sample, ranks_of
from runtime_adapters.energy import EnergyCounters
from runtime_adapters.golden import check_golden, load_golden
from runtime_adapters.measuring import Opened, measure
from runtime_adapters.processor import machine_name
from runtime_adapters.protocol import Limits
from runtime_adapters.registry import open_session
from wire.clock import SystemClock
from wire.codec import from_json, to_json
from wire.errors import FleetError
from wire.files import PRIVATE, write_atomic
from wire.package.performance import Performance


def carried_out(job: Job) -> Performance:
    """Measure the variant of a job.

    Args:
        job: What to measure.

    Returns:
        The figures.

    Raises:
        FleetError: The variant does not run here, or not rightly.
    """
    limits = Limits(threads=job.threads)
    variant = _opened(job.variant)
    if job.variant.assets is not None:
        session = open_session(variant.directory, variant.info, limits)
        result = check_golden(session, variant.info, Path(job.variant.assets))
        session.close()
        if not result.passed:
            raise FleetError(f"it fails its golden test: {result.detail}")
    return measure(
        variant,
        None if job.reference is None else _opened(job.reference),
        limits=limits,
        min_runs=job.min_runs,
        min_duration_s=job.min_duration_s,
        machine=machine_name(),
        clock=SystemClock(),
        counters=EnergyCounters(),
    )


def _opened(side: Side) -> Opened:
    if side.assets is None:
        inputs = plain_inputs(side.info.inputs)
    else:
        samples, _ = load_golden(Path(side.assets))
        inputs = one_sample(samples, 0, ranks_of(side.info.inputs))
    return Opened(Path(side.directory), side.info, inputs)


def main() -> None:
    """Carry out the job of the command line, and write what came of it."""
    job_file, result_file, lifeline = sys.argv[1:]
    hang_on(int(lifeline))
    stand_back()
    try:
        outcome = _outcome(Path(job_file))
        write_atomic(Path(result_file), to_json(outcome), mode=PRIVATE)
    except OSError:
        sys.exit(EXIT_STORAGE)


def _outcome(job_file: Path) -> Outcome:
    """Carry out a job, and tell what came of it.

    Raises:
        OSError: The storage failed.
    """
    try:
        job = from_json(job_file.read_bytes(), Job, limit_bytes=MAX_BYTES)
        return Outcome(performance=carried_out(job))
    except FleetError as exc:
        return Outcome(fault=exc.message)
    except MemoryError:
        return Outcome(fault="it needs more memory than there is")


if __name__ == "__main__":
    main()

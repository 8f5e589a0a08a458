"""`fleet-agent record`: writes a trace of the surroundings of this device.

Rules:
- Each tick is written when it is over: after a fault or Ctrl-C, the written part is a trace.
- Before recording begins, the user is told what cannot be recorded.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from agent.app.config import AgentConfig
from agent.app.named_files import load_profile
from agent.cli.device_reader import Device
from agent.errors import ReplayError
from agent.replay.record_header import Maker, board_of, header_of, lacks
from agent.replay.recording import BoardObserver, Sample, Terms, begin, ticks
from agent.replay.trace_file import TraceFile, opened_trace
from agent.replay.traces import MAX_TICKS, Header, Tick, Trace, trace_from_bytes, trace_to_bytes
from wire.errors import WireFormatError
from wire.stop_signals import on_stop_signal

Remark = Callable[[str], None]
Wait = Callable[[float], bool]
"""Waits for a number of seconds; returns whether the recording must end."""


class Job(NamedTuple):
    """What to record."""

    path: Path
    length_s: float
    period_s: float
    deadline_ms: float
    board: Path | None = None
    """JSON file with figures of the board; missing ones come from the profile and the sensors."""


def record(job: Job, config: AgentConfig, remark: Remark) -> str:
    """Record until the time is over or a signal ends it.

    Args:
        job: What to record.
        config: The configuration of this device.
        remark: Called with each remark for the user.

    Returns:
        A summary of some lines.

    Raises:
        ReplayError: The job is impossible, or the file cannot be written.
        FleetError: The profile or the board cannot be read.
    """
    count = _count(job)
    profile, device = load_profile(config), Device(config)
    look, health = device.read()
    terms = Terms(board_of(profile, health, job.board), job.period_s)
    day = time.strftime("%Y-%m-%d", time.gmtime(device.clock.now_s()))
    maker = Maker(device=config.device, profile=profile.name, day=day)
    header = header_of(
        job.path.stem,
        maker,
        terms,
        look,
        deadline_ms=job.deadline_ms,
        begins_local_s=health.local_s,
    )
    _check(terms, header, look)
    for line in lacks(look, health, terms.board, fault=device.fault):
        remark(line)
    with opened_trace(job.path) as file, _ending() as wait:
        remark(f"recording {count} ticks to {job.path}; Ctrl-C ends it")
        recording = Recording(terms, look, file)
        recording.run(device, header, count, wait)
    return recording.summary(job.path)


class Recording:
    """A trace that is being recorded.

    Args:
        terms: The constants of the trace.
        look: The first reading.
        file: Takes the lines.
    """

    def __init__(self, terms: Terms, look: Sample, file: TraceFile) -> None:
        self.written = 0
        self._terms = terms
        self._look = look
        self._file = file
        self._follower: BoardObserver = begin(terms.board)
        self._ticks: Counter[str] = Counter()
        self._silent = 0
        self._errors_c: list[float] = []

    def run(self, device: Device, header: Header, count: int, wait: Wait) -> None:
        """Write ticks until there are enough or the wait says that the recording must end.

        Args:
            device: The device to record.
            header: The first line.
            count: How many ticks.
            wait: Waits until the next reading.
        """
        period_s, start_s = self._terms.period_s, self._look.at_s
        while self.written < count:
            due_s = start_s + (self.written + 1) * period_s
            if wait(max(due_s - device.clock.monotonic_s(), 0.0)):
                return
            look, _ = device.read()
            passed = max(round((look.at_s - start_s) / period_s), self.written + 1)
            made, self._follower = ticks(
                self._terms,
                self._follower,
                self._look,
                look,
                first=self.written,
                count=min(passed, count) - self.written,
            )
            self._file.write(made if self.written else (header, *made))
            self._note(made)
            self._look = look

    def summary(self, path: Path) -> str:
        """Return a summary of some lines."""
        if not self.written:
            return "nothing was recorded"
        period_s = self._terms.period_s
        lines = [f"{self.written} ticks, {self.written * period_s:g} s, in {path}"]
        served = ", ".join(f"{name} {n * period_s:g} s" for name, n in sorted(self._ticks.items()))
        lines.append(f"served      {served or 'nothing'}")
        if self._silent:
            lines.append(f"no agent    in {self._silent} ticks: they have no demand")
        if self._errors_c:
            worst = max(map(abs, self._errors_c))
            mean = sum(map(abs, self._errors_c)) / len(self._errors_c)
            lines.append(f"model       follows temperature_c within {worst:.2f} C, mean {mean:.2f}")
        return "\n".join(lines)

    def _note(self, made: tuple[Tick, ...]) -> None:
        self.written += len(made)
        figures = self._look.figures
        if figures is None:
            self._silent += len(made)
        elif figures.variant is not None:
            self._ticks[figures.variant] += len(made)
        if self._follower.error_c is not None:
            self._errors_c.append(self._follower.error_c)


@contextlib.contextmanager
def _ending() -> Iterator[Wait]:
    """Yield a wait that a signal ends, and all later waits too."""
    over = threading.Event()
    with on_stop_signal(over.set):
        yield over.wait


def _check(terms: Terms, header: Header, look: Sample) -> None:
    """Let the reader of traces check the header before anything is recorded.

    Raises:
        ReplayError: A figure of the board or the period is impossible.
    """
    made, _ = ticks(terms, begin(terms.board), look, look, first=0)
    try:
        trace_from_bytes(trace_to_bytes(Trace(header=header, ticks=made)))
    except WireFormatError as exc:
        raise ReplayError(exc.message.removeprefix("trace: line 1: ")) from exc


def _count(job: Job) -> int:
    """Return the number of ticks of a job.

    Raises:
        ReplayError: There are none, or too many, or the deadline is not positive.
    """
    if not job.deadline_ms > 0.0:
        raise ReplayError(f"a deadline of {job.deadline_ms:g} ms is not positive")
    if not 0.0 < job.period_s <= job.length_s:
        raise ReplayError("--every must be more than 0 s and at most --for")
    count = round(job.length_s / job.period_s)
    if count > MAX_TICKS:
        raise ReplayError(
            f"{count} ticks are more than the {MAX_TICKS} of a trace",
            remedy="record for a shorter time or less often",
        )
    return count

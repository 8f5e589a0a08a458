"""The processes that play devices: starts them, adds up what they tell, ends them.

Rules:
- They are programs of the agent, so they get their plan as JSON; the token is never on a command
  line. They end when their standard input does, so also when this process is killed.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
from collections.abc import Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from controller.cli.errors import CliError
from wire.codec import from_json, to_json
from wire.console.text import plain_text
from wire.errors import WireFormatError
from wire.simulation import Plan, Tally, total

PROGRAM: Final = "agent.simulate"
END_S: Final = 60.0
"""So long the devices of a process may take to say goodbye."""


class SimulationError(CliError):
    """A process that plays devices has ended by itself."""

    code = "cli.simulation"


class _Process:
    """One process, with a thread that reads what it tells."""

    def __init__(self, plan: Plan) -> None:
        self.tally = Tally()
        self._popen = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for this process, which ends the others in order
        )
        self._said = b""
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read, self._hear)
        ]
        for reader in self._readers:
            reader.start()
        assert self._popen.stdin is not None  # noqa: S101 - it is a pipe
        self._popen.stdin.write(to_json(plan) + b"\n")
        self._popen.stdin.flush()

    @property
    def fault(self) -> str:
        """Why it has ended; empty while it runs."""
        if self._popen.poll() is None:
            return ""
        lines = self._said.decode(errors="replace").strip().splitlines()
        return plain_text(lines[-1]) if lines else f"it ended with {self._popen.returncode}"

    def begin_end(self) -> None:
        """Tell it to end."""
        assert self._popen.stdin is not None  # noqa: S101 - it is a pipe
        self._popen.stdin.close()

    def end(self) -> None:
        """Wait until it has ended."""
        try:
            self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        for reader in self._readers:
            reader.join()

    def _read(self) -> None:
        assert self._popen.stdout is not None  # noqa: S101 - it is a pipe
        with self._popen.stdout as told:
            for line in told:
                try:
                    self.tally = from_json(line, Tally)
                except WireFormatError:
                    continue

    def _hear(self) -> None:
        assert self._popen.stderr is not None  # noqa: S101 - it is a pipe
        with self._popen.stderr as said:
            self._said = said.read()[-4096:]


class Simulation:
    """All processes, for the length of a `with` block.

    Args:
        plans: One for each process.
    """

    def __init__(self, plans: Sequence[Plan]) -> None:
        self._plans = plans
        self._processes: list[_Process] = []

    @property
    def tally(self) -> Tally:
        """What has happened so far, in all processes."""
        return total([process.tally for process in self._processes])

    def check(self) -> None:
        """Look whether all processes run.

        Raises:
            SimulationError: One has ended.
        """
        for process in self._processes:
            if fault := process.fault:
                raise SimulationError(f"the program that plays devices has ended: {fault}")

    def end(self) -> None:
        """End all processes, and wait until they have ended."""
        for process in self._processes:
            process.begin_end()
        for process in self._processes:
            process.end()

    def __enter__(self) -> Self:
        for plan in self._plans:
            self._processes.append(_Process(plan))
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _exc: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.end()


def split(plan: Plan, processes: int) -> list[Plan]:
    """Return the plans of several processes, each with its part of the devices."""
    first, end = plan.numbers
    cuts = [first + (end - first) * part // processes for part in range(processes + 1)]
    return [
        msgspec.structs.replace(plan, numbers=part)
        for part in itertools.pairwise(cuts)
        if part[0] < part[1]
    ]

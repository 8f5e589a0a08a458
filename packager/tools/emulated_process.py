"""Runs foreign code under user-mode emulation, with limits, and reports why it failed.

Rules:
- The process has limits of time and memory, and ends before the call returns.
- Its output goes to a file; the first line that is not a warning is the reason.

Source:
    QEMU, "QEMU User space emulator": `-L`, `QEMU_CPU`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
from pathlib import Path
from typing import Final

from packager.errors import StepError
from packager.plan.targets import Target
from packager.tools import toolchains

MEMORY_BYTES: Final = 2 << 30
"""Of the process, beyond what it shares with others."""

MAX_REASON_BYTES: Final = 4096
_MAX_REASON: Final = 200


def emulation(target: Target) -> list[str]:
    """Return the start of a command line that emulates a processor.

    Args:
        target: The kind of processor.

    Returns:
        The emulator, told where the C library is: no root file system is needed.

    Raises:
        StepError: It or the C library is not installed.
    """
    emulator = toolchains.emulator(target)
    if emulator is None:
        package = toolchains.missing_to_try(target) or target.emulator_package
        raise StepError(f"{target.name} cannot be emulated here", remedy=f"install {package}")
    return [emulator, "-L", str(toolchains.sysroot(target))]


def run_limited(
    command: list[str],
    target: Target,
    *,
    log: Path,
    timeout_s: float,
    source: Path = Path(os.devnull),
    sink: Path = Path(os.devnull),
) -> bool:
    """Run a command and say whether it ended by itself.

    Args:
        command: The fixed argument list.
        target: The kind of processor that it emulates.
        log: The file for what it says.
        timeout_s: When to end it, in seconds.
        source: What it reads.
        sink: The file for what it writes.

    Returns:
        False when it was ended because its time was up.

    Raises:
        StepError: It failed.
    """
    environment = {**os.environ, "QEMU_CPU": target.emulated_cpu}
    if not target.emulated_cpu:
        del environment["QEMU_CPU"]
    with (
        source.open("rb") as stdin,
        sink.open("wb") as stdout,
        log.open("wb") as stderr,
        subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=environment,
            start_new_session=True,
        ) as process,
    ):
        try:
            with contextlib.suppress(ProcessLookupError):
                # From outside: an emulator takes limits that its program sets for itself as said.
                resource.prlimit(process.pid, resource.RLIMIT_DATA, (MEMORY_BYTES, MEMORY_BYTES))
                resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if code != 0:
        raise StepError(f"{target.name} code failed under emulation: {_reason(code, log)}")
    return True


def _reason(code: int, log: Path) -> str:
    with log.open("rb") as stream:
        lines = stream.read(MAX_REASON_BYTES).decode("utf-8", errors="replace").splitlines()
    told = [line.strip() for line in lines if line.strip() and "warning" not in line]
    if told:
        return told[0][:_MAX_REASON]
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"status {code}"

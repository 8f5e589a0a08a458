"""The compilers and emulators of this machine, for builds that need them.

Rules:
- An error about a missing tool names the Debian package that has it.
- The compiler of this machine builds for the architecture of this machine.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from packager.plan.targets import Target
from runtime_adapters.processor import CPUINFO, cpu_flags

_VERSION_TIMEOUT_S: Final = 30.0


def compiler(target: Target) -> str | None:
    """Return the path of the C compiler for a target, or None where there is none."""
    found = shutil.which(target.compiler)
    if found is None and target.architecture == os.uname().machine:
        return shutil.which("gcc")
    return found


def emulator(target: Target) -> str | None:
    """Return the path of the emulator for a target; None where it or its C library is missing."""
    if not target.emulator or not sysroot(target).is_dir():
        return None
    return shutil.which(target.emulator)


def sysroot(target: Target) -> Path:
    """Return where the C library of a target lies: this machine's own, or the cross compiler's."""
    return Path("/" if target.architecture == os.uname().machine else target.sysroot)


def missing_compiler(target: Target) -> str | None:
    """Return the Debian package that has a compiler for a target; None where there is one."""
    if compiler(target) is not None:
        return None
    return "gcc" if target.architecture == os.uname().machine else target.compiler_package


def missing_instructions(target: Target) -> str | None:
    """Say which processor is needed to run what was compiled for a target, if no package helps."""
    if natively_runnable(target) or target.emulator:
        return None
    return f"a machine with {', '.join(target.isa_features)}"


def missing_to_try(target: Target) -> str | None:
    """Say what must be installed to run what was compiled for a target.

    Args:
        target: The target.

    Returns:
        The name of one Debian package, a reason where none would help, or None.
    """
    if natively_runnable(target):
        return None
    if not target.emulator:
        return missing_instructions(target)
    if not sysroot(target).is_dir():
        return target.compiler_package
    return None if emulator(target) else target.emulator_package


def compiler_version(target: Target) -> str | None:
    """Return what the compiler for a target calls itself, or None where there is none."""
    path = compiler(target)
    if path is None:
        return None
    try:
        done = subprocess.run(
            [path, "--version"],
            check=False,
            capture_output=True,
            text=True,
            timeout=_VERSION_TIMEOUT_S,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return "unknown"
    return (done.stdout.splitlines() or ["unknown"])[0].strip()


def natively_runnable(target: Target, *, cpuinfo: Path = CPUINFO) -> bool:
    """Tell whether this machine runs a target's code by itself.

    Args:
        target: The target.
        cpuinfo: The kernel's list of what the processor has.

    Returns:
        True when the architecture is the same and no instruction is missing.
    """
    return target.architecture == os.uname().machine and set(target.cpu_flags) <= cpu_flags(cpuinfo)

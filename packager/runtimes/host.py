"""The building machine: its name, its tools, and which processors it can build for.

Rules:
- This module imports no heavy library, and runs a tool only to ask for its version.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Final

from packager.plan.model_steps import DATA_TOOLS, IMPORT_TOOLS
from packager.plan.runtimes import Runtimes
from packager.plan.targets import TARGETS, target_of
from packager.plan.values import Host
from packager.tools import toolchains
from packager.tools.environments import default_root, environment_python, environment_version, names
from runtime_adapters.machine import versions_of
from runtime_adapters.processor import board_name
from wire.profile import DeviceProfile

_SOURCES: Final = frozenset({".py", ".c", ".lock"})


def describe_host(profiles: tuple[DeviceProfile, ...], runtimes: Runtimes) -> Host:
    """Describe this machine.

    Args:
        profiles: The kinds of devices to build for.
        runtimes: What can be built.

    Returns:
        What it has and lacks for them.
    """
    targets = {target.name: target for target in map(target_of, profiles)}
    tools = versions_of(_packages(runtimes))
    for name in names():
        if environment_python(name, default_root()) is not None:
            tools[name] = environment_version(name)
    for target in targets.values():
        found = toolchains.compiler_version(target)
        if found is not None:
            tools[target.compiler] = found
    return Host(
        architecture=os.uname().machine,
        tools=tools,
        target=next((t.name for t in TARGETS if toolchains.natively_runnable(t)), ""),
        board=board_name(),
        native=frozenset(t.name for t in targets.values() if toolchains.natively_runnable(t)),
        lacking={
            runtime.name: {
                target.name: text
                for target in targets.values()
                if (text := runtime.missing(target, tools))
            }
            for runtime in runtimes.rows
            if runtime.missing is not None
        },
    )


def code_digest() -> str:
    """Return the digest of the code that steps run: a changed step makes a new result."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for folder in ("packager", "runtime_adapters", "wire"):
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _SOURCES:
                name = path.relative_to(root).as_posix()
                digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def _packages(runtimes: Runtimes) -> list[str]:
    """Return the Python packages on which the output of some step depends."""
    found = {*IMPORT_TOOLS, *DATA_TOOLS}
    for runtime in runtimes.rows:
        found.update(runtime.packages, *(recipe.tools for recipe in runtime.recipes))
        found.update(runtime.source.tools if runtime.source else ())
    return sorted(found - set(names()))

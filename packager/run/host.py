"""What the building machine has, for the planner: tools, and which processors it can build for.

Rules:
- Nothing heavy is imported and no tool is run but to ask for its version.
"""

from __future__ import annotations

import os

from packager.machine import tool_versions
from packager.plan.targets import Target, target_of
from packager.plan.values import Host
from packager.tools import toolchains
from packager.tools.environments import default_root, environment_python, environment_version, names
from wire.profile import DeviceProfile


def describe_host(profiles: tuple[DeviceProfile, ...]) -> Host:
    """Describe this machine.

    Args:
        profiles: The kinds of devices to build for.

    Returns:
        What it has and lacks for them.
    """
    targets = {target.name: target for target in map(target_of, profiles)}
    tools = tool_versions()
    for name in names():
        if environment_python(name, default_root()) is not None:
            tools[name] = environment_version(name)
    for target in targets.values():
        found = toolchains.compiler_version(target)
        if found is not None:
            tools[target.compiler] = found
    native = frozenset(t.name for t in targets.values() if toolchains.natively_runnable(t))
    foreign = [target for target in targets.values() if target.name not in native]
    return Host(
        architecture=os.uname().machine,
        tools=tools,
        native=native,
        lacking={
            "tvm": {t.name: text for t in targets.values() if (text := _missing_for_tvm(t))},
            "iree": {t.name: text for t in foreign if (text := _missing_for_iree(t, tools))},
        },
    )


def _missing_for_tvm(target: Target) -> str | None:
    package = toolchains.missing(target) or toolchains.missing_to_try(target)
    if package is None:
        return None
    return f"nothing can be built and tried for {target.name} here; apt-get install {package}"


def _missing_for_iree(target: Target, tools: dict[str, str]) -> str | None:
    if target.architecture not in {"x86_64", "aarch64"}:
        return f"there is no IREE runtime to install for {target.architecture}"
    package = toolchains.missing_to_try(target)
    if package is not None:
        return f"nothing can be tried for {target.name} here; apt-get install {package}"
    if target.architecture == "aarch64" and "iree-aarch64" not in tools:
        return f"nothing can be tried for {target.name} here; fleet tool install iree-aarch64"
    return None

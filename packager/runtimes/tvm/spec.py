"""What is built for TVM, how, and what that needs on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from packager.plan.recipes import CONTROL_FLOW
from packager.plan.runtimes import BuildRuntime
from packager.plan.targets import Target
from packager.runtimes.common.compiled_recipes import compiled_recipes
from packager.tools import toolchains
from runtime_adapters.machine import versions_of

NAME: Final = "tvm"
EXTRA: Final = "edgefleet[packager-tvm]"
PACKAGES: Final = ("apache-tvm", "apache-tvm-ffi")


def missing(target: Target, _tools: Mapping[str, str]) -> str | None:
    """Say why nothing can be built and tried for a target; None when it can."""
    processor = toolchains.missing_instructions(target)
    if processor is not None:
        return f"this machine cannot run code for {target.name}; that takes {processor}"
    package = missing_to_build(target) or toolchains.missing_to_try(target)
    if package is None:
        return None
    return f"this machine cannot build and run code for {target.name}; apt-get install {package}"


def missing_to_build(target: Target) -> str | None:
    """Say what must be installed to compile for a target.

    Args:
        target: The target.

    Returns:
        The name of the extra or of one Debian package, or None when nothing is missing.
    """
    if len(versions_of(PACKAGES)) < len(PACKAGES):
        return EXTRA
    return toolchains.missing_compiler(target)


SPEC: Final = BuildRuntime(
    name=NAME,
    recipes=compiled_recipes(
        NAME,
        files=("model.so",),
        tools=PACKAGES,
        last_resort=True,
        # Its importer refuses Loop and Scan, and what it makes of If stays in the model as a call.
        unfit={name: f"TVM's importer does not compile {name}" for name in CONTROL_FLOW},
    ),
    steps={"compile-tvm": "steps:build", "tune-tvm": "steps:tune"},
    emulate="steps:emulate",
    untold="a model compiled by TVM is one piece of code and does not tell what its parts take",
    tunes=True,
    links=True,
    installs={"apache-tvm": "pip install 'edgefleet[packager-tvm]'"},
    missing=missing,
)

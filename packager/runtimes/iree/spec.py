"""What is built for IREE, how, and what that needs on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from packager.plan.runtimes import BuildRuntime, SourceFormat
from packager.plan.targets import Target
from packager.runtimes.common.compiled_recipes import compiled_recipes
from packager.tools import toolchains
from runtime_adapters.runtimes import BY_NAME

NAME: Final = "iree"
ARCHITECTURES: Final = BY_NAME[NAME].architectures
_FOREIGN: Final = {"aarch64": "iree-aarch64"}
"""Processor to the tool that holds IREE's runtime for it, where the processor can be emulated."""
REFERENCE_FILE: Final = "reference.vmfb"


def missing(target: Target, tools: Mapping[str, str]) -> str | None:
    """Say why this machine cannot try code for a target; None when it can.

    Args:
        target: The target.
        tools: Versions of the installed tools by name.

    Returns:
        What is missing, with what installs it.
    """
    if toolchains.natively_runnable(target):
        return None
    if target.architecture not in ARCHITECTURES:
        return f"there is no IREE runtime to install for {target.architecture}"
    processor = toolchains.missing_instructions(target)
    if processor is not None:
        return f"this machine cannot run code for {target.name}; that takes {processor}"
    package = toolchains.missing_to_try(target)
    if package is not None:
        return f"this machine cannot run code for {target.name}; apt-get install {package}"
    tool = _FOREIGN.get(target.architecture)
    if tool is not None and tool not in tools:
        return f"this machine cannot run code for {target.name}; fleet tool install {tool}"
    return None


SPEC: Final = BuildRuntime(
    name=NAME,
    packages=("iree-base-runtime",),
    recipes=compiled_recipes(
        NAME,
        files=("model.vmfb", "model.json"),
        tools=("iree-base-compiler",),
        sources=("onnx", "stablehlo"),
    ),
    steps={"prepare-stablehlo": "source:prepare", "compile-iree": "steps:build"},
    source=SourceFormat(
        kind="stablehlo",
        tools=("iree-base-compiler",),
        file=REFERENCE_FILE,
        recipe=f"{NAME}-fp32",
    ),
    emulate="steps:emulate",
    layers="layers:profile_layers",
    installs={"iree-base-compiler": "pip install 'edgefleet[packager-iree]'"},
    missing=missing,
)

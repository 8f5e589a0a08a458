"""What is built for IREE, and how."""

from __future__ import annotations

from typing import Final

from packager.plan.runtimes import BuildRuntime, SourceFormat
from packager.runtimes.common.compiled_recipes import compiled_recipes
from packager.runtimes.iree.needs import NAME, missing

REFERENCE_FILE: Final = "reference.vmfb"

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
    installs={"iree-base-compiler": "pip install 'edgefleet[packager-iree]'"},
    missing=missing,
)

"""What is built for TVM, and how."""

from __future__ import annotations

from typing import Final

from packager.plan.runtimes import BuildRuntime
from packager.runtimes.common.compiled_recipes import compiled_recipes
from packager.runtimes.tvm.needs import PACKAGES, missing

NAME: Final = "tvm"

SPEC: Final = BuildRuntime(
    name=NAME,
    recipes=compiled_recipes(NAME, files=("model.so",), tools=PACKAGES, last_resort=True),
    steps={"compile-tvm": "steps:build", "tune-tvm": "steps:tune"},
    emulate="steps:emulate",
    tunes=True,
    installs={"apache-tvm": "pip install 'edgefleet[packager-tvm]'"},
    missing=missing,
)

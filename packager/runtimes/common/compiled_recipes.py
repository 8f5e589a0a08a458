"""The recipes of a runtime whose variants are compiled ahead of time, for one processor each."""

from __future__ import annotations

from typing import Final

from packager.plan.recipes import QUANTIZABLE, Recipe, SourceKind

QDQ_RECIPE: Final = "onnxruntime-int8"
"""Compilers take the plain QDQ graph of this recipe: they know no fused integer operators."""


def compiled_recipes(
    runtime: str,
    *,
    files: tuple[str, ...],
    tools: tuple[str, ...],
    sources: tuple[SourceKind, ...] = ("onnx",),
    last_resort: bool = False,
    unfit: dict[str, str] | None = None,
) -> tuple[Recipe, ...]:
    """Return the recipes of a compiler.

    Args:
        runtime: Its name.
        files: The files that it writes.
        tools: The tools that it needs.
        sources: Models that it compiles as they are.
        last_resort: Whether another runtime is preferred where this one's speed cannot be measured.
        unfit: Operator to the reason why models with it are not compiled.

    Returns:
        One recipe in float, one in integers.
    """
    return (
        Recipe(
            name=f"{runtime}-fp32",
            runtime=runtime,
            precision="fp32",
            files=files,
            kind=f"compile-{runtime}",
            sources=sources,
            tools=tools,
            targeted=True,
            static=True,
            last_resort=last_resort,
            unfit=unfit or {},
        ),
        Recipe(
            name=f"{runtime}-int8",
            runtime=runtime,
            precision="int8",
            files=files,
            kind=f"compile-{runtime}",
            base=QDQ_RECIPE,
            tools=tools,
            targeted=True,
            static=True,
            data=("calibration",),
            quantizes=QUANTIZABLE,
            enters_bodies=False,
            last_resort=last_resort,
            unfit=unfit or {},
        ),
    )

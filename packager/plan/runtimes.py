"""What the planner must know about a runtime; `packager.runtimes` provides it.

Rules:
- This module holds only facts and names: a plan imports no runtime and no compiler.
- The name of each recipe is unique over all runtimes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

import msgspec

from packager.plan.recipes import Recipe, SourceKind
from packager.plan.targets import Target

FindMissing = Callable[[Target, Mapping[str, str]], str | None]
"""Takes a target and the versions of the installed tools. Returns what is missing to build and try
code for that target, or None."""


class SourceFormat(msgspec.Struct, frozen=True, kw_only=True):
    """A model format that a runtime runs as it is, to get the answers of the unchanged model."""

    kind: SourceKind
    tools: tuple[str, ...]
    """The tools that check such a model and make the clean copy of it."""

    file: str
    """The file of the prepared model that gives the reference answers."""

    recipe: str
    """The recipe of the variant that a device falls back to; it is kept wherever it fits."""


class BuildRuntime(msgspec.Struct, frozen=True, kw_only=True):
    """A runtime that models are built for."""

    name: str
    packages: tuple[str, ...] = ()
    """Python packages whose versions may change an answer or a figure."""

    recipes: tuple[Recipe, ...]
    steps: dict[str, str] = {}
    """Kind of a step to its function, as `module:function` in the runtime's folder."""

    source: SourceFormat | None = None
    emulate: str = ""
    """The function that runs another processor's variant, as `module:function` in that folder."""

    layers: str = ""
    """The function that profiles a variant by layer, as `module:function` in that folder."""

    untold: str = ""
    """Why there is none."""

    other_kernels: dict[str, str] = {}
    """Session options by which the runtime computes with its other kernels, as a device may have
    to; empty where it has one set of kernels."""

    texts: bool = False
    """Whether its variants take inputs of texts."""

    tunes: bool = False
    """Whether the step `tune-<name>` searches for fast schedules."""

    links: bool = False
    """Whether the C compiler of a target makes its variants, too."""

    installs: dict[str, str] = {}
    """Tool to the command that installs it, where `edgefleet[packager]` does not."""

    missing: FindMissing | None = None
    """None where nothing beside the tools of the recipes is needed."""

    reads_packages: bool = False
    """Whether the runtime opens a package by itself: it is in the layout of ONNX Runtime."""

    environment: dict[str, str] = {}
    """Variables that keep its tools from reporting their use."""

    blocked: tuple[str, ...] = ()
    """Modules that must not be imported in a step, for the same reason."""


class Runtimes:
    """All runtimes that models are built for.

    Args:
        rows: The runtimes, in the order in which their candidates are listed.
    """

    def __init__(self, rows: tuple[BuildRuntime, ...]) -> None:
        self.rows = rows
        self._by_name = {row.name: row for row in rows}

    @cached_property
    def recipes(self) -> dict[str, Recipe]:
        """Recipes by name."""
        return {recipe.name: recipe for row in self.rows for recipe in row.recipes}

    @cached_property
    def installs(self) -> dict[str, str]:
        """Tool to the command that installs it."""
        return {tool: text for row in self.rows for tool, text in row.installs.items()}

    def named(self, name: str) -> BuildRuntime:
        """Return a runtime.

        Args:
            name: As in `VariantInfo.runtime`.

        Returns:
            Its row.

        Raises:
            KeyError: No models are built for it.
        """
        return self._by_name[name]

    def of_source(self, kind: SourceKind) -> tuple[BuildRuntime, SourceFormat]:
        """Return the runtime that runs a kind of model as it is, and that format.

        Args:
            kind: The kind of the model.

        Returns:
            The row, and what it says of the format.

        Raises:
            KeyError: No runtime does.
        """
        for row in self.rows:
            if row.source is not None and row.source.kind == kind:
                return row, row.source
        raise KeyError(kind)

"""Finds the function of a step, by the kind of the step and by the table of runtimes.

Rules:
- A function is imported only when a step needs it, so each process loads only what its step needs.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol, cast

from packager.layers.values import LayerProfile
from packager.plan.targets import Target
from packager.run.job import Job
from packager.runtimes.table import RUNTIMES
from runtime_adapters.protocol import Limits, Tensors
from wire.package.variant import VariantInfo

KINDS: Final = {
    "import": "packager.steps.inputs:import_model",
    "inspect": "packager.steps.inputs:inspect",
    "data": "packager.steps.inputs:read_samples",
    "processing": "packager.steps.processing:try_out",
    "reference": "packager.steps.checks:reference",
    "evaluate": "packager.steps.checks:evaluate",
    "measure": "packager.steps.checks:measure",
    "golden": "packager.steps.checks:golden",
    "layers": "packager.steps.layers:layers",
    **{f"emulate-{r.name}": "packager.steps.checks:emulate" for r in RUNTIMES.rows if r.emulate},
    **{
        kind: f"packager.runtimes.{runtime.name}.{place}"
        for runtime in RUNTIMES.rows
        for kind, place in runtime.steps.items()
    },
}
"""Kind of a step to the function that does it."""


class Emulate(Protocol):
    """The function of a runtime that runs a variant of another processor."""

    def __call__(
        self,
        variant: Path,
        info: VariantInfo,
        target: Target,
        inputs: Tensors,
        *,
        workspace: Path,
        timeout_s: float,
    ) -> Tensors:
        """Let a variant answer samples.

        Args:
            variant: The folder of its files, with the result of the step that made them.
            info: Its declaration.
            target: What it is compiled for.
            inputs: Samples by input; the first axis counts them, and may be longer than time
                allows.
            workspace: A folder for files that are not kept.
            timeout_s: When to stop, in seconds.

        Returns:
            Answers by output: as many samples as were answered, from the first on.

        Raises:
            StepError: A tool is missing, the code failed, or no sample was answered in time.
        """
        ...


class ProfileLayers(Protocol):
    """The function of a runtime that profiles a variant by layer."""

    def __call__(
        self,
        directory: Path,
        info: VariantInfo,
        inputs: Tensors,
        *,
        limits: Limits,
        runs: int,
        machine: str,
        workspace: Path,
    ) -> LayerProfile:
        """Profile a variant in this process, which must do nothing else.

        Args:
            directory: The variant's files.
            info: Its declaration.
            inputs: One sample.
            limits: What the session may use.
            runs: How many inferences to profile, at most.
            machine: Name of the machine that runs this.
            workspace: A folder for files that are not kept.

        Returns:
            The layers with their mean times; `untold` where the runtime does not tell these.

        Raises:
            AdapterError: The runtime cannot load or run the variant.
            StepError: Its profiler failed.
        """
        ...


def step_function(kind: str) -> Callable[[Job, Path], Any]:
    """Return the function that does a step.

    Args:
        kind: Of the step.

    Returns:
        A function of the job and the folder for its files; it returns the step's result.

    Raises:
        KeyError: There is no such kind.
    """
    return cast("Callable[[Job, Path], Any]", _function(KINDS[kind]))


def emulator_of(runtime: str) -> Emulate:
    """Return the function that runs variants of a runtime for other processors."""
    place = RUNTIMES.named(runtime).emulate
    return cast("Emulate", _function(f"packager.runtimes.{runtime}.{place}"))


def profiler_of(runtime: str) -> ProfileLayers | None:
    """Return the function that profiles variants of a runtime; None where there is none."""
    place = RUNTIMES.named(runtime).layers
    if not place:
        return None
    return cast("ProfileLayers", _function(f"packager.runtimes.{runtime}.{place}"))


def _function(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)

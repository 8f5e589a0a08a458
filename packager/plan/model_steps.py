"""The steps about the model as it was given: they read it, its samples, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from packager.plan.further import further_option, labels_option
from packager.plan.recipes import PREPARE
from packager.plan.runtimes import SourceFormat
from packager.plan.step_names import (
    DATA,
    IMPORT,
    INSPECT,
    PREPROCESSING,
    PROCESSING,
    REFERENCE,
    SOURCE,
    TRAINING,
    anchors_input,
    boxes_option,
    metric_input,
)
from packager.plan.values import PlanInputs, Step
from wire.codec import to_builtins
from wire.package.processing import Postprocessing
from wire.package.variant import VariantInfo

IMPORT_TOOLS: Final = ("torch", "torch-pruning", "scikit-learn", "skl2onnx", "onnx")
DATA_TOOLS: Final = ("numpy",)


def import_step(text: str, *, prune: float = 0.0, training: str = "") -> Step:
    """Return the step that makes an ONNX model of what a user's function returns.

    Args:
        text: The function, as the user named it.
        prune: Share of the channels to take out; 0 for none.
        training: A function that trains the model after that; empty for none.

    Returns:
        The step.
    """
    return Step(
        name=IMPORT,
        kind=IMPORT,
        inputs={"file": SOURCE} | ({"training": TRAINING} if training else {}),
        options={"callable": text, "prune": prune, "training": training},
        tools=IMPORT_TOOLS,
        vital=True,
    )


def inspect_step(model: str) -> Step:
    """Return the step that finds which other files an ONNX model consists of."""
    return Step(name=INSPECT, kind=INSPECT, inputs={"model": model}, tools=("onnx",), vital=True)


def prepare_step(
    source: SourceFormat, model: str, external: dict[str, str], *, apart: bool = False
) -> Step:
    """Return the step that checks the model and makes a clean copy of it.

    Args:
        source: The format of the model.
        model: The step or file that holds it.
        external: Files of external tensor data, relative to the model, and their SHA-256.
        apart: Whether its weights are to be in a file beside it.

    Returns:
        The step.
    """
    return Step(
        name=PREPARE,
        kind=f"prepare-{source.kind}",
        inputs={"model": model},
        options={"external": external} | ({"apart": True} if apart else {}),
        tools=source.tools,
        vital=True,
    )


def data_step(given: PlanInputs, *, calibrated: bool) -> Step:
    """Return the step that reads all samples and makes disjoint sets of them.

    Args:
        given: What the plan depends on.
        calibrated: Whether a candidate takes ranges from samples, or is tuned with them. Where none
            does, all samples judge.

    Returns:
        The step.
    """
    settings = given.settings
    info, packages = unchanged_model(given)  # it records the states before each step
    more = {"preprocessing": PREPROCESSING} if settings.preprocessing else {}
    options = {"callables": settings.callables, "calibrated": calibrated}
    options |= labels_option(settings.further)
    return Step(
        name=DATA,
        kind=DATA,
        inputs={"model": PREPARE, **{name: name for name in settings.sets}, **more},
        options={**options, "info": to_builtins(info)} if settings.states else options,
        tools=(*DATA_TOOLS, *packages) if settings.states else DATA_TOOLS,
        vital=True,
    )


def reference_step(given: PlanInputs) -> Step:
    """Return the step that lets the unchanged model answer the evaluation samples."""
    settings = given.settings
    info, tools = unchanged_model(given)
    return Step(
        name=REFERENCE,
        kind=REFERENCE,
        inputs={"variant": PREPARE, "data": DATA, **metric_input(settings)},
        options={
            "info": to_builtins(info),
            "metric": settings.metric,
            **further_option(settings.further),
            **boxes_option(settings),
        },
        tools=tools,
        vital=True,
    )


def processing_step(given: PlanInputs, declared: Mapping[str, Postprocessing]) -> Step:
    """Return the step that tries the declared postprocessing on answers of the unchanged model.

    Args:
        given: What the plan depends on.
        declared: The postprocessing by output.

    Returns:
        The step.
    """
    info, tools = unchanged_model(given)
    return Step(
        name=PROCESSING,
        kind=PROCESSING,
        inputs={"variant": PREPARE, "data": DATA, **anchors_input(declared)},
        options={"info": to_builtins(info), "postprocessing": to_builtins(dict(declared))},
        tools=tools,
        vital=True,
    )


def unchanged_model(given: PlanInputs) -> tuple[VariantInfo, tuple[str, ...]]:
    """Return the unchanged model as a variant, and the packages of its runtime."""
    facts = given.facts
    runtime, source = given.runtimes.of_source(facts.kind)
    info = VariantInfo(
        runtime=runtime.name,
        precision="fp32",
        model_file=source.file,
        inputs=facts.inputs,
        outputs=facts.outputs,
        size_bytes=0,
        states=given.settings.states or msgspec.UNSET,
    )
    return info, runtime.packages

"""From what a plan chose to the steps that make, check and measure it.

Rules:
- What makes files sees calibration and tuning samples; what judges sees the gate's alone.
"""

from __future__ import annotations

from typing import Any, Final

from packager.plan.figures import ModelFacts
from packager.plan.recipes import BY_NAME, PREPARE, Recipe, SourceKind
from packager.plan.targets import Target
from packager.plan.values import Candidate, Step, Wishes
from wire.codec import to_builtins
from wire.package.manifest import VariantInfo

SOURCE: Final = "source"
CALIBRATION: Final = "calibration"
TUNING: Final = "tuning"
EVALUATION: Final = "evaluation"
PREPROCESSING: Final = "preprocessing"
POSTPROCESSING: Final = "postprocessing"
METRIC: Final = "metric"
TRAINING: Final = "training"
TUNING_DATABASE: Final = "tuning-database"
"""Names of what a user gives; every other input of a step is an earlier step."""

IMPORT: Final = "import"
INSPECT: Final = "inspect"
DATA: Final = "data"
REFERENCE: Final = "reference"
GOLDEN: Final = "golden"
SOURCE_MODEL_FILE: Final = "source.onnx"
RUNTIME_TOOLS: Final = {
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "litert": ("ai-edge-litert",),
    "tvm": (),
    "iree": ("iree-base-runtime",),
}
"""Runtime to the packages whose versions may change an answer or a figure."""

SOURCE_TOOLS: Final[dict[SourceKind, tuple[str, ...]]] = {
    "onnx": ("onnx", "onnxslim"),
    "tflite": ("ai-edge-litert",),
    "stablehlo": ("iree-base-compiler",),
}
"""What checks a model and makes the clean copy of it."""

_REFERENCE_FILES: Final[dict[SourceKind, tuple[str, str]]] = {
    "onnx": ("onnxruntime", SOURCE_MODEL_FILE),
    "tflite": ("litert", "model.tflite"),
    "stablehlo": ("iree", "reference.vmfb"),
}


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
        tools=("torch", "torch-pruning", "scikit-learn", "skl2onnx", "onnx"),
        vital=True,
    )


def inspect_step(model: str) -> Step:
    """Return the step that finds which other files an ONNX model consists of."""
    return Step(name=INSPECT, kind=INSPECT, inputs={"model": model}, tools=("onnx",), vital=True)


def prepare_step(kind: SourceKind, model: str, external: dict[str, str]) -> Step:
    """Return the step that checks the model and makes a clean copy of it.

    Args:
        kind: Of the model.
        model: The step or file that holds it.
        external: Files of external tensor data, relative to the model, and their SHA-256.

    Returns:
        The step.
    """
    return Step(
        name=PREPARE,
        kind=f"prepare-{kind}",
        inputs={"model": model},
        options={"external": external},
        tools=SOURCE_TOOLS[kind],
        vital=True,
    )


def data_step(wishes: Wishes) -> Step:
    """Return the step that reads all samples and makes three disjoint sets of them."""
    given = {name: name for name in wishes.sets}
    more = {"preprocessing": PREPROCESSING} if wishes.preprocessing else {}
    return Step(
        name=DATA,
        kind=DATA,
        inputs={"model": PREPARE, **given, **more},
        options={"callables": wishes.callables, "calibrated": wishes.calibrated},
        tools=("numpy",),
        vital=True,
    )


def reference_step(facts: ModelFacts, wishes: Wishes) -> Step:
    """Return the step that lets the unchanged model answer the evaluation samples."""
    runtime, file = _REFERENCE_FILES[facts.kind]
    info = VariantInfo(
        runtime=runtime,
        precision="fp32",
        model_file=file,
        inputs=facts.inputs,
        outputs=facts.outputs,
        size_bytes=0,
    )
    return Step(
        name=REFERENCE,
        kind=REFERENCE,
        inputs={"variant": PREPARE, "data": DATA, **_metric_input(wishes)},
        options={"info": to_builtins(info), "metric": wishes.metric},
        tools=RUNTIME_TOOLS[runtime],
        vital=True,
    )


def build_name(recipe: Recipe, target: Target | None) -> str:
    """Return the name of the step that makes a recipe's files."""
    if recipe.kind == PREPARE:
        return PREPARE
    return f"build-{recipe.name}" + (f"-{target.name}" if target else "")


def build_steps(
    recipe: Recipe, target: Target | None, facts: ModelFacts, wishes: Wishes
) -> tuple[Step, ...]:
    """Return the steps that make a recipe's files, those of its base first.

    Args:
        recipe: The row.
        target: The processor, for a compiled one.
        facts: What is known of the model.
        wishes: What the user asked for.

    Returns:
        The steps; none where the prepared model is the variant.
    """
    if recipe.kind == PREPARE:
        return ()
    base = _base(recipe, facts)
    before = build_steps(base, None, facts, wishes) if base else ()
    model = build_name(base, None) if base else PREPARE
    inputs = {"model": model, "prepared": PREPARE}
    options: dict[str, Any] = dict(recipe.options)
    if recipe.data or recipe.parity:
        inputs["data"] = DATA
    if "tuning" in recipe.data:
        inputs |= {"reference": REFERENCE, **_metric_input(wishes)}
        options |= {
            "min_retention": wishes.min_retention,
            "trials": wishes.repair_trials,
            "seconds": wishes.repair_s,
        }
    if target is not None:
        options["target"] = to_builtins(target)
        if recipe.runtime == "tvm" and wishes.tuning_trials:
            before = (*before, _tuning_step(recipe, target, model, wishes))
            inputs["database"] = before[-1].name
        elif recipe.runtime == "tvm" and wishes.tuned:
            inputs["database"] = TUNING_DATABASE
    name = build_name(recipe, target)
    step = Step(
        name=name, kind=recipe.kind, inputs=inputs, options=options, tools=_tools(recipe, target)
    )
    return (*before, step)


def evaluate_step(candidate: Candidate, wishes: Wishes) -> Step:
    """Return the step that runs a candidate on the evaluation data."""
    options: dict[str, Any] = {"info": to_builtins(candidate.info)}
    kind = "evaluate"
    if candidate.target is not None and candidate.emulated:
        kind = f"emulate-{candidate.info.runtime}"
        options |= {"target": to_builtins(candidate.target), "seconds": wishes.emulation_s}
    return Step(
        name=candidate.evaluate,
        kind=kind,
        inputs={
            "variant": candidate.build,
            "data": DATA,
            "reference": REFERENCE,
            **_metric_input(wishes),
        },
        options=options,
        tools=RUNTIME_TOOLS[candidate.info.runtime],
    )


def measure_step(candidate: Candidate, threads: int, wishes: Wishes) -> Step:
    """Return the step that measures what a candidate costs."""
    return Step(
        name=candidate.measure,
        kind="measure",
        inputs={"variant": candidate.build, "data": DATA},
        options={
            "info": to_builtins(candidate.info),
            "threads": threads,
            "min_runs": wishes.min_runs,
            "min_duration_s": wishes.min_duration_s,
        },
        tools=RUNTIME_TOOLS[candidate.info.runtime],
        quiet=True,
    )


def golden_step(kept: tuple[Candidate, ...], *, metric: str) -> Step:
    """Return the step that picks the golden samples of the variants that go into the package.

    Args:
        kept: Those variants.
        metric: The metric of the build.

    Returns:
        The step.
    """
    answers = {f"answers-{c.name}": c.evaluate for c in kept}
    return Step(
        name=GOLDEN,
        kind=GOLDEN,
        inputs={"model": PREPARE, "data": DATA, "reference": REFERENCE, **answers},
        options={"metric": metric},
        vital=True,
    )


def _tuning_step(recipe: Recipe, target: Target, model: str, wishes: Wishes) -> Step:
    return Step(
        name=f"tune-{recipe.name}-{target.name}",
        kind="tune-tvm",
        inputs={"model": model, "prepared": PREPARE}
        | ({"database": TUNING_DATABASE} if wishes.tuned else {}),
        options={"target": to_builtins(target), "trials": wishes.tuning_trials},
        tools=_tools(recipe, target),
        quiet=True,
    )


def _tools(recipe: Recipe, target: Target | None) -> tuple[str, ...]:
    return (*recipe.tools, *((target.compiler,) if target else ()))


def _base(recipe: Recipe, facts: ModelFacts) -> Recipe | None:
    """Return the recipe to start from; a source that is of the base's format is its own base."""
    base = BY_NAME.get(recipe.base)
    return base if base is not None and facts.kind in base.sources else None


def _metric_input(wishes: Wishes) -> dict[str, str]:
    return {"metric": METRIC} if wishes.own_metric else {}

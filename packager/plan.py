"""What a build will do: pure, from facts about the model and profiles to ordered steps.

A candidate is one row of `packager.recipes`; nothing here knows a row by name.

Rules:
- No files, no clock, no tools: equal arguments give equal plans.
- What cannot be built is in the plan too, with the reason.
- A candidate that several profiles share is built, checked and measured once.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from packager.recipes import PREPARE, RECIPES, Recipe
from wire.codec import to_builtins
from wire.manifest import Requirements, TensorSpec, VariantInfo
from wire.profile import DeviceProfile

METRICS: Final = ("auto", "top1", "agreement", "cosine")
CLASS_METRICS: Final = frozenset({"top1", "agreement"})
"""Metrics that take the last axis of the first output as scores of classes."""

SOURCE: Final = "source"
CALIBRATION: Final = "calibration"
EVALUATION: Final = "evaluation"
"""Names of the files that a user gives; every other input of a step is an earlier step."""

INSPECT: Final = "inspect"
REFERENCE: Final = "reference"
CALIBRATION_DATA: Final = "calibration-data"
EVALUATION_DATA: Final = "evaluation-data"
SOURCE_MODEL_FILE: Final = "source.onnx"
_QUANTIZABLE: Final = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
_QUANTIZED: Final = frozenset(
    {"QuantizeLinear", "DequantizeLinear", "QLinearConv", "QLinearMatMul"}
)
_VNNI: Final = frozenset({"avx512_vnni", "avx_vnni"})


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the planner must know of a model."""

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    operators: tuple[str, ...]
    """Types of its nodes, sorted, each once."""

    opset: int
    parameters: int
    notes: tuple[str, ...] = ()
    """What was changed in the clean copy, or could not be."""


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of work, done in a process of its own."""

    name: str
    kind: str
    """Names the function in `packager.step` that does it."""

    inputs: dict[str, str] = {}
    """Role to a user's file or an earlier step."""

    options: dict[str, Any] = {}
    vital: bool = False
    """Without it there is no build; any other failure costs the candidates that need it."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """A variant that might go into the package."""

    name: str
    build: str
    """The step whose output holds `files`."""

    files: tuple[str, ...]
    info: VariantInfo
    """The variant's declaration, without what only a build can tell; `profiles` are those that it
    is planned for."""

    steps: tuple[str, ...]
    """Kinds of the steps that make its files, in order: its provenance."""

    tools: tuple[str, ...]
    """Tools that make its files."""

    @property
    def evaluate(self) -> str:
        """The step that runs it on the evaluation data."""
        return f"evaluate-{self.name}"

    @property
    def measure(self) -> str:
        """The step that measures what it costs."""
        return f"measure-{self.name}"


class Impossible(msgspec.Struct, frozen=True, kw_only=True):
    """A candidate that a profile cannot have."""

    candidate: str
    profile: str
    reason: str


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The steps in an order in which they can run, and what they may give."""

    steps: tuple[Step, ...]
    candidates: tuple[Candidate, ...]
    impossible: tuple[Impossible, ...]


def inspect_step() -> Step:
    """Return the step that finds which other files a model consists of."""
    return Step(name=INSPECT, kind=INSPECT, inputs={"model": SOURCE}, vital=True)


def prepare_step(external: dict[str, str]) -> Step:
    """Return the step that checks the model and makes a clean copy of it.

    Args:
        external: Files of external tensor data, relative to the model, and their SHA-256.

    Returns:
        The step.
    """
    return Step(
        name=PREPARE,
        kind=PREPARE,
        inputs={"model": SOURCE},
        options={"external": external},
        vital=True,
    )


def make_plan(
    facts: ModelFacts,
    profiles: tuple[DeviceProfile, ...],
    *,
    tools: dict[str, str],
    metric: str,
    calibrated: bool,
) -> Plan:
    """Plan a build.

    Args:
        facts: What is known of the model.
        profiles: The kinds of devices to build for, each name once.
        tools: Versions of the tools that are installed here, by name.
        metric: `auto`, `top1`, `agreement` or `cosine`.
        calibrated: Whether there is calibration data.

    Returns:
        The plan; without candidates when there are none.
    """
    impossible: list[Impossible] = []
    chosen: list[tuple[Recipe, tuple[str, ...]]] = []
    for recipe in RECIPES:
        able = []
        for profile in profiles:
            reason = _obstacle(recipe, facts, profile, tools, calibrated=calibrated)
            if reason is None:
                able.append(profile.name)
            else:
                impossible.append(
                    Impossible(candidate=recipe.name, profile=profile.name, reason=reason)
                )
        if able:
            chosen.append((recipe, tuple(able)))
    candidates = tuple(_candidate(recipe, facts, names) for recipe, names in chosen)
    threads = min((profile.threads for profile in profiles), default=1)
    steps = [
        *_data_steps(calibrated=calibrated),
        _reference_step(facts, metric),
        *(_build_step(recipe) for recipe, _ in chosen if recipe.kind != PREPARE),
        *(_evaluate_step(candidate) for candidate in candidates),
        *(_measure_step(candidate, threads) for candidate in candidates),
    ]
    return Plan(steps=tuple(steps), candidates=candidates, impossible=tuple(impossible))


def golden_step(kept: tuple[Candidate, ...], *, classes: bool) -> Step:
    """Return the step that picks the golden samples of the variants that go into the package.

    Args:
        kept: Those variants.
        classes: Whether outputs are scores of classes.

    Returns:
        The step.
    """
    answers = {f"answers-{c.name}": c.evaluate for c in kept}
    return Step(
        name="golden",
        kind="golden",
        inputs={
            "model": PREPARE,
            "data": EVALUATION_DATA,
            "reference": REFERENCE,
            **answers,
        },
        options={"classes": classes},
        vital=True,
    )


def _obstacle(
    recipe: Recipe,
    facts: ModelFacts,
    profile: DeviceProfile,
    tools: dict[str, str],
    *,
    calibrated: bool,
) -> str | None:
    """Say why a profile cannot have a candidate; None when it can."""
    missing = [tool for tool in recipe.tools if tool not in tools]
    if recipe.runtime not in profile.runtimes:
        return f"the profile has no runtime {recipe.runtime}"
    if missing:
        return f"{', '.join(missing)} is not installed here"
    if reason := _unsuited(recipe, profile):
        return reason
    return _unquantizable(facts, calibrated=calibrated) if recipe.calibrated else None


def _unquantizable(facts: ModelFacts, *, calibrated: bool) -> str | None:
    """Say why a model cannot be quantized; None when it can."""
    if not calibrated:
        return "there is no calibration data"
    if _QUANTIZED & set(facts.operators):
        return "the model is quantized already"
    if not _QUANTIZABLE & set(facts.operators):
        return "the model has no convolution or matrix product to quantize"
    return None


def _unsuited(recipe: Recipe, profile: DeviceProfile) -> str | None:
    """Say why a candidate makes no sense on a processor; None when it does."""
    if recipe.architectures and profile.architecture not in recipe.architectures:
        return f"made for {' or '.join(recipe.architectures)}, not {profile.architecture}"
    if recipe.vnni is None or profile.architecture != "x86_64":
        return None
    has_vnni = bool(_VNNI & set(profile.isa_features))
    if recipe.vnni and not has_vnni:
        return "without VNNI its sums may saturate; a candidate with 7-bit weights takes its place"
    if has_vnni and not recipe.vnni:
        return "with VNNI full 8-bit weights are safe"
    return None


def _candidate(recipe: Recipe, facts: ModelFacts, profiles: tuple[str, ...]) -> Candidate:
    return Candidate(
        name=recipe.name,
        build=PREPARE if recipe.kind == PREPARE else _build_name(recipe),
        files=recipe.files,
        info=VariantInfo(
            runtime=recipe.runtime,
            precision=recipe.precision,
            model_file=recipe.files[0],
            options=recipe.session,
            inputs=facts.inputs,
            outputs=facts.outputs,
            requirements=Requirements(architectures=recipe.architectures),
            profiles=profiles,
            size_bytes=0,
        ),
        steps=(PREPARE,) if recipe.kind == PREPARE else (PREPARE, recipe.kind),
        tools=recipe.tools,
    )


def _data_steps(*, calibrated: bool) -> list[Step]:
    evaluation = {"archive": EVALUATION, "model": PREPARE}
    if not calibrated:
        return [Step(name=EVALUATION_DATA, kind="data", inputs=evaluation, vital=True)]
    return [
        Step(
            name=CALIBRATION_DATA,
            kind="data",
            inputs={"archive": CALIBRATION, "model": PREPARE},
            vital=True,
        ),
        Step(
            name=EVALUATION_DATA,
            kind="data",
            inputs={**evaluation, "other": CALIBRATION_DATA},
            vital=True,
        ),
    ]


def _reference_step(facts: ModelFacts, metric: str) -> Step:
    info = VariantInfo(
        runtime="onnxruntime",
        precision="fp32",
        model_file=SOURCE_MODEL_FILE,
        inputs=facts.inputs,
        outputs=facts.outputs,
        size_bytes=0,
    )
    return Step(
        name=REFERENCE,
        kind=REFERENCE,
        inputs={"variant": PREPARE, "data": EVALUATION_DATA},
        options={"info": to_builtins(info), "metric": metric},
        vital=True,
    )


def _build_step(recipe: Recipe) -> Step:
    data = {"data": CALIBRATION_DATA} if recipe.calibrated else {}
    return Step(
        name=_build_name(recipe),
        kind=recipe.kind,
        inputs={"model": PREPARE, **data},
        options=recipe.options,
    )


def _build_name(recipe: Recipe) -> str:
    return f"build-{recipe.name}"


def _evaluate_step(candidate: Candidate) -> Step:
    return Step(
        name=candidate.evaluate,
        kind="evaluate",
        inputs={"variant": candidate.build, "data": EVALUATION_DATA, "reference": REFERENCE},
        options={"info": to_builtins(candidate.info)},
    )


def _measure_step(candidate: Candidate, threads: int) -> Step:
    return Step(
        name=candidate.measure,
        kind="measure",
        inputs={"variant": candidate.build, "data": EVALUATION_DATA},
        options={"info": to_builtins(candidate.info), "threads": threads},
    )

"""The planner: which candidates a model and profiles get, which not and why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from packager.plan import (
    CALIBRATION_DATA,
    EVALUATION_DATA,
    ModelFacts,
    Plan,
    golden_step,
    make_plan,
)
from packager.recipes import PREPARE, RECIPES, REFERENCE_CANDIDATE
from wire.manifest import TensorSpec
from wire.profile import DeviceProfile

TOOLS = {"onnx": "1", "onnxslim": "1", "onnxruntime": "1", "openvino": "1", "nncf": "1"}
FACTS = ModelFacts(
    inputs=(TensorSpec(name="input", datatype="FP32", shape=(-1, 4)),),
    outputs=(TensorSpec(name="scores", datatype="FP32", shape=(-1, 3)),),
    operators=("Gemm", "Relu"),
    opset=17,
    parameters=15,
)


def profile(name: str = "box", **values: Any) -> DeviceProfile:
    defaults: dict[str, Any] = {
        "architecture": "x86_64",
        "isa_features": ("avx512_vnni",),
        "memory_bytes": 2**30,
        "storage_bytes": 2**30,
        "runtimes": ("onnxruntime", "openvino"),
    }
    return DeviceProfile(name=name, **(defaults | values))


def plan(*profiles: DeviceProfile, facts: ModelFacts = FACTS, **options: Any) -> Plan:
    values: dict[str, Any] = {"tools": TOOLS, "metric": "auto", "calibrated": True} | options
    return make_plan(facts, profiles, **values)


def names(made: Plan, profile_name: str) -> set[str]:
    return {c.name for c in made.candidates if profile_name in c.info.profiles}


def reason(made: Plan, candidate: str) -> str:
    return next(i.reason for i in made.impossible if i.candidate == candidate)


def test_a_box_with_vnni_gets_full_width_int8_on_two_runtimes() -> None:
    assert names(plan(profile()), "box") == {
        REFERENCE_CANDIDATE,
        "onnxruntime-int8",
        "openvino-fp16",
        "openvino-int8",
    }


def test_without_vnni_weights_are_narrower() -> None:
    made = plan(profile(isa_features=("avx2",), runtimes=("onnxruntime",)))
    assert names(made, "box") == {REFERENCE_CANDIDATE, "onnxruntime-int8-reduced"}
    assert "saturate" in reason(made, "onnxruntime-int8")
    assert reason(made, "openvino-int8") == "the profile has no runtime openvino"


def test_arm_gets_the_signed_candidate_beside_the_usual_one() -> None:
    made = plan(profile(architecture="aarch64", isa_features=("asimd",)))
    assert {"onnxruntime-int8", "onnxruntime-int8-s8s8"} <= names(made, "box")
    signed = next(c for c in made.candidates if c.name == "onnxruntime-int8-s8s8")
    assert signed.info.requirements.architectures == ("aarch64",)


def test_what_profiles_share_is_built_once() -> None:
    made = plan(profile("a"), profile("b"), profile("pi", architecture="aarch64"))
    steps = [step.name for step in made.steps]
    assert len(steps) == len(set(steps))
    shared = next(c for c in made.candidates if c.name == "onnxruntime-int8")
    assert shared.info.profiles == ("a", "b", "pi")


def test_every_step_comes_after_those_that_it_needs() -> None:
    known = {"source", "calibration", "evaluation", PREPARE}
    for step in plan(profile(), profile("pi", architecture="aarch64")).steps:
        assert set(step.inputs.values()) <= known, step.name
        known.add(step.name)


def test_every_recipe_can_be_planned_for_some_device() -> None:
    made = plan(
        profile("vnni"), profile("old", isa_features=()), profile("pi", architecture="aarch64")
    )
    assert {c.name for c in made.candidates} == {recipe.name for recipe in RECIPES}


def test_without_calibration_there_is_no_int8() -> None:
    made = plan(profile(), calibrated=False)
    assert names(made, "box") == {REFERENCE_CANDIDATE, "openvino-fp16"}
    assert reason(made, "openvino-int8") == "there is no calibration data"
    assert CALIBRATION_DATA not in {step.name for step in made.steps}


@pytest.mark.parametrize(
    ("operators", "text"),
    [(("Relu",), "no convolution"), (("Conv", "QuantizeLinear"), "quantized already")],
)
def test_what_cannot_be_quantized_is_not(operators: tuple[str, ...], text: str) -> None:
    made = plan(profile(), facts=msgspec.structs.replace(FACTS, operators=operators))
    assert text in reason(made, "onnxruntime-int8")
    assert names(made, "box") == {REFERENCE_CANDIDATE, "openvino-fp16"}


def test_a_missing_tool_is_named() -> None:
    tools = {name: version for name, version in TOOLS.items() if name != "nncf"}
    assert reason(plan(profile(), tools=tools), "openvino-int8") == "nncf is not installed here"


def test_a_profile_without_runtimes_leaves_no_candidate() -> None:
    made = plan(profile(runtimes=()))
    assert not made.candidates
    assert {i.candidate for i in made.impossible} == {recipe.name for recipe in RECIPES}


def test_the_evaluation_never_sees_calibration_samples_unnoticed() -> None:
    step = next(s for s in plan(profile()).steps if s.name == EVALUATION_DATA)
    assert step.inputs["other"] == CALIBRATION_DATA


def test_golden_samples_depend_on_every_kept_variant() -> None:
    made = plan(profile())
    step = golden_step(made.candidates, classes=True)
    assert {c.evaluate for c in made.candidates} <= set(step.inputs.values())


def test_equal_arguments_give_equal_plans() -> None:
    assert plan(profile()) == plan(profile())


def test_openvino_is_pinned_to_float32_execution() -> None:
    for candidate in plan(profile()).candidates:
        if candidate.info.runtime == "openvino":
            assert candidate.info.options == {"INFERENCE_PRECISION_HINT": "f32"}

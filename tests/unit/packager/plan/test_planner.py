"""The planner: which candidates a model and profiles get, which not and why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from packager.errors import BuildError
from packager.plan.figures import ModelFacts
from packager.plan.planner import make_plan
from packager.plan.recipes import PREPARE
from packager.plan.states import check_states
from packager.plan.step_names import DATA, REFERENCE
from packager.plan.steps import golden_step, other_kernels_steps
from packager.plan.values import Host, Plan, PlanSettings
from packager.runtimes.table import RUNTIMES
from wire.package.tensors import TensorSpec
from wire.profile import DeviceProfile

RECIPES = tuple(RUNTIMES.recipes.values())
TOOLS = {tool: "1" for recipe in RECIPES for tool in recipe.tools}
HOST = Host(
    architecture="x86_64",
    tools=TOOLS,
    native=frozenset({"x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-vnni"}),
)
FACTS = ModelFacts(
    inputs=(TensorSpec(name="input", datatype="FP32", shape=(-1, 4)),),
    outputs=(TensorSpec(name="scores", datatype="FP32", shape=(-1, 3)),),
    operators=("Conv", "Gemm", "MatMul", "Relu"),
    opset=17,
    parameters=15,
)
VNNI = ("avx2", "avx512_vnni", "avx512bw", "avx512dq", "avx512f", "avx512vl", "fma")


def profile(name: str = "box", **values: Any) -> DeviceProfile:
    defaults: dict[str, Any] = {
        "architecture": "x86_64",
        "isa_features": VNNI,
        "memory_bytes": 2**30,
        "storage_bytes": 2**30,
        "runtimes": ("onnxruntime", "openvino", "litert", "tvm", "iree"),
    }
    return DeviceProfile(name=name, **(defaults | values))


def pi(**values: Any) -> DeviceProfile:
    return profile("pi", architecture="aarch64", isa_features=("asimd",), **values)


def plan(
    *profiles: DeviceProfile, facts: ModelFacts = FACTS, host: Host = HOST, **settings: Any
) -> Plan:
    return make_plan(
        facts, profiles, runtimes=RUNTIMES, host=host, settings=PlanSettings(**settings)
    )


def names(made: Plan, profile_name: str) -> set[str]:
    return {c.name for c in made.candidates if profile_name in c.info.profiles}


def reason(made: Plan, candidate: str) -> str:
    return next(i.reason for i in made.impossible if i.candidate == candidate)


def test_a_box_with_vnni_gets_every_runtime_and_full_width_int8() -> None:
    made = plan(profile())
    assert names(made, "box") == {
        "onnxruntime-fp32", "onnxruntime-fp16", "onnxruntime-int8",
        "onnxruntime-int8-dynamic", "onnxruntime-int4",
        "openvino-fp16", "openvino-int8", "openvino-int4",
        "litert-fp32", "litert-fp16", "litert-int8", "litert-int8-dynamic", "litert-int4",
        "tvm-fp32-x86-64-v4-vnni", "tvm-int8-x86-64-v4-vnni",
        "iree-fp32-x86-64-v4-vnni", "iree-int8-x86-64-v4-vnni",
    }  # fmt: skip
    assert made.references == {"onnxruntime-fp32"}


def test_without_vnni_weights_are_narrower() -> None:
    made = plan(profile(isa_features=("avx2",), runtimes=("onnxruntime",)))
    assert "onnxruntime-int8-reduced" in names(made, "box")
    assert "onnxruntime-int8" not in names(made, "box")
    assert "saturate" in reason(made, "onnxruntime-int8")
    assert reason(made, "openvino-int8") == "the profile has no runtime openvino"


def test_arm_gets_the_signed_candidate_beside_the_usual_one() -> None:
    made = plan(pi())
    assert {"onnxruntime-int8", "onnxruntime-int8-s8s8"} <= names(made, "pi")
    assert not [s for s in made.steps if s.kind == "measure"], "no figure holds for this device"
    both = {s.name for s in plan(profile(), pi()).steps if s.kind == "measure"}
    assert "measure-onnxruntime-int8" in both
    assert "measure-onnxruntime-int8-s8s8" not in both
    signed = next(c for c in made.candidates if c.name == "onnxruntime-int8-s8s8")
    assert signed.info.requirements.architectures == ("aarch64",)


def test_where_only_tflite_runtime_serves_nothing_is_planned_that_it_computes_wrong() -> None:
    made = plan(profile("old-pi", architecture="armv7l", runtimes=("litert", "tvm")))
    assert {"litert-fp32", "litert-fp16", "litert-int8"} <= names(made, "old-pi")
    assert "armv7l" in reason(made, "litert-int8-dynamic")
    assert "armv7l" in reason(made, "litert-int4")


def test_bfloat16_is_planned_only_where_the_processor_has_it() -> None:
    assert "openvino-bf16" in names(plan(profile(isa_features=(*VNNI, "avx512_bf16"))), "box")
    assert reason(plan(profile()), "openvino-bf16").startswith("the processor has none of")


def test_what_profiles_share_is_built_once() -> None:
    made = plan(profile("a"), profile("b"), pi())
    steps = [step.name for step in made.steps]
    assert len(steps) == len(set(steps))
    shared = next(c for c in made.candidates if c.name == "onnxruntime-int8")
    assert shared.info.profiles == ("a", "b", "pi")
    compiled = next(c for c in made.candidates if c.name == "iree-fp32-x86-64-v4-vnni")
    assert compiled.info.profiles == ("a", "b")


def test_every_step_comes_after_those_that_it_needs() -> None:
    made = plan(profile(), pi(), own_metric=True, tuning_trials=4, tuned=True, preprocessing=True)
    known = {
        "source", "calibration", "evaluation", "metric", "preprocessing", "tuning-database", PREPARE
    }  # fmt: skip
    for step in made.steps:
        assert set(step.inputs.values()) <= known, step.name
        known.add(step.name)
    for repair in made.repairs:
        grown = set(known)
        for step in repair.steps:
            assert set(step.inputs.values()) <= grown, step.name
            grown.add(step.name)


def test_every_recipe_can_be_planned_for_some_device_and_source() -> None:
    box = profile("vnni", isa_features=(*VNNI, "avx512_bf16"))
    old = profile("old", isa_features=())
    found: set[str] = set()
    for kind in ("onnx", "tflite", "stablehlo"):
        facts = msgspec.structs.replace(FACTS, kind=kind)
        keep = {f"{r.name}{t}" for r in RECIPES for t in ("", "-x86-64-v4-vnni") if r.on_request}
        made = plan(box, old, pi(), facts=facts, keep=frozenset(keep))
        found |= {c.recipe for c in made.candidates}
        found |= {repair.candidate.recipe for repair in made.repairs}
    assert found == {recipe.name for recipe in RECIPES}


def test_float_only_makes_no_integers() -> None:
    made = plan(profile(), pi(), integers=False, keep=frozenset({"onnxruntime-int4"}))
    assert {c.info.precision for c in made.candidates} == {"fp32", "fp16"}
    assert not made.repairs
    for candidate in ("openvino-int8", "onnxruntime-int8-dynamic", "onnxruntime-int4"):
        assert reason(made, candidate) == "--float-only asks for no integer variants"


@pytest.mark.parametrize(
    ("operators", "text"),
    [
        (("Relu",), "no Conv or Gemm or MatMul to"),
        (("Conv", "QuantizeLinear"), "already quantized"),
    ],
)
def test_what_cannot_be_quantized_is_not(operators: tuple[str, ...], text: str) -> None:
    made = plan(profile(), facts=msgspec.structs.replace(FACTS, operators=operators))
    assert text in reason(made, "onnxruntime-int8")
    assert not [name for name in names(made, "box") if "int8" in name]


def test_a_few_weights_are_not_worth_a_variant() -> None:
    facts = msgspec.structs.replace(FACTS, weights={"Conv": 0.96, "Gemm": 0.03, "MatMul": 0.01})
    made = plan(profile(), facts=facts)
    for candidate in ("onnxruntime-int8-dynamic", "onnxruntime-int4"):
        assert reason(made, candidate) == "Gemm and MatMul hold only 4.0% of the weights"
    assert "onnxruntime-int8" in names(made, "box")


def test_where_weights_stay_apart_only_what_does_not_hold_them_all_is_planned() -> None:
    facts = msgspec.structs.replace(FACTS, apart=True)
    made = plan(profile(), facts=facts)
    names_made = {candidate.name: candidate.files for candidate in made.candidates}
    assert names_made.pop("openvino-fp16") == ("model.xml", "model.bin")
    assert set(names_made) == {
        f"onnxruntime-{precision}" for precision in ("fp32", "fp16", "int8-dynamic", "int4")
    }
    assert set(names_made.values()) == {("model.onnx", "model.onnx.data")}
    assert not made.repairs
    for recipe in RUNTIMES.recipes.values():
        if "onnx" in recipe.sources and not recipe.apart:
            assert any(i.candidate == recipe.name for i in made.impossible)
    assert "--apart-over" in reason(made, "openvino-int8")
    (data,) = [step for step in made.steps if step.name == "data"]
    assert data.options["calibrated"] is False


def test_a_missing_tool_is_named_with_the_command_that_installs_it() -> None:
    tools = {name: v for name, v in TOOLS.items() if name not in {"nncf", "onnx2tf"}}
    made = plan(profile(), host=msgspec.structs.replace(HOST, tools=tools))
    assert reason(made, "openvino-int8") == "nncf is not installed here"
    for candidate in ("litert-fp32", "litert-int8"):
        assert "fleet tool install onnx2tf" in reason(made, candidate)
    tools = {name: v for name, v in TOOLS.items() if name != "ai-edge-litert"}
    made = plan(profile(), host=msgspec.structs.replace(HOST, tools=tools))
    assert reason(made, "litert-int8").startswith("ai-edge-litert is not installed here")


def test_a_missing_cross_compiler_is_named_with_its_package() -> None:
    host = msgspec.structs.replace(
        HOST, lacking={"tvm": {"riscv64": "apt-get install gcc-riscv64"}}
    )
    made = plan(profile("board", architecture="riscv64", runtimes=("tvm",)), host=host)
    assert reason(made, "tvm-fp32") == "apt-get install gcc-riscv64"
    assert not made.candidates


def test_a_compiled_variant_is_no_last_resort_where_another_runtime_serves() -> None:
    made = plan(pi())
    assert "the profile has the runtime onnxruntime" in reason(made, "tvm-fp32")
    assert "iree-fp32-aarch64" in names(made, "pi")
    kept = plan(pi(), keep=frozenset({"tvm-fp32-aarch64"}))
    assert "tvm-fp32-aarch64" in names(kept, "pi")
    assert names(plan(pi(runtimes=("tvm",))), "pi") == {"tvm-fp32-aarch64", "tvm-int8-aarch64"}


def test_what_cannot_run_here_is_emulated_and_not_measured() -> None:
    made = plan(pi(runtimes=("tvm",)))
    kinds = {step.name: step.kind for step in made.steps}
    assert kinds["evaluate-tvm-fp32-aarch64"] == "emulate-tvm"
    assert "measure-tvm-fp32-aarch64" not in kinds
    native = {step.kind for step in plan(profile(runtimes=("tvm",))).steps}
    assert "measure" in native
    assert "emulate-tvm" not in native


def test_a_size_that_only_a_request_tells_rules_compilers_out() -> None:
    spec = TensorSpec(name="text", datatype="INT64", shape=(-1, -1))
    made = plan(profile(), facts=msgspec.structs.replace(FACTS, inputs=(spec,)))
    why = reason(made, "tvm-fp32")
    assert "'text' [" in why
    assert "has a size besides the batch that only a request gives" in why
    assert "tvm compiles for one shape; export the model with fixed sizes" in why
    assert "onnxruntime-int8" in names(made, "box")


def test_tuning_comes_before_what_it_tunes_and_runs_alone() -> None:
    made = plan(profile(runtimes=("tvm",)), tuning_trials=8)
    steps = {step.name: step for step in made.steps}
    tuning = steps["tune-tvm-fp32-x86-64-v4-vnni"]
    assert tuning.quiet
    assert tuning.options["trials"] == 8
    assert steps["build-tvm-fp32-x86-64-v4-vnni"].inputs["database"] == tuning.name
    later = {s.name: s for s in plan(profile(runtimes=("tvm",)), tuned=True).steps}
    assert later["build-tvm-fp32-x86-64-v4-vnni"].inputs["database"] == "tuning-database"


def test_what_hardly_ever_pays_is_only_built_on_request() -> None:
    assert (
        reason(plan(profile()), "onnxruntime-int8-entropy") == "a build makes it only with --keep"
    )
    asked = plan(profile(), keep=frozenset({"onnxruntime-int8-entropy"}))
    assert "onnxruntime-int8-entropy" in names(asked, "box")


def test_a_repair_waits_for_the_miss() -> None:
    made = plan(profile())
    assert {(r.of, r.candidate.name) for r in made.repairs} == {
        ("onnxruntime-int8", "onnxruntime-int8-percentile"),
        ("onnxruntime-int8", "onnxruntime-int8-repaired"),
        ("openvino-int8", "openvino-int8-accuracy"),
    }
    steps = {step.name for step in made.steps}
    assert not steps & {step.name for repair in made.repairs for step in repair.steps}
    assert not plan(profile(), repair_trials=0).repairs


def test_a_profile_without_runtimes_leaves_no_candidate() -> None:
    made = plan(profile(runtimes=()))
    assert not made.candidates
    onnx = {recipe.name for recipe in RECIPES if "onnx" in recipe.sources}
    assert {i.candidate for i in made.impossible} == onnx


def test_what_makes_files_sees_no_answers_but_a_repair_and_nothing_sees_the_gate_early() -> None:
    made = plan(profile())
    for step in made.steps:
        if step.name.startswith("build-"):
            assert REFERENCE not in step.inputs.values()
    repairing = [s for r in made.repairs for s in r.steps if s.name.startswith("build-")]
    assert {REFERENCE, DATA} <= set(repairing[-1].inputs.values())


def test_golden_samples_depend_on_every_kept_variant() -> None:
    made = plan(profile())
    step = golden_step(made.candidates, metric="top1")
    assert {c.evaluate for c in made.candidates} <= set(step.inputs.values())


def test_a_runtime_with_other_kernels_is_evaluated_with_them_too() -> None:
    made = plan(profile())
    steps = other_kernels_steps(made.candidates, made.steps, RUNTIMES)
    litert = [c for c in made.candidates if c.info.runtime == "litert"]
    assert [step.name for step in steps] == [c.evaluate_others for c in litert]
    usual = {step.name: step for step in made.steps}
    for step, candidate in zip(steps, litert, strict=True):
        assert step.options["info"]["options"] == {"delegate": "none"}
        assert step.inputs == usual[candidate.evaluate].inputs
    without = msgspec.structs.replace(
        litert[0], info=msgspec.structs.replace(litert[0].info, options={"delegate": "none"})
    )
    assert other_kernels_steps((without,), made.steps, RUNTIMES) == ()


def test_the_answers_of_other_kernels_choose_golden_samples_where_they_are_vouched_for() -> None:
    made = plan(profile())
    step = golden_step(made.candidates, others={"litert-int8"}, metric="top1")
    asked = set(step.inputs.values())
    assert {c.evaluate_others for c in made.candidates} & asked == {
        "evaluate-litert-int8-other-kernels"
    }


def test_equal_arguments_give_equal_plans() -> None:
    assert plan(profile()) == plan(profile())


def test_openvino_says_in_what_it_computes() -> None:
    for candidate in plan(profile(isa_features=("amx_bf16",))).candidates:
        if candidate.info.runtime == "openvino":
            assert candidate.info.options["INFERENCE_PRECISION_HINT"] in {"f32", "bf16"}


def test_a_model_of_texts_gets_the_runtimes_that_read_texts_and_no_repairs() -> None:
    facts = msgspec.structs.replace(
        FACTS, inputs=(TensorSpec(name="said", datatype="BYTES", shape=(-1,)),)
    )
    made = plan(profile(), facts=facts)
    assert {c.info.runtime for c in made.candidates} == {"onnxruntime"}
    assert {"onnxruntime-fp32", "onnxruntime-int8-dynamic"} <= names(made, "box")
    assert not made.repairs
    for candidate in ("openvino-fp16", "litert-fp32"):
        runtime = candidate.partition("-")[0]
        assert reason(made, candidate) == (
            f"input 'said' takes texts, which onnxruntime reads, but not {runtime}"
        )


def test_states_and_texts_do_not_go_together() -> None:
    state = TensorSpec(name="h", datatype="FP32", shape=(-1, 4))
    said = TensorSpec(name="said", datatype="BYTES", shape=(-1,))
    after = msgspec.structs.replace(state, name="hn")
    with pytest.raises(BuildError, match="input 'said' takes texts"):
        check_states({"h": "hn"}, (said, state), (after,))
    check_states({}, (said, state), (after,))


def test_a_model_with_bodies_gets_what_enters_them_and_a_reason_for_the_rest() -> None:
    operators = ("Loop", "MatMul", "Scan")
    inside = {"MatMul": 0.98}
    facts = msgspec.structs.replace(
        FACTS, operators=operators, weights={"MatMul": 1.0}, inner_weights=inside
    )
    made = plan(profile(), facts=facts)
    assert {"onnxruntime-fp16", "onnxruntime-int8-dynamic", "onnxruntime-int4"} <= names(
        made, "box"
    )
    for name in ("onnxruntime-int8", "openvino-int8", "openvino-int4"):
        assert "only 2.0% of the weights" in reason(made, name)
    assert reason(made, "tvm-fp32") == "TVM's importer does not compile Loop"


def test_weights_outside_of_bodies_are_worth_a_static_int8() -> None:
    facts = msgspec.structs.replace(
        FACTS, operators=("If", "MatMul"), weights={"MatMul": 1.0}, inner_weights={"MatMul": 0.5}
    )
    made = plan(profile(), facts=facts)
    assert "onnxruntime-int8" in names(made, "box")
    assert "on one thread" in reason(made, "openvino-int8")


def test_an_if_without_weights_within_keeps_openvino_in_int8() -> None:
    facts = msgspec.structs.replace(FACTS, operators=("If", "MatMul"), weights={"MatMul": 1.0})
    assert "openvino-int8" in names(plan(profile(), facts=facts), "box")

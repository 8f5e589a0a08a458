from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.codec import from_json, to_json
from wire.desired import (
    MAX_MODELS,
    NAMED_MODELS,
    ONE_RELEASE,
    DesiredModels,
    DesiredState,
    ModelState,
    desired_from_json,
    desired_to_json,
)
from wire.errors import WireFormatError
from wire.installs import ReleaseRef
from wire.policy import PolicySpec
from wire.shadow import ShadowRule


def release(name: str = "digits") -> ReleaseRef:
    return ReleaseRef(
        name=name, version="1", digest="a" * 64, envelope_sha256="b" * 64, envelope_size_bytes=9
    )


def model(name: str = "digits", **fields: object) -> ModelState:
    values = {"name": name, "revision": 3, "release": release(name), "rollout": "r1"} | fields
    return ModelState(**values)  # type: ignore[arg-type]


def wanted(*models: ModelState, **fields: object) -> DesiredModels:
    values = {"device": "cam", "revision": 3, "issued_at_s": 1.0, "models": models} | fields
    return DesiredModels(**values)  # type: ignore[arg-type]


names = st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True)


@given(st.lists(names, max_size=5, unique=True), st.booleans())
def test_what_is_written_in_form_2_is_read_as_it_was(chosen: list[str], tells: bool) -> None:
    state = wanted(*map(model, chosen), has_sources=tells)
    assert desired_from_json(desired_to_json(state, form=NAMED_MODELS)) == state
    assert not state.faults()


def test_one_model_is_written_in_form_1_for_an_agent_that_knows_no_other() -> None:
    state = wanted(model(policy=PolicySpec(kind="rules")), boot_id="b", has_sources=True)
    told = from_json(desired_to_json(state, form=ONE_RELEASE), DesiredState)
    assert (told.schema_version, told.release, told.rollout) == (1, release(), "r1")
    assert (told.policy.kind, told.boot_id, told.has_sources) == ("rules", "b", True)


def test_form_1_has_the_same_meaning_in_form_2() -> None:
    state = wanted(model(), boot_id="b")
    read = desired_from_json(desired_to_json(state, form=ONE_RELEASE))
    assert read == msgspec.structs.replace(state, schema_version=ONE_RELEASE)
    assert desired_to_json(read, form=NAMED_MODELS) == desired_to_json(state, form=NAMED_MODELS)


def test_form_1_without_a_release_leaves_all_models_as_they_are() -> None:
    one = DesiredState(device="cam", revision=3, issued_at_s=1.0, release=None)
    state = desired_from_json(to_json(one))
    assert (state.models, state.keeps_others, state.is_unnamed) == ((), True, True)
    assert not wanted(keeps_others=True).is_unnamed, "form 2 says what it means"


def test_several_models_cannot_be_told_to_an_agent_that_has_one() -> None:
    with pytest.raises(WireFormatError, match="has one model, and it should run digits, speech"):
        desired_to_json(wanted(model(), model("speech")), form=ONE_RELEASE)


def test_another_form_is_refused_with_those_that_can_be_read() -> None:
    data = to_json({"schema_version": 4, "device": "cam"})
    with pytest.raises(WireFormatError, match="form 4; this version reads 1 to 3"):
        desired_from_json(data)


@pytest.mark.parametrize(
    ("models", "fault"),
    [
        ((model(), model()), "model digits is named twice"),
        ((model("Digits"),), "'Digits' is no name of a model"),
        ((model(revision=4),), "revision 4 of model digits is not within 1 to 3"),
        ((model(revision=0),), "revision 0 of model digits is not within 1 to 3"),
        ((model(release=release("speech")),), "digits has a package of another model: speech:1"),
        (
            tuple(model(f"m{number}") for number in range(MAX_MODELS + 1)),
            f"33 models are named, and a device has {MAX_MODELS} at most",
        ),
    ],
)
def test_models_that_cannot_be(models: tuple[ModelState, ...], fault: str) -> None:
    assert any(fault in line for line in wanted(*models).faults())


def test_unknown_fields_are_passed_over() -> None:
    plain = msgspec.json.decode(to_json(wanted(model())))
    plain["models"][0]["colour"] = "blue"
    plain["weather"] = "fine"
    assert desired_from_json(to_json(plain)) == wanted(model())


def test_a_shadow_is_a_release_of_the_same_model_and_sees_a_share() -> None:
    model = ModelState(name="digits", revision=1, release=None)

    def faults(name: str, share: float) -> tuple[str, ...]:
        release = ReleaseRef(
            name=name, version="2", digest="d", envelope_sha256="e", envelope_size_bytes=1
        )
        shadowed = msgspec.structs.replace(model, shadow=ShadowRule(release=release, share=share))
        state = DesiredModels(device="d", revision=1, issued_at_s=1.0, models=(shadowed,))
        return state.faults()

    assert faults("digits", 1.0) == ()
    assert faults("speech", 1.0) == ("model digits: shadow.release is of another model: speech:2",)
    assert faults("digits", 0.0) == ("model digits: shadow.share is not above 0 and at most 1",)

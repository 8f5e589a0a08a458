"""Profiles as TOML files, and the part of a profile that one device has."""

from __future__ import annotations

import tomllib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.errors import WireFormatError
from wire.profile import (
    DeviceProfile,
    ThermalLimits,
    checked_profile,
    only_runtimes,
    profile_from_toml,
    profile_to_toml,
)

PROFILE = DeviceProfile(
    name="box",
    architecture="aarch64",
    memory_bytes=2**30,
    storage_bytes=2**30,
    runtimes=("onnxruntime", "litert", "tvm"),
    runtime_versions={"onnxruntime": "1.20", "litert": "2.1"},
)
TEXT = st.text(st.characters(codec="utf-8"), max_size=30)


@given(TEXT, st.lists(TEXT, max_size=3), st.floats(50, 120))
def test_a_profile_is_read_back_as_it_was_written(
    text: str, sources: list[str], severe_c: float
) -> None:
    profile = DeviceProfile(
        name="box",
        description=text,
        architecture="x86_64",
        memory_bytes=1,
        storage_bytes=1,
        accelerators=("gpu-x",),
        runtimes=("onnxruntime",),
        runtime_versions={"onnxruntime": "1.20"},
        sources=tuple(sources),
        thermal=ThermalLimits(severe_c=severe_c),
    )
    assert profile_from_toml(profile_to_toml(profile).encode()) == profile


def test_limits_of_heat_that_nobody_measured_are_not_written() -> None:
    assert "thermal" not in tomllib.loads(profile_to_toml(PROFILE))
    assert profile_from_toml(profile_to_toml(PROFILE).encode()) == PROFILE


@pytest.mark.parametrize(
    ("found", "kept"),
    [
        (("null", "onnxruntime", "tvm", "openvino"), ("onnxruntime", "tvm")),
        (("tvm",), ("tvm",)),
        ((), ()),
    ],
)
def test_a_device_has_a_part_of_the_runtimes(found: tuple[str, ...], kept: tuple[str, ...]) -> None:
    usable = checked_profile(only_runtimes(PROFILE, found))
    assert usable.runtimes == kept
    assert set(usable.runtime_versions or {}) <= set(kept)
    bare = DeviceProfile(name="a", architecture="x86_64", memory_bytes=1, storage_bytes=1)
    assert only_runtimes(bare, found) == bare


@pytest.mark.parametrize(
    "changed",
    [
        {"runtimes": ("a",) * 65},
        {"isa_features": tuple(str(number) for number in range(65))},
        {"sources": ("",) * 65},
        {"accelerators": ("npu",) * 65},
    ],
)
def test_a_list_of_a_profile_is_bounded(changed: dict[str, tuple[str, ...]]) -> None:
    with pytest.raises(WireFormatError, match="more than 64 items"):
        checked_profile(msgspec.structs.replace(PROFILE, **changed))


def test_a_fault_quotes_a_part_of_what_it_names() -> None:
    with pytest.raises(WireFormatError) as caught:
        checked_profile(msgspec.structs.replace(PROFILE, name="A" * 10_000))
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ("severe_c = 40.0", "thermal.nominal_c is not below thermal.severe_c"),
        ("nominal_c = nan", "thermal.nominal_c is not below thermal.severe_c"),
        ("severe_c = nan", "thermal.nominal_c is not below thermal.severe_c"),
        ("severe_c = inf", "thermal: the limits are not within -100 to 150"),
        ("nominal_c = -inf", "thermal: the limits are not within -100 to 150"),
        ("severe_c = 850.0", "thermal: the limits are not within -100 to 150"),
    ],
)
def test_limits_under_which_no_heat_counts_are_refused(limits: str, fault: str) -> None:
    text = f"{profile_to_toml(PROFILE)}\n[thermal]\n{limits}\n"
    with pytest.raises(WireFormatError) as caught:
        profile_from_toml(text.encode())
    assert str(caught.value) == f"profile: {fault}"

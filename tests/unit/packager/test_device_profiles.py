"""Profiles: the shipped ones, a user's own, and this machine's."""

from __future__ import annotations

from pathlib import Path

import pytest

from packager.device_profiles import load_profile, profile_names, save_profile
from packager.errors import ProfileError
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.profile import DeviceProfile, profile_from_toml, profile_to_toml

SHIPPED = {
    "edge-min", "imx8mm", "jetson-orin-nano", "n100", "rpi-zero2w", "rpi2", "rpi4", "rpi5",
    "visionfive2", "x86-64-vnni",
}  # fmt: skip
RUNTIMES = {"onnxruntime", "openvino", "litert", "tvm", "iree"}


def test_the_boards_that_are_shipped() -> None:
    assert set(profile_names()) == SHIPPED
    assert load_profile("x86-vnni") == load_profile("x86-64-vnni")


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_is_valid_named_as_its_file_and_cites_sources(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.isa_features
    assert profile.sources
    assert all(source.startswith("https://") for source in profile.sources)
    assert "tvm" in profile.runtimes
    assert set(profile.runtimes) <= RUNTIMES
    assert set(profile.runtime_versions or {}) == set(profile.runtimes) - {"tvm"}
    assert profile_from_toml(profile_to_toml(profile).encode()) == profile


def test_a_board_has_no_runtime_that_its_processor_or_its_memory_cannot_have() -> None:
    profiles = [load_profile(name) for name in profile_names()]
    assert {p.name for p in profiles if p.architecture == "riscv64"} == {"visionfive2"}
    for profile in profiles:
        if profile.architecture == "riscv64":
            assert profile.runtimes == ("tvm",)
        if profile.architecture == "armv7l":
            assert set(profile.runtimes) == {"litert", "tvm"}
        if profile.memory_bytes < 512 * 1024**2:
            assert not {"openvino", "iree"} & set(profile.runtimes)


def test_an_own_profile_is_read_from_its_path(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    save_profile(load_profile("rpi5"), path)
    assert load_profile(str(path)) == load_profile("rpi5")
    with pytest.raises(ProfileError, match="exists already"):
        save_profile(load_profile("rpi5"), path)


def test_an_unknown_name_key_or_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, match="no profile 'rpi9'") as caught:
        load_profile("rpi9")
    assert "rpi5" in caught.value.remedy
    with pytest.raises(ProfileError, match="cannot be read"):
        load_profile(str(tmp_path / "none.toml"))
    path = tmp_path / "odd.toml"
    path.write_text(profile_to_toml(load_profile("rpi5")) + "\nsevre_c = 1\n")
    with pytest.raises(ProfileError, match="sevre_c"):
        load_profile(str(path))


def test_a_profile_of_the_first_release_is_read_and_written_unchanged() -> None:
    old = b'{"architecture":"aarch64","memory_bytes":1048576,"name":"a","storage_bytes":1048576}'
    profile = from_json(old, DeviceProfile)
    written = to_json(profile)
    assert b"accelerators" not in written
    assert b"runtime_versions" not in written
    assert from_json(written, DeviceProfile) == profile
    assert "accelerators" not in profile_to_toml(profile)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ('accelerators = ["GPU 0"]\n', "not a plain name"),
        (
            '[runtime_versions]\nopenvino = "2025.0"\n',
            "names openvino, but the list `runtimes` does not",
        ),
        ('[runtime_versions]\nonnxruntime = "newest"\n', "not a version"),
    ],
)
def test_an_impossible_accelerator_or_version_is_refused(more: str, reason: str) -> None:
    text = (
        'name = "a"\narchitecture = "aarch64"\nmemory_bytes = 1\nstorage_bytes = 1\n'
        'runtimes = ["onnxruntime"]\n'
    )
    profile_from_toml(text.encode())
    with pytest.raises(WireFormatError, match=reason):
        profile_from_toml((text + more).encode())

"""Profiles: the shipped ones, a user's own, and this machine's."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from packager.device_profiles import (
    detect_profile,
    load_profile,
    profile_names,
    profile_to_toml,
    save_profile,
)
from packager.errors import ProfileError
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.profile import DeviceProfile, profile_from_toml

BOARDS = Path(__file__).parents[2] / "data" / "sysfs"
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


def machine(root: Path) -> tuple[Path, Path]:
    proc, sys = root / "proc", root / "sys"
    zone, supply = sys / "class/thermal/thermal_zone0", sys / "class/power_supply/BAT0"
    for folder in (proc, zone, supply):
        folder.mkdir(parents=True)
    (proc / "cpuinfo").write_text("model name\t: Some CPU @ 1 GHz\nflags\t: fpu avx2 avx_vnni\n")
    (proc / "meminfo").write_text("MemTotal:        4096000 kB\n")
    (zone / "trip_point_0_type").write_text("passive\n")
    (zone / "trip_point_0_temp").write_text("90000\n")
    (zone / "trip_point_1_type").write_text("passive\n")
    (zone / "trip_point_1_temp").write_text("-274000\n")
    (supply / "type").write_text("Battery\n")
    return proc, sys


def test_this_machine_is_described(tmp_path: Path) -> None:
    proc, sys = machine(tmp_path)
    profile = detect_profile(procfs=proc, sysfs=sys, devfs=tmp_path / "dev")
    assert profile.name == "some-cpu-1-ghz"
    assert profile.architecture == os.uname().machine
    assert profile.isa_features == ("avx2", "avx_vnni")
    assert profile.memory_bytes == 2000 * 1024 * 1024
    assert profile.power_source == "battery"
    assert profile.thermal.severe_c == 90.0
    assert "onnxruntime" in profile.runtimes
    assert isinstance(profile.runtime_versions, dict)
    assert profile.runtime_versions["onnxruntime"] == version("onnxruntime")
    assert profile.accelerators == ()


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


def detected(board: str) -> DeviceProfile:
    root = BOARDS / board
    return detect_profile(procfs=root / "proc", sysfs=root / "sys", devfs=root / "dev")


def test_a_raspberry_pi_is_described() -> None:
    profile = detected("rpi4")
    assert profile.name == "raspberry-pi-4-model-b-rev-1-5"
    assert profile.isa_features == load_profile("rpi4").isa_features
    assert profile.memory_bytes == 1896 * 1024**2
    assert profile.accelerators == ()


def test_a_jetson_is_described_with_its_graphics_unit_named_once() -> None:
    profile = detected("jetson-orin-nano")
    shipped = load_profile("jetson-orin-nano")
    assert profile.name == "nvidia-jetson-orin-nano-developer-kit"
    assert profile.isa_features == shipped.isa_features
    assert profile.accelerators == shipped.accelerators == ("gpu-nvidia",)
    assert profile.thermal.severe_c == shipped.thermal.severe_c


def test_every_kind_of_accelerator_is_found() -> None:
    profile = detected("x86-minipc")
    assert profile.isa_features == load_profile("n100").isa_features
    assert profile.accelerators == ("gpu-i915", "npu-intel_vpu", "tpu-apex")
    assert profile_from_toml(profile_to_toml(profile).encode()) == profile


def test_the_extensions_of_risc_v_are_read_from_its_isa_string() -> None:
    profile = detected("visionfive2")
    assert profile.name == "starfive-visionfive-2-v1-3b"
    assert profile.isa_features == load_profile("visionfive2").isa_features == ("zba", "zbb")
    assert profile.thermal.severe_c == load_profile("visionfive2").thermal.severe_c


def test_what_the_kernel_does_not_tell_has_a_cautious_default(tmp_path: Path) -> None:
    profile = detect_profile("bare", procfs=tmp_path, sysfs=tmp_path, devfs=tmp_path)
    assert profile.isa_features == ()
    assert profile.power_source == "mains"
    assert profile.thermal.severe_c == 85.0
    with pytest.raises(ProfileError, match="plain name"):
        detect_profile("Not Plain", procfs=tmp_path, sysfs=tmp_path)

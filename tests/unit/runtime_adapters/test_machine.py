"""This machine as a profile, and boards as their kernels describe them."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from packager.device_profiles import load_profile
from runtime_adapters.machine import detect_profile
from wire.errors import WireFormatError
from wire.profile import DeviceProfile, profile_from_toml, profile_to_toml

BOARDS = Path(__file__).parents[2] / "data" / "sysfs"


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
    assert "severe_c = 90.0" in profile_to_toml(profile)


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
    assert "thermal" not in profile_to_toml(profile), "nobody told a limit of heat"
    assert profile_from_toml(profile_to_toml(profile).encode()) == profile
    with pytest.raises(WireFormatError, match="plain name"):
        detect_profile("Not Plain", procfs=tmp_path, sysfs=tmp_path)

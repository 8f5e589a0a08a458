"""Profiles: the shipped ones, a user's own, and this machine's."""

from __future__ import annotations

import os
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
from wire.profile import profile_from_toml


def test_the_boards_of_the_demo_are_there() -> None:
    assert set(profile_names()) >= {"x86-64-vnni", "n100", "rpi4", "rpi5", "edge-min"}


@pytest.mark.parametrize("name", profile_names())
def test_every_shipped_profile_is_valid_named_as_its_file_and_cites_sources(name: str) -> None:
    profile = load_profile(name)
    assert profile.name == name
    assert profile.sources
    assert profile.runtimes
    assert profile_from_toml(profile_to_toml(profile).encode()) == profile


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
    profile = detect_profile(procfs=proc, sysfs=sys)
    assert profile.name == "some-cpu-1-ghz"
    assert profile.architecture == os.uname().machine
    assert profile.isa_features == ("avx2", "avx_vnni")
    assert profile.memory_bytes == 2000 * 1024 * 1024
    assert profile.power_source == "battery"
    assert profile.thermal.severe_c == 90.0
    assert "onnxruntime" in profile.runtimes


def test_what_the_kernel_does_not_tell_has_a_cautious_default(tmp_path: Path) -> None:
    profile = detect_profile("bare", procfs=tmp_path, sysfs=tmp_path)
    assert profile.isa_features == ()
    assert profile.power_source == "mains"
    assert profile.thermal.severe_c == 85.0
    with pytest.raises(ProfileError, match="plain name"):
        detect_profile("Not Plain", procfs=tmp_path, sysfs=tmp_path)

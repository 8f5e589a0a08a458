"""Which target a kind of device gets, and what is needed to build for it."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from packager.plan.targets import TARGETS, Target, is_such, named, target_of
from packager.tools import toolchains
from wire.profile import Architecture, DeviceProfile, profile_from_toml

PROFILES = Path(__file__).resolve().parents[4] / "packager" / "profiles"
AVX512 = ("avx512bw", "avx512dq", "avx512f", "avx512vl")


def profile(architecture: Architecture, *features: str) -> DeviceProfile:
    return DeviceProfile(
        name="board",
        architecture=architecture,
        isa_features=features,
        memory_bytes=1,
        storage_bytes=1,
    )


@pytest.mark.parametrize(
    ("architecture", "features", "name"),
    [
        ("x86_64", (), "x86-64"),
        ("x86_64", ("sse4_2",), "x86-64-v2"),
        ("x86_64", ("avx2", "sse4_2"), "x86-64-v2"),
        ("x86_64", ("avx2", "fma", "sse4_2"), "x86-64-v3"),
        ("x86_64", ("avx2", "avx_vnni", "fma"), "x86-64-v3"),
        ("x86_64", ("avx2", "avx512f", "fma"), "x86-64-v3"),
        ("x86_64", ("avx2", "fma", *AVX512), "x86-64-v4"),
        ("x86_64", ("avx2", "fma", "avx512_vnni", *AVX512), "x86-64-v4-vnni"),
        ("aarch64", (), "aarch64"),
        ("aarch64", ("asimd", "crc32"), "aarch64"),
        ("aarch64", ("asimddp",), "aarch64"),
        ("aarch64", ("asimd", "asimddp", "asimdhp"), "aarch64-dotprod"),
        ("armv7l", ("neon",), "armv7"),
        ("armv7l", ("neon", "vfpv4"), "armv7-vfpv4"),
        ("riscv64", (), "riscv64"),
    ],
)
def test_a_profile_gets_the_most_that_it_names(
    architecture: Architecture, features: tuple[str, ...], name: str
) -> None:
    target = target_of(profile(architecture, *features))
    assert target.name == name
    assert target.architecture == architecture
    assert set(target.isa_features) <= set(features)
    assert target is named(name)


def test_a_device_without_neon_is_told_what_it_lacks() -> None:
    assert target_of(profile("armv7l")).isa_features == ("neon",)


def test_shipped_profiles_share_targets_where_they_can() -> None:
    found = {
        path.stem: target_of(profile_from_toml(path.read_bytes())).name
        for path in PROFILES.glob("*.toml")
    }
    assert found["n100"] == "x86-64-v3"
    assert found["x86-64-vnni"] == "x86-64-v4-vnni"
    assert found["edge-min"] == "x86-64-v2"
    assert found["rpi4"] == "aarch64"
    assert found["rpi5"] == "aarch64-dotprod"


def test_targets_are_plain_data_with_one_name_each() -> None:
    assert len({target.name for target in TARGETS}) == len(TARGETS)
    for target in TARGETS:
        assert msgspec.json.decode(msgspec.json.encode(target), type=Target) == target
        assert set(target.isa_features) <= set(target.cpu_flags)


def test_a_more_demanding_target_comes_before_those_it_contains() -> None:
    for position, target in enumerate(TARGETS):
        for later in TARGETS[position + 1 :]:
            if later.architecture == target.architecture:
                assert not set(later.isa_features) > set(target.isa_features)


def test_what_is_missing_is_named_by_its_package() -> None:
    absent = msgspec.structs.replace(
        named("aarch64"), architecture="riscv64", compiler="no-such-gcc", emulator="no-such-qemu"
    )
    assert toolchains.missing_compiler(absent) == absent.compiler_package
    if os.uname().machine != "riscv64":
        nowhere = msgspec.structs.replace(absent, sysroot="/no/such/folder")
        assert toolchains.missing_to_try(nowhere) == absent.compiler_package
        assert toolchains.missing_to_try(msgspec.structs.replace(absent, sysroot="/")) == (
            "qemu-user-static"
        )
    assert toolchains.compiler_version(absent) is None


def test_running_here_needs_the_architecture_and_every_flag(tmp_path: Path) -> None:
    here = next((t for t in TARGETS if t.architecture == os.uname().machine), None)
    if here is None:
        pytest.skip(f"there is no target for {os.uname().machine}")
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"flags\t\t: fpu {' '.join(here.cpu_flags)}\n", encoding="ascii")
    assert toolchains.natively_runnable(here, cpuinfo=cpuinfo)
    cpuinfo.write_text(f"Features\t: {' '.join(here.cpu_flags[1:])}\n", encoding="ascii")
    assert not toolchains.natively_runnable(here, cpuinfo=cpuinfo)
    cpuinfo.unlink()
    assert not toolchains.natively_runnable(here, cpuinfo=cpuinfo)
    other = next(t for t in TARGETS if t.architecture != os.uname().machine)
    assert not toolchains.natively_runnable(other)


N100 = "Intel(R) N100"
XEON = "Intel(R) Xeon(R) Processor"


@pytest.mark.parametrize(
    ("name", "board", "target", "such"),
    [
        ("n100", N100, "x86-64-v3", True),
        ("n100", XEON, "x86-64-v3", False),
        ("x86-64-vnni", XEON, "x86-64-v4-vnni", True),
        ("x86-64-vnni", N100, "x86-64-v3", False),
        ("edge-min", XEON, "x86-64-v4-vnni", False),
        ("edge-min", "Intel(R) Atom(TM) CPU E3815", "x86-64-v2", True),
        ("rpi4", XEON, "x86-64-v4-vnni", False),
    ],
)
def test_latencies_hold_for_such_devices_as_measured_them(
    name: str, board: str, target: str, such: bool
) -> None:
    device = profile_from_toml((PROFILES / f"{name}.toml").read_bytes())
    assert is_such(device, architecture="x86_64", board=board, target=target) == such


def test_a_board_is_known_by_the_beginning_of_its_name() -> None:
    device = profile_from_toml((PROFILES / "rpi5.toml").read_bytes())
    for board, such in (("Raspberry Pi 5 Model B Rev 1.0", True), ("Neoverse-N1", False)):
        found = is_such(device, architecture="aarch64", board=board, target="aarch64-dotprod")
        assert found == such

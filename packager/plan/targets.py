"""What a compiler must know about a kind of device: architecture, instructions, tools.

The functions are pure: they take a device profile and return a target.

Rules:
- Profiles that look the same to a compiler have the same target and share one build.
- A target asks for no instruction that the profile does not name, and a profile that names none
  gets the architecture's baseline.
- A profile has a level when it names the few features that mark it: every processor with these has
  all features of the level. `cpu_flags` lists all of them, so that loading a library fails on a
  virtual machine that hides some.

Source:
    System V ABI, AMD64 supplement, 3.1.1: micro-architecture levels. Linux,
    arch/x86/include/asm/cpufeatures.h and Documentation/arch/arm64/elf_hwcaps.rst: names in
    /proc/cpuinfo. RISC-V profiles: rv64gc. Debian: names of the cross compilers.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.profile import Architecture, DeviceProfile


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of processor with the tools that build and try code for it."""

    name: str
    architecture: Architecture
    triple: str
    """LLVM's name of the platform."""

    cpu: str
    """LLVM's name of the processor."""

    features: tuple[str, ...] = ()
    """LLVM's names of instruction sets beyond those of `cpu`, such as `+neon`."""

    isa_features: tuple[str, ...] = ()
    """What a device must have, as /proc/cpuinfo and profiles name it."""

    cpu_flags: tuple[str, ...] = ()
    """All that the code may use, as /proc/cpuinfo names it."""

    tile: tuple[int, int]
    """Sums that are kept in registers: neighbours in memory, times rows of them. They take about
    half of the vector registers; the rest hold what is multiplied."""

    float_abi: str = ""
    """`hard` where the platform has two ways to pass floats."""

    abi: str = ""
    """LLVM's name of the calling convention, where there are several."""

    compiler: str
    """The C compiler for this platform, a command."""

    compiler_package: str
    """The Debian package that has it."""

    emulator: str = ""
    """User-mode emulator, a command; empty where none has these instructions."""

    emulator_package: str = "qemu-user-static"
    emulated_cpu: str = ""
    """The emulator's name of the processor; its default is far slower, or has more features."""

    sysroot: str
    """Where the platform's C library lies, for the emulator."""


_V2_FLAGS: Final = ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")
_V3_FLAGS: Final = (*_V2_FLAGS, "abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe")
_V4_FLAGS: Final = (*_V3_FLAGS, "avx512bw", "avx512cd", "avx512dq", "avx512f", "avx512vl")
_V4_MARKS: Final = ("avx2", "avx512bw", "avx512dq", "avx512f", "avx512vl", "fma")


def _x86_64(
    name: str,
    marks: tuple[str, ...] = (),
    flags: tuple[str, ...] = (),
    *,
    cpu: str = "",
    features: tuple[str, ...] = (),
    emulated_cpu: str = "",
    tile: tuple[int, int] = (4, 8),
) -> Target:
    return Target(
        name=name,
        tile=tile,
        architecture="x86_64",
        triple="x86_64-linux-gnu",
        cpu=cpu or name,
        features=features,
        isa_features=marks,
        cpu_flags=flags,
        compiler="x86_64-linux-gnu-gcc",
        compiler_package="gcc-x86-64-linux-gnu",
        emulator="qemu-x86_64-static" if emulated_cpu else "",
        emulated_cpu=emulated_cpu,
        sysroot="/usr/x86_64-linux-gnu",
    )


def _aarch64(name: str, cpu: str, marks: tuple[str, ...] = ()) -> Target:
    return Target(
        name=name,
        architecture="aarch64",
        triple="aarch64-linux-gnu",
        cpu=cpu,
        isa_features=marks,
        cpu_flags=("asimd", *marks),
        tile=(8, 8),
        compiler="aarch64-linux-gnu-gcc",
        compiler_package="gcc-aarch64-linux-gnu",
        emulator="qemu-aarch64-static",
        emulated_cpu=cpu,
        sysroot="/usr/aarch64-linux-gnu",
    )


def _armv7(name: str, cpu: str, marks: tuple[str, ...]) -> Target:
    return Target(
        name=name,
        architecture="armv7l",
        triple="armv7a-linux-gnueabihf",
        cpu=cpu,
        features=("+neon",),
        isa_features=marks,
        cpu_flags=marks,
        tile=(8, 4),
        float_abi="hard",
        compiler="arm-linux-gnueabihf-gcc",
        compiler_package="gcc-arm-linux-gnueabihf",
        emulator="qemu-arm-static",
        emulated_cpu=cpu,
        sysroot="/usr/arm-linux-gnueabihf",
    )


TARGETS: Final = (
    _x86_64(
        "x86-64-v4-vnni",
        (*_V4_MARKS, "avx512_vnni"),
        (*_V4_FLAGS, "avx512_vnni"),
        cpu="x86-64-v4",
        features=("+avx512vnni",),
        tile=(16, 8),
    ),
    _x86_64("x86-64-v4", _V4_MARKS, _V4_FLAGS, tile=(16, 8)),
    _x86_64("x86-64-v3", ("avx2", "fma"), _V3_FLAGS, emulated_cpu="Haswell", tile=(8, 8)),
    _x86_64("x86-64-v2", ("sse4_2",), _V2_FLAGS, emulated_cpu="Nehalem"),
    _x86_64("x86-64", emulated_cpu="qemu64"),
    _aarch64("aarch64-dotprod", "cortex-a76", ("asimddp", "asimdhp")),
    _aarch64("aarch64", "cortex-a53"),
    _armv7("armv7-vfpv4", "cortex-a7", ("neon", "vfpv4")),
    _armv7("armv7", "cortex-a8", ("neon",)),
    Target(
        name="riscv64",
        architecture="riscv64",
        triple="riscv64-linux-gnu",
        cpu="generic-rv64",
        features=("+m", "+a", "+f", "+d", "+c"),
        tile=(4, 4),
        abi="lp64d",
        compiler="riscv64-linux-gnu-gcc",
        compiler_package="gcc-riscv64-linux-gnu",
        emulator="qemu-riscv64-static",
        emulated_cpu="rv64",
        sysroot="/usr/riscv64-linux-gnu",
    ),
)
"""Within an architecture the most demanding target comes first."""

_BY_NAME: Final = {target.name: target for target in TARGETS}


def target_of(profile: DeviceProfile) -> Target:
    """Return the target of a kind of device.

    Args:
        profile: The kind of device.

    Returns:
        The most demanding target whose marks the profile names; else the least demanding of its
        architecture, whose code a device without the marks cannot run.
    """
    candidates = [t for t in TARGETS if t.architecture == profile.architecture]
    named = set(profile.isa_features)
    return next((t for t in candidates if named.issuperset(t.isa_features)), candidates[-1])


def is_such(profile: DeviceProfile, *, architecture: str, board: str, target: str) -> bool:
    """Tell whether a machine is such a device, so that its latencies are those of the device.

    A runtime takes the kernels for the best instructions that it finds, so a processor with more of
    them is another one, even if it runs the same files.

    Args:
        profile: The kind of device.
        architecture: The machine's, as `uname -m` prints it.
        board: Name of its board or processor.
        target: The most demanding target whose code it runs.

    Returns:
        True if it has the name that the profile tells; for a class of machines, which has none, if
        both have the same target.
    """
    if profile.architecture != architecture:
        return False
    if profile.processor:
        return board.startswith(profile.processor)
    return target_of(profile).name == target


def named(name: str) -> Target:
    """Return the target of a name.

    Args:
        name: Such as `x86-64-v3`.

    Returns:
        The target.

    Raises:
        KeyError: There is no such target.
    """
    return _BY_NAME[name]

"""Describes this machine as a device profile, for `fleet profile detect` and `fleet-agent`.

Rules:
- A figure that this machine does not report gets a cautious default.
- An accelerator is named by its kind and the driver that the kernel has bound to it, so that the
  name means the same on every board.
- The version of a runtime is read from its package; no runtime is imported.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from runtime_adapters.processor import board_name, cpu_flags, kernel_fields
from runtime_adapters.runtimes import REAL
from wire.codec import from_json, to_json
from wire.errors import WireFormatError
from wire.profile import (
    MAX_PROCESSOR_CHARS,
    VERSION_PATTERN,
    DeviceProfile,
    PowerSource,
    ThermalLimits,
    checked_profile,
)

_ISA_FEATURES: Final = (
    "amx_int8", "asimd", "asimddp", "asimdhp", "avx", "avx2", "avx512_vnni", "avx512bw", "avx512dq",
    "avx512f", "avx512vl", "avx_vnni", "bf16", "crc32", "f16c", "fma", "fphp", "i8mm", "neon",
    "sse4_2", "ssse3", "sve", "v", "vfpv4", "zba", "zbb",
)  # fmt: skip
"""Features that a runtime or a recipe may require; others would only make the file longer."""

_MEMORY_SHARE: Final = 0.5
_STORAGE_SHARE: Final = 0.25
_MIB: Final = 1024**2
_PASSIVE_TRIPS: Final = frozenset({"passive", "hot"})
_PLAUSIBLE_C: Final = (60.0, 125.0)
"""The firmware never set a trip point outside of these, such as 0."""


def detect_profile(
    name: str = "",
    *,
    procfs: Path = Path("/proc"),
    sysfs: Path = Path("/sys"),
    devfs: Path = Path("/dev"),
) -> DeviceProfile:
    """Describe this machine.

    Args:
        name: For the profile; empty for the board's or processor's name.
        procfs: Where /proc is.
        sysfs: Where /sys is.
        devfs: Where /dev is.

    Returns:
        The profile.

    Raises:
        WireFormatError: The machine has an architecture that is not supported, or the name is bad.
    """
    flags = cpu_flags(procfs / "cpuinfo")
    known = board_name(procfs)
    board = known or "this-machine"
    versions, libc = _runtime_versions(), platform.libc_ver()[0]
    values = {
        "name": name or re.sub(r"[^a-z0-9]+", "-", board.lower()).strip("-")[:63],
        "description": f"{board}, as found on the machine itself",
        "architecture": os.uname().machine,
        **({"processor": known[:MAX_PROCESSOR_CHARS]} if known else {}),
        "isa_features": [flag for flag in _ISA_FEATURES if flag in flags],
        "cpu_count": len(os.sched_getaffinity(0)),
        "memory_bytes": max(_MIB, _whole_mib(_memory_bytes(procfs) * _MEMORY_SHARE)),
        "storage_bytes": max(_MIB, _whole_mib(shutil.disk_usage("/").free * _STORAGE_SHARE)),
        "runtimes": [*versions, *_compiled(libc)],
        "runtime_versions": versions,
        "accelerators": _accelerators(procfs, sysfs, devfs),
        "power_source": _power_source(sysfs),
        "thermal": ThermalLimits(severe_c=_severe_c(sysfs)),
        "sources": ["/proc/cpuinfo, /proc/meminfo and /sys of the machine"],
    }
    try:
        return checked_profile(from_json(to_json(values), DeviceProfile))
    except WireFormatError as exc:
        raise WireFormatError(
            f"this machine cannot be described: {exc.message}",
            remedy="give a plain name with --name, such as my-board",
        ) from exc


def _compiled(libc: str) -> list[str]:
    """Return the runtimes whose variants need only the C library and NumPy."""
    has_numpy = bool(versions_of(["numpy"]))
    return [spec.name for spec in REAL if spec.libc and spec.libc == libc and has_numpy]


def versions_of(packages: Iterable[str]) -> dict[str, str]:
    """Return the versions of those Python packages that are installed, by name."""
    found: dict[str, str] = {}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _runtime_versions() -> dict[str, str]:
    """Return the installed runtimes with their versions."""
    found = {spec.name: versions_of(spec.packages) for spec in REAL}
    first = {name: next(iter(texts.values())) for name, texts in found.items() if texts}
    return {name: text for name, text in first.items() if VERSION_PATTERN.fullmatch(text)}


def _accelerators(procfs: Path, sysfs: Path, devfs: Path) -> list[str]:
    """Return the accelerators for which the kernel has a driver and a device node."""
    drm = sorted(devfs.glob("dri/renderD*"))
    accel = sorted(devfs.glob("accel/accel*"))
    found = [
        *(_driver("gpu", sysfs / "class/drm" / node.name) for node in drm),
        *(_driver("npu", sysfs / "class/accel" / node.name) for node in accel),
    ]
    if (procfs / "driver/nvidia/version").exists() or any(devfs.glob("nvhost-*gpu*")):
        found.append("gpu-nvidia")
    if any(devfs.glob("apex_*")):
        found.append("tpu-apex")
    return sorted(set(found))


def _driver(kind: str, device: Path) -> str:
    for line in _text(device / "device/uevent").splitlines():
        key, _, value = line.partition("=")
        if key == "DRIVER" and value:
            return f"{kind}-{value.lower()}"
    return f"{kind}-unknown"


def _memory_bytes(procfs: Path) -> int:
    total = kernel_fields(procfs / "meminfo").get("MemTotal", "0 kB").split()
    return int(total[0]) * 1024 if total and total[0].isdigit() else 0


def _power_source(sysfs: Path) -> PowerSource:
    for path in sorted(sysfs.glob("class/power_supply/*/type")):
        if _text(path) == "Battery" and _text(path.with_name("scope")) != "Device":
            return "battery"
    return "mains"


def _severe_c(sysfs: Path) -> float:
    """Return the lowest temperature at which the kernel slows the processor down."""
    found: list[float] = []
    for path in sorted(sysfs.glob("class/thermal/thermal_zone*/trip_point_*_type")):
        value = _text(path.with_name(path.name.replace("_type", "_temp")))
        if _text(path) in _PASSIVE_TRIPS and value.lstrip("-").isdigit():
            found.append(int(value) / 1000)
    plausible = [c for c in found if _PLAUSIBLE_C[0] <= c <= _PLAUSIBLE_C[1]]
    return min(plausible, default=ThermalLimits().severe_c)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _whole_mib(size_bytes: float) -> int:
    return int(size_bytes) // _MIB * _MIB

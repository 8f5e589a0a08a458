"""The profile of a kind of device: its processor, its runtimes, its limits.

A profile is data. A new board needs a new file; no code knows a board by name.

Rules:
- An unknown key in a profile file is refused, because a misspelt limit would be no limit. Keys of
  an earlier release are read and dropped.
- A message may contain a profile with unknown fields, because its sender may run another release.
- A field that is not set is left out when a profile is written, so that a profile with only the
  fields of the first release has the same bytes as then.
- A file has no thermal limits if they are the usual ones: nobody has measured them.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Literal

import msgspec

from wire.codec import convert, from_toml, to_builtins, to_json
from wire.errors import WireFormatError

NAME_PATTERN = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}")
"""Names that are safe as a file name, a topic level and a label on every system."""

VERSION_PATTERN = re.compile(r"[0-9][0-9A-Za-z.+!_-]{0,62}")
"""Versions as package indexes write them, such as `1.20` or `2.14.0.post1`."""

MAX_ITEMS = 64
"""Items of a list or a table of a profile: no board comes near."""

MAX_SHOWN_CHARS = 64
MAX_PROCESSOR_CHARS = 128
COLDEST_C, HOTTEST_C = -100.0, 150.0
"""Limits lie within: sensors believe no warmer reading, so no other limit would ever count."""

Architecture = Literal["x86_64", "aarch64", "armv7l", "riscv64"]
"""As `uname -m` prints it."""

PowerSource = Literal["mains", "battery"]


class ThermalLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Temperatures of the processor, in degrees Celsius."""

    severe_c: float = 85.0
    """The temperature at which the kernel or the firmware throttles hard; headroom 1.0 on Android's
    ADPF scale."""

    nominal_c: float = 45.0
    """A normal working temperature; headroom 0.0."""


class DeviceProfile(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of device."""

    name: str
    description: str = ""
    architecture: Architecture
    processor: str | msgspec.UnsetType = msgspec.UNSET
    """The board's or processor's name, as its device tree or /proc/cpuinfo begins it; unset for a
    class of machines. A build takes latencies as this device's only on a machine of this name."""

    isa_features: tuple[str, ...] = ()
    """Instruction-set features as /proc/cpuinfo names them, such as `avx512_vnni` or `asimddp`."""

    cpu_count: int = 1
    memory_bytes: int
    """Memory that models may use, in bytes: the board's memory minus what the system needs."""

    storage_bytes: int
    """Storage that packages may use, in bytes."""

    runtimes: tuple[str, ...] = ()
    """Runtimes that can be installed there, as the registry of adapters names them."""

    runtime_versions: dict[str, str] | msgspec.UnsetType = msgspec.UNSET
    """The lowest version of each runtime that every such device has; a runtime that is not named
    may have any version."""

    accelerators: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """Processors other than the CPU as `<kind>-<driver of the kernel>`, such as `gpu-nvidia`; unset
    where this is not known."""

    threads: int = 1
    """Threads for one inference; small models are slower with more than one."""

    power_source: PowerSource = "mains"
    thermal: ThermalLimits = ThermalLimits()
    sources: tuple[str, ...] = ()
    """Where the figures come from."""


class ProfileFile(DeviceProfile, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys that a profile file may have."""

    objective: str = ""
    """A key of the first release, which never used its value."""


def profile_from_toml(data: bytes) -> DeviceProfile:
    """Read a profile file.

    Args:
        data: The bytes of the TOML file.

    Returns:
        The profile.

    Raises:
        WireFormatError: Not TOML, an unknown key, a missing key, or an impossible value.
    """
    return checked_profile(convert(to_builtins(from_toml(data, ProfileFile)), DeviceProfile))


def profile_to_toml(profile: DeviceProfile) -> str:
    """Return a profile as the text of a TOML file.

    Args:
        profile: The profile.

    Returns:
        The text, which ends with a newline.
    """
    values: dict[str, Any] = to_builtins(profile)
    if profile.thermal == ThermalLimits():
        del values["thermal"]
    tables = {name: values.pop(name) for name in list(values) if isinstance(values[name], dict)}
    lines = _toml_lines(values)
    for name, table in tables.items():
        lines += ["", f"[{name}]", *_toml_lines(table)]
    return "\n".join(lines) + "\n"


def _toml_lines(values: dict[str, Any]) -> list[str]:
    """Return keys with texts, numbers and lists of texts; TOML writes these as JSON does."""
    lines: list[str] = []
    for key, value in values.items():
        if isinstance(value, list | tuple) and value:
            lines += [f"{key} = [", *(f"  {_toml(item)}," for item in value), "]"]
        else:
            lines.append(f"{key} = {_toml(value)}")
    return lines


def _toml(value: object) -> str:
    return to_json(value).decode().replace("\x7f", "\\u007f")  # TOML alone forbids it


def only_runtimes(profile: DeviceProfile, names: Collection[str]) -> DeviceProfile:
    """Return a profile without the runtimes that a device lacks.

    Args:
        profile: The profile of a kind of device.
        names: The runtimes that one such device has.

    Returns:
        The profile of that device.
    """
    versions = profile.runtime_versions
    if not isinstance(versions, msgspec.UnsetType):
        versions = {name: version for name, version in versions.items() if name in names}
    return msgspec.structs.replace(
        profile,
        runtimes=tuple(name for name in profile.runtimes if name in names),
        runtime_versions=versions,
    )


def checked_profile(profile: DeviceProfile) -> DeviceProfile:
    """Return the profile if its values are possible.

    Args:
        profile: A decoded profile.

    Returns:
        The same profile.

    Raises:
        WireFormatError: An impossible name, size or temperature.
    """
    versions = profile.runtime_versions or {}
    strangers = sorted(set(versions) - set(profile.runtimes))
    named = ", ".join(strangers)[:MAX_SHOWN_CHARS]
    lists = (
        profile.isa_features, profile.runtimes, versions, profile.accelerators or (),
        profile.sources,
    )  # fmt: skip
    faults = [
        (
            any(len(items) > MAX_ITEMS for items in lists),
            f"a list or table has more than {MAX_ITEMS} items",
        ),
        (
            NAME_PATTERN.fullmatch(profile.name) is None,
            f"name {profile.name[:MAX_SHOWN_CHARS]!r} is not a plain name",
        ),
        (
            not 1 <= len(profile.processor or "unset") <= MAX_PROCESSOR_CHARS
            or profile.processor == "",
            f"processor has not 1 to {MAX_PROCESSOR_CHARS} characters",
        ),
        (profile.cpu_count < 1, "cpu_count is below 1"),
        (not 1 <= profile.threads <= profile.cpu_count, "threads is not within 1 to cpu_count"),
        (profile.memory_bytes <= 0, "memory_bytes is not positive"),
        (profile.storage_bytes <= 0, "storage_bytes is not positive"),
        (
            bool(strangers),
            f"runtime_versions names {named}, but the list `runtimes` does not",
        ),
        (
            not all(VERSION_PATTERN.fullmatch(version) for version in versions.values()),
            "runtime_versions has a value that is not a version",
        ),
        (
            not all(NAME_PATTERN.fullmatch(name) for name in profile.accelerators or ()),
            "accelerators has a value that is not a plain name",
        ),
        (
            # The negation refuses a limit that is not a number too: it would make any heat cool.
            not profile.thermal.nominal_c < profile.thermal.severe_c,
            "thermal.nominal_c is not below thermal.severe_c",
        ),
        (
            not (profile.thermal.nominal_c >= COLDEST_C and profile.thermal.severe_c <= HOTTEST_C),
            f"thermal: the limits are not within {COLDEST_C:g} to {HOTTEST_C:g}",
        ),
    ]
    for wrong, text in faults:
        if wrong:
            raise WireFormatError(f"profile: {text}")
    return profile

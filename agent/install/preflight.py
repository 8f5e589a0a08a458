"""Refuses a package that cannot run on this device, before the agent fetches most of it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from agent.errors import NoVariantError, StorageFullError
from agent.install.records import ModelRecord
from agent.install.slots import Slots
from agent.install.states import State
from agent.packages import Package, open_package
from wire.errors import FleetError
from wire.health import HealthSnapshot
from wire.package.variant import Variant
from wire.profile import DeviceProfile
from wire.trust.root import Trust

FREE_MARGIN_BYTES: Final = 8 * 1024 * 1024
"""Stays free beside a package, for the state, the spool and the log."""


def fitting(package: Package, profile: DeviceProfile) -> tuple[Variant, ...]:
    """Return the variants of a package that can run on a kind of device.

    Args:
        package: A package with a checked manifest.
        profile: The kind of device.

    Returns:
        One or more variants.

    Raises:
        NoVariantError: There are none; the error says why for each.
    """
    variants = package.manifest.fitting(profile)
    if not variants:
        lacking = sorted({v.info.runtime for v in package.manifest.variants} - {*profile.runtimes})
        why = "; ".join(f"{name} {why}" for name, why in package.manifest.misfits(profile).items())
        raise NoVariantError(
            f"no variant of {package.release} fits: {why}",
            remedy=f"if the device can have it: pip install 'edgefleet[{lacking[0]}]'"
            if lacking
            else "build the package for the profile of the device",
        )
    return variants


def check_memory(
    release: str,
    variants: Collection[Variant],
    health: HealthSnapshot,
    neighbours: Mapping[str, int],
    *,
    freed_bytes: int = 0,
) -> None:
    """Refuse a package if even its smallest variant needs more memory than is available now.

    Args:
        release: Name and version of the package.
        variants: The variants that fit this kind of device.
        health: The newest readings; without a reading of the memory no package is refused.
        neighbours: The memory that other models of the device hold, in bytes, by name.
        freed_bytes: Memory that has become free since these readings.

    Raises:
        NoVariantError: There is too little memory.
    """
    known = health.memory_available_bytes
    available = None if known is None else known + freed_bytes
    least = min(v.info.requirements.memory_bytes for v in variants)
    if available is not None and least > available:
        held = ", ".join(f"{name} holds {size}" for name, size in sorted(neighbours.items()))
        raise NoVariantError(
            f"the smallest variant of {release} needs {least} bytes of memory, but only "
            f"{available} are available{held and f' beside the other models: {held}'}",
            remedy="remove a model from the device, or build a smaller variant" if held else "",
        )


def check_storage(
    slots: Slots,
    *,
    needed_bytes: int,
    allowed_bytes: int,
    keep: Collection[str | None],
    reserved_bytes: int = 0,
    keep_parts: bool = False,
) -> None:
    """Refuse what the storage cannot hold, after removing old packages.

    Args:
        slots: The packages of this device.
        needed_bytes: Size of what is still to come.
        allowed_bytes: Storage that all packages together may use.
        keep: Packages that must stay, beside those that serve.
        reserved_bytes: What an install that is under way still needs of both.
        keep_parts: Whether partial files stay, because another install needs them.

    Raises:
        StorageFullError: There is too little storage.
        StorageError: The storage failed.
    """
    kept_bytes = FREE_MARGIN_BYTES + reserved_bytes
    if (
        slots.free_bytes() < needed_bytes + kept_bytes
        or allowed_bytes < needed_bytes + reserved_bytes + slots.used_bytes()
    ):
        slots.collect(keep, keep_parts=keep_parts)
    free = slots.free_bytes() - kept_bytes
    left = allowed_bytes - reserved_bytes - slots.used_bytes()
    if needed_bytes > left and left < free:
        raise StorageFullError(
            f"the package needs {needed_bytes} bytes, but of the {allowed_bytes} that the profile "
            f"allows to packages only {max(left, 0)} are left",
            remedy="raise storage_bytes in the profile of the device",
        )
    if needed_bytes > free:
        raise StorageFullError(
            f"the package needs {needed_bytes} bytes, but only {max(free, 0)} are free beside the "
            f"reserve of {kept_bytes}",
            remedy="free some storage on the device",
        )


def reserved_bytes(
    records: Iterable[ModelRecord],
    slots: Slots,
    profile: DeviceProfile,
    trust: Trust,
    *,
    but: str | None = None,
) -> int:
    """Return what installs that are under way still have to store.

    The check of each was made before it began, and is not made again.

    Args:
        records: The records of their models.
        slots: The packages of this device.
        profile: The kind of device.
        trust: The keys that may sign packages.
        but: Digest of a package that does not count, because it is to be stored now.

    Returns:
        The size, in bytes.
    """
    targets = {
        record.target.digest
        for record in records
        if record.target is not None and record.state not in {State.IDLE, State.REVERTING}
    }
    return sum(_lacking_bytes(each, slots, profile, trust) for each in targets - {but})


def _lacking_bytes(digest: str, slots: Slots, profile: DeviceProfile, trust: Trust) -> int:
    if slots.has(digest):
        return 0
    try:
        package = open_package(slots.directory(digest), digest, trust)
        entries = package.files(fitting(package, profile))
    except FleetError:  # its preflight is still to come, and counts what is here then
        return 0
    return sum(e.size_bytes for e in entries if not (package.directory / e.path).exists())

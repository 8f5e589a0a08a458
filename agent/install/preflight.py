"""Refuses a package that cannot run on this device, before the agent fetches most of it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from agent.errors import NoVariantError, StorageFullError
from agent.install.slots import Slots
from agent.packages import Package
from wire.health import HealthSnapshot
from wire.package.manifest import Variant
from wire.profile import DeviceProfile

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


def check_memory(variants: Collection[Variant], health: HealthSnapshot) -> None:
    """Refuse a package if even its smallest variant needs more memory than is available now.

    Args:
        variants: The variants that fit this kind of device.
        health: The newest readings; without a reading of the memory no package is refused.

    Raises:
        NoVariantError: There is too little memory.
    """
    available = health.memory_available_bytes
    least = min(v.info.requirements.memory_bytes for v in variants)
    if available is not None and least > available:
        raise NoVariantError(
            f"the smallest variant needs {least} bytes of memory, but only {available} "
            "are available"
        )


def check_storage(
    slots: Slots,
    *,
    needed_bytes: int,
    allowed_bytes: int,
    keep: Collection[str | None],
    reserved_bytes: int = 0,
) -> None:
    """Refuse what the storage cannot hold, after removing old packages.

    Args:
        slots: The packages of this device.
        needed_bytes: Size of what is still to come.
        allowed_bytes: Storage that all packages together may use.
        keep: Packages that must stay, beside the current one.
        reserved_bytes: What an install that is under way still needs of both.

    Raises:
        StorageFullError: There is too little storage.
        StorageError: The storage failed.
    """
    kept_bytes = FREE_MARGIN_BYTES + reserved_bytes
    if (
        slots.free_bytes() < needed_bytes + kept_bytes
        or allowed_bytes < needed_bytes + reserved_bytes + slots.used_bytes()
    ):
        slots.collect(keep)
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

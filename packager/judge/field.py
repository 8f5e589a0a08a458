"""Figures from devices of the fleet in place of those of the building machine. Pure.

Rules:
- Where a profile has figures from the field, only they count for it, whatever machine builds: a
  variant without such figures then has none, because those of two machines cannot be compared.
- A profile without them is judged as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from packager.judge.verdicts import Verdicts
from wire.measuring import ENOUGH_DEVICES, ProfileFigures
from wire.package.performance import FieldFigures
from wire.package.variant import Variant
from wire.profile import DeviceProfile

NAMED: Final = 3
"""Machines that a note names."""


def with_field(
    variants: Sequence[Variant], digests: Mapping[str, str], known: Sequence[ProfileFigures]
) -> tuple[Variant, ...]:
    """Give variants the figures of the field that are of the same files.

    Args:
        variants: What was built.
        digests: Variant to the digest of its files (`wire.measuring.files_digest`).
        known: What devices measured; of two for the same files and profile those of enough devices
            (`wire.measuring.ENOUGH_DEVICES`) count before those of fewer, then the newer.

    Returns:
        The variants.
    """
    by_files: dict[str, dict[str, FieldFigures]] = {}
    for each in sorted(known, key=_weight):
        by_files.setdefault(each.files_sha256, {})[each.profile] = each.figures
    given: list[Variant] = []
    for variant in variants:
        found = by_files.get(digests.get(variant.name, ""), {})
        if found:
            info = msgspec.structs.replace(variant.info, field=dict(sorted(found.items())))
            given.append(msgspec.structs.replace(variant, info=info))
        else:
            given.append(variant)
    return tuple(given)


def _weight(known: ProfileFigures) -> tuple[bool, float]:
    return known.figures.devices >= ENOUGH_DEVICES, known.figures.at_s


def is_told(variants: Sequence[Variant], profile: str) -> bool:
    """Tell whether any of the variants has figures of the field for a profile."""
    return any(profile in (variant.info.field or {}) for variant in variants)


def as_told(variants: Sequence[Variant], profile: str) -> tuple[Variant, ...]:
    """Return variants with the figures that count for a profile.

    Args:
        variants: What was built.
        profile: A profile with figures of the field.

    Returns:
        Each with its figures of the field; those without such have none.
    """
    return tuple(
        variant.on(profile)
        if profile in (variant.info.field or {})
        else msgspec.structs.replace(
            variant, info=msgspec.structs.replace(variant.info, performance=None)
        )
        for variant in variants
    )


def judge_each(
    judge: Callable[..., Verdicts],
    variants: tuple[Variant, ...],
    profiles: tuple[DeviceProfile, ...],
    *,
    here: frozenset[str],
    **others: Any,  # noqa: ANN401 - what else `judge` takes
) -> Verdicts:
    """Judge every profile by the figures that count for it.

    Args:
        judge: Judges the variants for some profiles: takes both, and `here` and the others.
        variants: What was built.
        profiles: The profiles.
        here: Profiles of such devices as the building machine is one.
        **others: What `judge` takes beside these.

    Returns:
        The verdicts, in the order of the profiles.
    """
    verdicts: Verdicts = {}
    for profile in profiles:
        if is_told(variants, profile.name):
            found = as_told(variants, profile.name)
            verdicts |= judge(found, (profile,), here=here | {profile.name}, **others)
        else:
            verdicts |= judge(variants, (profile,), here=here, **others)
    return verdicts


def untold(
    variants: Sequence[Variant], profiles: tuple[DeviceProfile, ...]
) -> tuple[DeviceProfile, ...]:
    """Return the profiles that have no figures of the field."""
    return tuple(profile for profile in profiles if not is_told(variants, profile.name))


def field_notes(
    variants: Sequence[Variant],
    profiles: tuple[DeviceProfile, ...],
    known: Sequence[ProfileFigures],
) -> tuple[str, ...]:
    """Say which figures came from the field.

    Args:
        variants: What was built.
        profiles: The profiles of the build.
        known: The figures that the build was given.

    Returns:
        One line for each profile that has some, and one if they are of other files.
    """
    notes: list[str] = []
    for profile in profiles:
        found = [f for v in variants if (f := (v.info.field or {}).get(profile.name)) is not None]
        if found:
            machines = sorted({each.performance.machine for each in found})[:NAMED]
            devices = max(each.devices for each in found)
            notes.append(
                f"profile {profile.name}: the figures of {len(found)} of {len(variants)} variants "
                f"were measured in the field, on {devices} device{'' if devices == 1 else 's'} "
                f"({', '.join(machines)})"
            )
    if known and not notes:
        notes.append(
            "warning: no figures of the field are of these files and profiles; measure the package "
            "that this build makes"
        )
    return tuple(notes)

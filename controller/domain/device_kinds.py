"""Reads what a device said that it can run, from the words in which it is stored."""

from __future__ import annotations

from wire.codec import from_json
from wire.errors import WireFormatError
from wire.profile import DeviceProfile, only_runtimes


def profile_of(profile: str, runtimes: str | None) -> DeviceProfile | None:
    """Return the profile of a device, with only the runtimes that it has.

    Args:
        profile: JSON.
        runtimes: JSON: those of the profile that it has; None where it has all of them.

    Returns:
        The profile; None if it cannot be read, as of a device that enrolled with an earlier
        version.
    """
    try:
        read = from_json(profile.encode(), DeviceProfile)
        if runtimes is None:
            return read
        return only_runtimes(read, from_json(runtimes.encode(), list[str]))
    except WireFormatError:
        return None

"""A build's result as one profile is to see it: with the figures of the field, where it has any."""

from __future__ import annotations

import msgspec

from packager.result import BuildResult


def as_profile_sees(result: BuildResult, profile: str) -> BuildResult:
    """Return a result with the figures that counted for a profile.

    Args:
        result: The result of the build.
        profile: The profile.

    Returns:
        The same where it has no figures of the field.
    """
    if not any(profile in (candidate.field or {}) for candidate in result.candidates):
        return result
    candidates = tuple(
        msgspec.structs.replace(
            candidate,
            performance=found.performance
            if (found := (candidate.field or {}).get(profile)) is not None
            else None,
        )
        for candidate in result.candidates
    )
    return msgspec.structs.replace(
        result, candidates=candidates, here=(*(result.here or ()), profile)
    )

"""Whether devices can take a release, and why not: pure functions of what is known of both.

Rules:
- A device is asked what its agent would ask itself before it fetches a file, by the same functions
  of `wire`: which variants fit, and whether the package fits beside the one that it must keep.
- Of what a device has not said nothing is concluded: such a device is unknown, never unfit.
- A device has a bounded number of models, and an older agent has one.
- What only the device knows now, such as free memory, is left to the device.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from wire.desired import MAX_MODELS, NAMED_MODELS, WINDOWS
from wire.package.index import PackageIndex
from wire.package.manifest import Manifest
from wire.profile import DeviceProfile

MAX_VARIANTS_NAMED = 6
"""Variants whose reasons one line gives."""


class Answer(StrEnum):
    """What a device would say to a release."""

    TAKES = "takes"
    RUNS = "runs"
    """It runs the release already."""

    REFUSES = "refuses"
    UNKNOWN = "unknown"
    """It has not said what it is and has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OfferedRelease:
    """A release as its signed index and manifest describe it."""

    digest: str
    index: PackageIndex
    manifest: Manifest
    envelope_size_bytes: int

    def size_on(self, profile: DeviceProfile) -> int:
        """Return the storage that the release takes on a kind of device, in bytes."""
        entries = self.index.files_for(self.manifest.fitting(profile))
        return self.envelope_size_bytes + sum(entry.size_bytes for entry in entries)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a device would say, and why if it refuses."""

    answer: Answer
    reason: str = ""


TAKES, RUNS = Verdict(answer=Answer.TAKES), Verdict(answer=Answer.RUNS)
UNKNOWN = Verdict(answer=Answer.UNKNOWN)


def verdict(
    offered: OfferedRelease, profile: DeviceProfile | None, running: Iterable[OfferedRelease]
) -> Verdict:
    """Return what a device would say to a release that it does not run.

    Args:
        offered: The release.
        profile: What the device said that it is, with only the runtimes that it has; None if it
            has not said so.
        running: The releases that it runs and must keep meanwhile, those that are known.

    Returns:
        What it would say.
    """
    if profile is None:
        return UNKNOWN
    if not offered.manifest.fitting(profile):
        return _refuses(f"no variant fits: {_reasons(offered.manifest.misfits(profile))}")
    needed_bytes = offered.size_on(profile)
    held_bytes = sum(each.size_on(profile) for each in running)
    if needed_bytes + held_bytes > profile.storage_bytes:
        beside = f" beside the {held_bytes} of what it runs" if held_bytes else ""
        return _refuses(
            f"it needs {needed_bytes} bytes of storage{beside}, but the profile allows "
            f"{profile.storage_bytes} to packages"
        )
    return TAKES


def beside_others(said: Verdict, model: str, others: Collection[str], form: int) -> Verdict:
    """Return what a device would say to a release that is given to it beside other models.

    Args:
        said: What it would say to the release alone.
        model: The model of the release.
        others: The models that it runs or is to run; this one may be among them.
        form: The newest form of a desired state that its agent reads (`wire.desired`).

    Returns:
        What it would say.
    """
    kept = sorted(name for name in others if name not in {"", model})
    if not kept or said.answer not in {Answer.TAKES, Answer.RUNS}:
        return said
    if form < NAMED_MODELS:
        return _refuses(f"its agent has one model, {', '.join(kept)}: update the agent")
    if len(kept) >= MAX_MODELS:
        return _refuses(f"it has {len(kept)} models, and a device has {MAX_MODELS} at most")
    return said


def in_windows(said: Verdict, form: int) -> Verdict:
    """Return what a device would say to a release that it may activate only at some hours.

    Args:
        said: What it would say otherwise.
        form: The newest form of a desired state that its agent reads.
    """
    if form >= WINDOWS or said.answer not in {Answer.TAKES, Answer.RUNS}:
        return said
    return _refuses("its agent knows no windows of rollouts: update the agent")


def _refuses(reason: str) -> Verdict:
    return Verdict(answer=Answer.REFUSES, reason=reason)


def _reasons(misfits: dict[str, str]) -> str:
    lines = [f"{name} {why}" for name, why in misfits.items()]
    more = len(lines) - MAX_VARIANTS_NAMED
    return "; ".join(lines[:MAX_VARIANTS_NAMED] + ([f"and {more} more"] if more > 0 else []))

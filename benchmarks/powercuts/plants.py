"""Faults that are planted, to show that the benchmark sees them: one row of a table for each.

Each is done once, to a device whose power is gone, and one is done to the benchmark itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.powercuts.device import PowerDevice
from benchmarks.powercuts.releases import BEST, FILES, OF_NOBODY, Releases, model
from benchmarks.powercuts.stored import PACKAGES, slot_of

STRAY: Final = "stray.bin"
STRAY_BYTES: Final = 4096
GONE: Final = ".gone"


class Plant(NamedTuple):
    """A fault, and by which words the benchmark must tell it."""

    act: Callable[[PowerDevice, Releases], None]
    told: str
    """Part of the violation."""


def unverified(device: PowerDevice, _releases: Releases) -> None:
    """Put a model that loads and that nobody signed in the place of the one that serves."""
    path = _best(device)
    path.chmod(0o600)
    path.write_bytes(model(OF_NOBODY))


def incomplete(device: PowerDevice, _releases: Releases) -> None:
    """Let the link to the serving package name one that lacks a file."""
    _best(device).unlink()


def leak(device: PowerDevice, _releases: Releases) -> None:
    """Leave a file that nobody needs."""
    (device.state_dir / STRAY).write_bytes(bytes(STRAY_BYTES))


def answers(_device: PowerDevice, releases: Releases) -> None:
    """Let the benchmark expect other numbers, as if a device answered with wrong ones."""
    for key in list(releases.answers):
        releases.answers[key] = releases.answers[key] + 1


def dead(device: PowerDevice, _releases: Releases) -> None:
    """Take the settings away, without which no agent starts."""
    device.config.rename(device.config.with_suffix(GONE))


def _best(device: PowerDevice) -> Path:
    package = device.state_dir / PACKAGES / str(slot_of(device.state_dir))
    return package / "variants" / BEST / FILES[BEST]


PLANTS: Final[dict[str, Plant]] = {
    "unverified": Plant(unverified, "is not as signed"),
    "incomplete": Plant(incomplete, "is missing"),
    "leak": Plant(leak, f"left over: {STRAY}"),
    "answers": Plant(answers, "unverified: 200"),
    "dead": Plant(dead, "did not serve"),
}

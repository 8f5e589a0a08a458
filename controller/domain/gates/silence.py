"""Who tells enough of itself with a new release, beside those with the old one. Pure.

Devices that are silent may be the ones that the release harmed, so a gate does not pass while too
many are.

Rules:
- Of those that told enough before it counts how many still do: so a figure that few devices report
  is no easier to silence. What is new to most devices is counted of all.
- How many would tell anyway is known within a stratum: where most of the control group sleeps, as
  servers at night, it says nothing of cameras. A stratum without any on the old side does not
  count: nobody knows how many of it would tell. One or two there make up for no silence elsewhere.
- It counts now and over all looks in the stage together: at one of many looks chance makes those
  with the old release as silent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from controller.domain.gates.states import LEAST_OF_STRATUM

MOST_SILENT: Final = 0.1
"""What part of the devices that tell may have fallen silent with the new release, or measure 0;
silent they must be fewer."""

_NOISE_DIGITS: Final = 12


class Silence(NamedTuple):
    """How many devices with the new release told enough at a look, and how many would have."""

    told: float = 0.0
    expected: float = 0.0
    """If as large a part of them did as of the others."""

    def part(self, *earlier: Silence) -> float:
        """Return by what part fewer told; below 0 if more did, and 0 where none was expected.

        Args:
            *earlier: Other looks: the more were expected at one, the more it counts.
        """
        looks = (self, *earlier)
        expected = sum(look.expected for look in looks)
        if expected <= 0.0:
            return 0.0
        # A tenth has no exact binary form.
        return round(1.0 - sum(look.told for look in looks) / expected, _NOISE_DIGITS)


class Telling(NamedTuple):
    """How many devices tell enough: of one side, or of one stratum of it.

    Those that nobody can be compared with, such as the only one of a profile, tell as well.
    """

    devices: int = 0
    """All of them."""

    told: int = 0
    """Those that tell enough."""

    zero: int = 0
    """Those of them that measured 0, now or before, of which a gate on parts can tell nothing."""

    known: int = 0
    """Those that told enough before the rollout."""

    still: int = 0
    """Those of them that tell enough now."""


NOBODY: Final = Telling()


@dataclass(frozen=True, slots=True)
class Coverage:
    """Who tells enough, with the new release and with the old one, by stratum."""

    treated: Mapping[str, Telling]
    control: Mapping[str, Telling]

    @property
    def new(self) -> Telling:
        """All with the new release."""
        return _together(self.treated.values())

    @property
    def old(self) -> Telling:
        """All with the old one."""
        return _together(self.control.values())

    def silence(self) -> tuple[Silence, str]:
        """Return how many of those with the new release tell enough, and who does not, as text."""
        beside = {name: self.control.get(name, NOBODY) for name in self.treated}
        new, old = self.new, _together(beside.values())
        # Which devices measure a thing at all is known from before, unless it is new to most.
        is_known = new.known > 0 and (old.known > 0 or not old.devices)
        by_known = is_known and all(2 * side.known >= side.told for side in (new, old))
        counted = expected = 0.0
        for name, side in self.treated.items():
            told, of = _counts(side, by_known=by_known)
            others, of_others = _counts(beside[name], by_known=by_known)
            if of_others or not self.control:
                share = of * (others / of_others if of_others else 1.0)
                counted += told if of_others >= LEAST_OF_STRATUM else min(told, share)
                expected += share
        told, of = _counts(new, by_known=by_known)
        which = " that told enough before" if by_known else ""
        text = f"{of - told} of {of} devices with the new release{which} do not tell enough"
        return Silence(counted, expected), text


def _together(parts: Iterable[Telling]) -> Telling:
    return Telling(*map(sum, zip(NOBODY, *parts, strict=True)))


def _counts(of: Telling, *, by_known: bool) -> tuple[int, int]:
    """Return how many tell enough, and of how many."""
    return (of.still, of.known) if by_known else (of.told, of.devices)

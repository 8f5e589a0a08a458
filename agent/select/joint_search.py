"""The best combination of one option of each model: a search that is exact up to a stated size.

What the models cost by themselves adds up. What the device adds depends on three sums alone: the
load, the load at the usual rates, and the memory. It is never less for more. So the least of each
that the open models can have gives a lower bound for all combinations that begin alike, and most of
them need no look.

Rules:
- Pure. Equal inputs give equal combinations: of those that cost the same, the first one found.
- The cost of a combination is that of its options plus that of the device; both are numbers.
- Up to `EXACT` combinations the result is the best one. Beyond, the search ends after `MOST_LOOKS`
  looks, and the result says how far below it the best one may be.

Source:
    Branch and bound, depth first, the most promising branch first: Land and Doig, An Automatic
    Method of Solving Discrete Programming Problems (Econometrica, 1960).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

EXACT: Final = 20_000
"""Combinations that are searched to the end, whatever it takes: five models of six variants that
may be parked have 16,807."""

MOST_LOOKS: Final = 2_000
"""Looks at a combination, or at the beginning of one, where there are more."""


class Option(NamedTuple):
    """What one model may do."""

    name: str
    loss: float
    """What it costs by itself."""

    load: float
    usual_load: float
    held_bytes: float
    rises: bool = False
    """Whether it is more work for the device than what the model does now."""


class Device(Protocol):
    """What the device adds to what the models cost by themselves."""

    def cost(self, load: float, usual_load: float, held_bytes: float) -> float:
        """Return the cost of the sums of a combination; never less for more."""

    def bears(self, load: float, usual_load: float, held_bytes: float) -> bool:
        """Tell whether the sums may be begun with; if not, greater ones may not either."""


class Found(NamedTuple):
    """The result of a search."""

    picks: tuple[int, ...]
    """The number of the option of each model."""

    cost: float
    bound: float
    """No combination costs less."""

    @property
    def gap(self) -> float:
        """By how much the best combination may cost less than this one; 0 if this is the best."""
        return max(self.cost - self.bound, 0.0)


class Sums(NamedTuple):
    """Sums over the options of some models."""

    loss: float = 0.0
    load: float = 0.0
    usual_load: float = 0.0
    held_bytes: float = 0.0

    def plus(self, other: Option | Sums) -> Sums:
        """Return the sums with those of others."""
        return Sums(
            self.loss + other.loss,
            self.load + other.load,
            self.usual_load + other.usual_load,
            self.held_bytes + other.held_bytes,
        )


def cost_of(models: Sequence[Sequence[Option]], picks: Sequence[int], device: Device) -> float:
    """Return what a combination costs; infinite if it may not be begun.

    Args:
        models: The options of each model.
        picks: The number of the option of each.
        device: What the device adds.
    """
    sums, rises = Sums(), False
    for options, pick in zip(models, picks, strict=True):
        sums, rises = sums.plus(options[pick]), rises or options[pick].rises
    _, *rest = sums
    if rises and not device.bears(*rest):
        return math.inf
    return sums.loss + device.cost(*rest)


def best(
    models: Sequence[Sequence[Option]], device: Device, start: Sequence[int] | None = None
) -> Found:
    """Return the combination that costs least.

    Args:
        models: The options of each model, at least one each.
        device: What the device adds.
        start: A combination to begin with; the search finds one that costs no more.

    Returns:
        The combination, and a bound for what all cost.
    """
    return _Search(models, device, start).run()


class _Search:
    """One search."""

    def __init__(
        self, models: Sequence[Sequence[Option]], device: Device, start: Sequence[int] | None
    ) -> None:
        self._device = device
        kept = [_undominated(options) for options in models]
        # Where the choice matters most is decided first.
        self._order = sorted(range(len(models)), key=lambda m: -_width(kept[m]))
        self._levels = [kept[m] for m in self._order]
        self._rest = _least_of_rest(self._levels)
        self._looks = 0
        combinations = math.prod(map(len, kept))
        self._most_looks = math.inf if combinations <= EXACT else MOST_LOOKS
        self._picked = [0] * len(models)
        self._best = tuple(start) if start is not None else tuple(o[0][0] for o in kept)
        self._cost = cost_of(models, self._best, device)
        self._open = math.inf

    def run(self) -> Found:
        """Search."""
        self._descend(0, Sums(), rises=False)
        return Found(self._best, self._cost, min(self._cost, self._open))

    def _descend(self, level: int, sums: Sums, *, rises: bool) -> None:
        # Plain numbers: this is done some hundred times for one decision.
        rest_loss, rest_load, rest_usual_load, rest_bytes = self._rest[level + 1]
        device, branches = self._device, []
        self._looks += len(self._levels[level])
        for number, option in self._levels[level]:
            grown = sums.plus(option)
            load, usual_load = grown.load + rest_load, grown.usual_load + rest_usual_load
            held_bytes, risen = grown.held_bytes + rest_bytes, rises or option.rises
            if risen and not device.bears(load, usual_load, held_bytes):
                continue
            bound = grown.loss + rest_loss + device.cost(load, usual_load, held_bytes)
            if bound < self._cost:
                branches.append((bound, number, grown, risen))
        branches.sort(key=lambda branch: branch[:2])
        for bound, number, grown, risen in branches:
            if bound >= self._cost:
                return
            self._picked[self._order[level]] = number
            if level + 1 == len(self._levels):
                self._best, self._cost = tuple(self._picked), bound
            elif self._looks >= self._most_looks:
                self._open = min(self._open, bound)
            else:
                self._descend(level + 1, grown, rises=risen)


def _undominated(options: Sequence[Option]) -> list[tuple[int, Option]]:
    """Return the options, with their numbers, without those that another one beats in all."""
    kept: list[tuple[int, Option]] = []
    for number, option in sorted(enumerate(options), key=lambda each: (each[1][1:], each[0])):
        if not any(
            other.load <= option.load
            and other.usual_load <= option.usual_load
            and other.held_bytes <= option.held_bytes
            and other.rises <= option.rises
            for _, other in kept
        ):
            kept.append((number, option))
    return kept


def _width(options: Sequence[tuple[int, Option]]) -> float:
    loads = [option.load for _, option in options]
    return max(loads) - min(loads)


def _least_of_rest(levels: Sequence[Sequence[tuple[int, Option]]]) -> list[Sums]:
    """Return for each level the least sums that it and those after it can have."""
    found = [Sums()]
    for options in reversed(levels):
        least = Sums(
            min(o.loss for _, o in options),
            min(o.load for _, o in options),
            min(o.usual_load for _, o in options),
            min(o.held_bytes for _, o in options),
        )
        found.append(found[-1].plus(least))
    return found[::-1]

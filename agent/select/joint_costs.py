"""What a device adds to the losses of all its models together: heat, memory, battery, saturation.

`agent.select.limits` says what one load or one need of memory costs an answer. Here it is the cost
of all answers of all models, in answers a second, over the sums of what the models take. The load
is looked at in some points, and between two of them the cost is a line.

Rules:
- Pure.
- More work never costs less, so that a search may stop: where a forecast has it otherwise, the
  greatest cost of less work holds.
- An answer counts by the weight of its model, and a model by its answers a second: a weight says
  what one answer is worth, and a board that is too hot spoils all that it gives.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from agent.select import limits, reach
from agent.select.estimates import GIB, Estimates
from agent.select.others import Others
from agent.select.outlook import EFFORT, SHORTFALL
from agent.select.queueing import excess
from wire.policy import PolicySpec

POINTS: Final = 13
"""At which the cost of a load is computed: between two of them it changes by some hundredths."""

BATTERY_POINTS: Final = 5
"""The same for the battery, whose time is nearly a line over the load; each look takes long."""

SATURATED: Final = 1.0 + SHORTFALL
"""How many answers one counts as that all together cannot give: those behind it are late too."""

TOO_LARGE: Final = 1000.0
"""The same, of a combination that does not fit into memory: more than all other costs."""


class Party(NamedTuple):
    """One model whose answers count."""

    answers_per_s: float
    """Times their weight."""

    spec: PolicySpec
    known: Estimates


class DeviceCost:
    """What the device adds, over the sums of what the models take.

    Args:
        parties: All models that are decided together; what they know of the device is the same.
        given: What other models take that decide for themselves.
        most: The greatest sums that there can be.
    """

    def __init__(self, parties: Sequence[Party], given: Others, most: Others) -> None:
        known = parties[0].known
        self._known, self._parties = known, parties
        self._all_per_s = math.fsum(p.answers_per_s for p in parties)
        self._base = known.other_load + given.load
        self._usual_base = known.battery.usual.other_load + given.usual_load
        self._held = given.held_bytes
        self._free = limits.free_bytes(known, lately=False)
        self._lately = limits.free_bytes(known, lately=True)
        self._reserve = max(p.spec.low_memory_bytes for p in parties)
        self._load = _Line(lambda load: _heat_cost(known, self._base + load), most.load)
        self._batteries = self._lines_of_battery(most.usual_load)
        self._shared = self._shared_lines()
        self._bearable: tuple[float, float] | None = None
        self._most = most
        self.most_load = math.inf
        """The greatest load that may be begun with, whatever the device bears."""

    def cost(self, load: float, usual_load: float, held_bytes: float) -> float:
        """Return what is lost of all answers, in answers a second times their weight.

        Args:
            load: Share of the processor that the models take.
            usual_load: The same, at their usual rates.
            held_bytes: Memory that they hold.
        """
        cost = self._all_per_s * (self._load.at(load) + self._saturated(load))
        for per_s, line in self._shared:
            cost += per_s * line.at(usual_load)
        return cost + self._memory(held_bytes, None)

    def harm(self, own: int, load: float, usual_load: float, held_bytes: float) -> float:
        """Return what the same sums cost the others, for one answer of a party.

        Args:
            own: The number of the party.
            load: As for `cost`, like all others.
            usual_load: The same.
            held_bytes: The same.
        """
        ours = self._parties[own].answers_per_s
        others = self._all_per_s - ours
        # A model by itself knows nothing of a processor that is full because of others.
        cost = others * self._load.at(load) + self._all_per_s * self._saturated(load)
        for number, line in enumerate(self._batteries):
            if line is not None and number != own:
                cost += self._parties[number].answers_per_s * line.at(usual_load)
        return (cost + self._memory(held_bytes, own)) / ours

    def bears(self, load: float, usual_load: float, held_bytes: float) -> bool:
        """Tell whether models may begin more work, because all together could go on for minutes.

        Args:
            load: As for `cost`, like all others.
            usual_load: The same.
            held_bytes: The same.
        """
        if load > self.most_load:
            return False
        if self._lately is not None and held_bytes + self._held + self._reserve > self._lately:
            return False
        if self._bearable is None:
            self._bearable = self._most_bearable()
        return load <= self._bearable[0] and usual_load <= self._bearable[1]

    def fits(self, held_bytes: float) -> bool:
        """Tell whether a need of memory fits into what there is."""
        return self._free is None or held_bytes + self._held <= self._free

    def _saturated(self, load: float) -> float:
        return SATURATED * excess(self._base + load)

    def _memory(self, held_bytes: float, but: int | None) -> float:
        """Return what little memory costs, for all parties or all but one."""
        if self._free is None:
            return 0.0
        need = held_bytes + self._held
        if need + limits.STAYS_FREE * self._reserve <= self._free:
            return 0.0
        if need > self._free:
            return TOO_LARGE * self._all_per_s * (1.0 + (need - self._free) / GIB)
        cost = 0.0
        for number, party in enumerate(self._parties):
            kept = limits.STAYS_FREE * party.spec.low_memory_bytes
            if number != but and need + kept > self._free:
                cost += party.answers_per_s * limits.SCARCE * (need + kept - self._free) / kept
        return cost

    def _lines_of_battery(self, most: float) -> list[_Line | None]:
        """Return the cost of each party's aim; None where it is kept at the greatest load."""
        lines: dict[float | None, _Line | None] = {None: None}
        found = []
        for party in self._parties:
            need_s = self._need_s(party)
            if need_s not in lines:
                cost = self._battery_cost(party)
                lines[need_s] = _Line(cost, most, BATTERY_POINTS) if cost(most) > 0.0 else None
            found.append(lines[need_s])
        return found

    def _shared_lines(self) -> list[tuple[float, _Line]]:
        """Return each line once, with the answers of all parties whose aim it is."""
        found: dict[int, tuple[float, _Line]] = {}
        for party, line in zip(self._parties, self._batteries, strict=True):
            if line is not None:
                before, _ = found.get(id(line), (0.0, line))
                found[id(line)] = (before + party.answers_per_s, line)
        return list(found.values())

    def _battery_cost(self, party: Party) -> Callable[[float], float]:
        def cost(usual_load: float) -> float:
            found, _ = self._battery(party, usual_load)
            return 0.0 if found is None else found.cost

        return cost

    def _battery(
        self, party: Party, usual_load: float
    ) -> tuple[limits.Fault | None, limits.Fault | None]:
        load = min(self._usual_base + usual_load, 1.0)
        return limits.battery(party.known, party.spec, load, service_s=load, asked=True)

    def _need_s(self, party: Party) -> float | None:
        return reach.need_s(party.spec.aim, party.known.battery)

    def _most_bearable(self) -> tuple[float, float]:
        """Return the greatest load, and the greatest usual one, that may be begun."""
        load = _most(
            self._load.points,
            lambda at: limits.lasting_heat(self._known, min(self._base + at, 1.0)) is None,
        )
        usual = math.inf
        seen = set()
        for party in self._parties:
            need_s = self._need_s(party)
            if need_s is not None and need_s not in seen:
                seen.add(need_s)
                points = _spread(self._most.usual_load, BATTERY_POINTS)
                usual = min(usual, _most(points, self._lasts(party)))
        return load, usual

    def _lasts(self, party: Party) -> Callable[[float], bool]:
        return lambda at: self._battery(party, at)[1] is None


class _Line:
    """A cost that never falls, from some points of it."""

    def __init__(self, cost: Callable[[float], float], most: float, count: int = POINTS) -> None:
        self.points = _spread(most, count)
        self._per_point = (len(self.points) - 1) / most if most > 0.0 else 0.0
        costs = [cost(point) for point in self.points]
        for number in range(1, len(costs)):
            costs[number] = max(costs[number], costs[number - 1])
        self._costs = [*costs, costs[-1]]

    def at(self, value: float) -> float:
        """Return the cost of a value, 0 to the greatest one."""
        place = min(value * self._per_point, len(self.points) - 1.0)
        number = int(place)
        low = self._costs[number]
        return low + (place - number) * (self._costs[number + 1] - low)


def _spread(most: float, count: int) -> list[float]:
    if most <= 0.0:
        return [0.0]
    return [most * number / (count - 1) for number in range(count)]


def _most(points: Sequence[float], holds: Callable[[float], bool]) -> float:
    """Return the greatest point at which something holds; -1 for none, infinite for all."""
    number = bisect.bisect_left(points, 1, key=lambda point: int(not holds(point)))
    return math.inf if number == len(points) else points[number - 1] if number else -1.0


def _heat_cost(known: Estimates, load: float) -> float:
    load = min(load, 1.0)
    found = (limits.heat(known, load), limits.hidden_heat(known, load))
    return math.fsum(f.cost for f in found if f is not None) + EFFORT * load

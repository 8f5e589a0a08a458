"""Who was away at its turn in a rehearsal, as `controller.store.gate_turns` notes it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from controller.domain.gates import turns
from controller.domain.gates.look import Member
from controller.domain.rehearsal.history import Flags
from controller.domain.rollout_view import RolloutView
from controller.domain.stage_progress import target_of


class Turns:
    """The turns of the devices of a rollout, by their numbers.

    Args:
        places: The place of each device in the order of starting.
        profiles: The profile of each.
    """

    def __init__(self, places: Sequence[int], profiles: Sequence[str]) -> None:
        self._places = places
        self._strata = [
            Member("", profile, place).stratum
            for profile, place in zip(profiles, places, strict=True)
        ]
        self._stage = self._before = self._passed = 0
        self._earlier: frozenset[int] = frozenset()
        self.away: set[int] = set()
        """Those that were away at their turn: gates compare none of them."""

        self.with_release: set[int] = set()
        """Those of them that had the release by then."""

    def note(
        self,
        view: RolloutView,
        starting: Sequence[int],
        *,
        pending: Sequence[int],
        control: Sequence[int],
        succeeded: Collection[int],
        online: Flags,
    ) -> dict[int, int]:
        """Note who is away, of those whose turn it is while some devices start.

        Args:
            view: How the rollout was when it was decided who starts.
            starting: Who starts.
            pending: Who starts next, in order.
            control: Who is held out.
            succeeded: Who has the release.
            online: Who is online.

        Returns:
            Devices of the control group that were away, with those that take their places.
        """
        if not view.gates:
            return {}
        if view.stage != self._stage:
            self._stage, self._before, self._passed = view.stage, view.started, 0
            self._earlier = frozenset(succeeded)
        begun = view.started + len(starting) - self._before
        passed = turns.passed(begun, target_of(view) - self._before)
        if passed <= self._passed:
            return {}
        drawn = {
            at
            for at, place in enumerate(self._places)
            if self._passed <= turns.moment(place) < passed
        }
        furthest = max((self._places[at] for at in starting), default=0)
        skipped = {at for at in pending if self._places[at] < furthest}
        waiting = skipped | drawn & {*pending, *control}
        gone = {at for at in drawn & self._earlier if not online[at]} - self.away
        self.with_release |= gone
        self.away |= gone | {at for at in waiting if not online[at]}
        before, self._passed = self._passed, passed
        if not turns.is_refilled(before, passed):
            return {}
        now = frozenset(starting)
        free = {
            at: self._strata[at]
            for at in reversed(pending)
            if at not in self.away and (at in now or turns.moment(self._places[at]) < passed)
        }
        return turns.substitutes({at: self._strata[at] for at in control if at in self.away}, free)

"""The tick that moves rollouts on.

Rules:
- A tick reads, decides, saves and then publishes. A message may be lost;
  `controller.services.director` repeats it. A controller that is killed at any point continues
  from the database.
- A rollout that is to revert when a rule halts it is rolled back in the transaction of the halt:
  there is one rollback, or the next tick decides again.
- Before a rollout is decided about, its gates are looked at if it is time to, and so is the shadow
  for which its stage waits.
- Devices that enrolled late are looked for outside of the transaction that writes, and seldom in a
  large fleet; but a rollout does not end before somebody has looked.
- What is left to do of orders comes first, and nobody decides about a rollout before all of it is
  done.
- If the tick of a rollout fails, the next tick tries it again; the others go on.
- The clock of a rollout goes on only from one tick to the next of the same controller, and only
  while that controller leads and hears its devices. While no controller runs, the broker is away
  or the database does not answer, no deadline comes nearer.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from controller.domain.rollout_policy import decide
from controller.domain.states import ACTIVE_ROLLOUTS, RolloutState
from controller.errors import SelectorError
from controller.services import follow_ups
from controller.services.director import Director
from controller.services.gates import GateLooks
from controller.services.pace import Pace
from controller.services.preflight import Preflight
from controller.services.reception import Reception
from controller.services.rollout_work import TICK_S, RolloutWork
from controller.services.stage_shadows import StageShadows
from controller.store import (
    gate_turns,
    newcomers,
    releases,
    rollout_steps,
    rollout_work,
    rollouts,
    stages,
)
from controller.store.database import Database, Transaction
from controller.store.rollout_tables import RolloutRow
from wire.clock import Clock
from wire.errors import FleetError

_log = logging.getLogger(__name__)


class RolloutEngine:
    """Moves every rollout on.

    Args:
        database: The control state.
        director: Sends desired states to devices.
        reception: How long the controller has heard its devices.
        preflight: Knows which devices cannot take a release.
        gates: Asks what devices measure.
        shadows: Keeps the shadows for which stages wait.
        clock: Wall time and durations.
    """

    def __init__(
        self,
        database: Database,
        director: Director,
        reception: Reception,
        preflight: Preflight,
        gates: GateLooks,
        shadows: StageShadows,
        clock: Clock,
    ) -> None:
        self._database = database
        self._gates = gates
        self._shadows = shadows
        self._preflight = preflight
        self._director = director
        self._work = RolloutWork(database, director, clock)
        self._reception = reception
        self._clock = clock
        self._ticked_at_s = clock.monotonic_s()
        self._paces: dict[str, Pace] = {}
        """How often newcomers of each rollout are looked for."""

    def tick(self) -> None:
        """Move every rollout on by one decision.

        Raises:
            DatabaseError: The database does not answer.
        """
        before_s, self._ticked_at_s = self._ticked_at_s, self._clock.monotonic_s()
        elapsed_s = min(self._ticked_at_s - before_s, self._reception.settled_s())
        self._work.go_on(within_s=TICK_S)
        self._shadows.stop_left()
        with self._database.reading() as transaction:
            active = rollouts.active_ids(transaction)
        self._paces = {name: self._paces.get(name) or Pace(self._clock) for name in active}
        for rollout in active:
            for what, look in (("gates", self._gates.look), ("shadow", self._shadows.look)):
                try:
                    look(rollout)
                except FleetError as exc:  # its abort rules still hold
                    _log.warning("the %s of rollout %s: looked at again: %s", what, rollout, exc)
            try:
                told = self._step(rollout, elapsed_s=elapsed_s)
            except FleetError as exc:
                _log.warning("rollout %s is tried again: %s", rollout, exc)
            else:
                self._director.publish(told)

    def stand_by(self) -> None:
        """Leave a tick to the controller that leads: its time is not counted here, too."""
        self._ticked_at_s = self._clock.monotonic_s()

    def _step(self, rollout: str, *, elapsed_s: float) -> list[str]:
        """Take one decision about a rollout and save it.

        Args:
            rollout: Its identifier.
            elapsed_s: The time since the last tick in which devices were heard.

        Returns:
            The devices that have a new desired state.

        Raises:
            FleetError: It could not be saved; nothing was changed.
        """
        now_s = self._clock.now_s()
        found = self._newcomers(rollout)
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            if row.state not in ACTIVE_ROLLOUTS or rollout_work.is_left(transaction, rollout):
                return []
            rollout_steps.look(transaction, row, elapsed_s=elapsed_s)
            takes = _takes_newcomers(transaction, row)
            if takes and found:
                self._join(transaction, row, found, now_s=now_s)
            view = rollouts.view(transaction, row)
            decision = decide(view)
            if takes and found is None and decision.action == "finish":
                self._join(transaction, row, self._found(transaction, row), now_s=now_s)
                view = rollouts.view(transaction, row)
                decision = decide(view)
            start = gate_turns.note(transaction, row, view, decision.start, now_s=now_s)
            decision = replace(decision, start=tuple(start))
            told = rollout_steps.save_decision(transaction, row, decision, now_s=now_s)
            if decision.action == "halt" and row.on_halt == "revert":
                told += follow_ups.revert_halted(transaction, row, now_s=now_s)
        if told or decision.action != "hold":
            _log.info("rollout %s: %s, %s", rollout, decision.action, decision.reason)
        return told

    def _newcomers(self, rollout: str) -> list[str] | None:
        """Return the devices that may join a rollout; None if nobody has looked."""
        pace = self._paces[rollout]
        if not pace.is_due():
            return None
        with pace.working(), self._database.reading() as transaction:
            row = rollouts.get(transaction, rollout)
            if not _takes_newcomers(transaction, row):
                return None
            return self._found(transaction, row)

    def _found(self, transaction: Transaction, row: RolloutRow) -> list[str]:
        try:
            return newcomers.find(transaction, row, now_s=self._clock.now_s())
        except SelectorError as exc:  # its group is gone; the abort rules go on
            _log.warning("nobody joins rollout %s: %s", row.id, exc)
            return []

    def _join(
        self, transaction: Transaction, row: RolloutRow, found: Sequence[str], *, now_s: float
    ) -> None:
        unfit = partial(self._unfit, transaction, row)
        newcomers.join(transaction, row, found, unfit, now_s=now_s)

    def _unfit(
        self, transaction: Transaction, row: RolloutRow, devices: Sequence[str]
    ) -> dict[str, str]:
        is_windowed = bool(row.windows)
        try:
            offered = releases.get(transaction, row.release)
            return self._preflight.unfit(transaction, offered, devices, is_windowed=is_windowed)
        except FleetError as exc:  # the files of the release: the devices will say so, too
            _log.warning("nobody is left out of release %s: %s", row.release, exc)
            return {}


def _takes_newcomers(transaction: Transaction, row: RolloutRow) -> bool:
    """Tell whether a rollout is in its last stage, which takes in devices that enrolled late."""
    last = row.stage == len(stages.of_rollout(transaction, row.id))
    is_open = row.origin is None and row.superseded_by is None
    return last and is_open and row.state == RolloutState.RUNNING

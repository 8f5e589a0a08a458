"""Goes on with orders about rollouts that take several transactions.

Rules:
- Which devices an order concerns is decided in a transaction that only reads, and holds up no
  writer. The short one that saves it decides anew if a rollout of the model has changed meanwhile.
- Each part is carried out in a transaction of its own. An order goes on with its
  parts until it has taken a short time, and answers; the tick does the rest, also that of a
  controller that was killed.
- A rollout whose part fails is tried again by the next tick; the others go on.
- No two rollouts of a model take devices in at the same time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, TypeVar

from controller.domain.states import ENDING_WORK
from controller.services.director import Director
from controller.store import rollout_work, rollouts, taking_in, taking_out
from controller.store.database import Database, Transaction
from wire.clock import Clock
from wire.errors import FleetError

ANSWER_S: Final = 0.3
"""How long an order takes that goes on with its parts before it answers."""

TICK_S: Final = 1.0
"""How long a tick does: then it is the turn of rollouts that have begun."""

_log = logging.getLogger(__name__)
_Decided = TypeVar("_Decided")
_Result = TypeVar("_Result")


class RolloutWork:
    """Decides about many devices, and carries out what was decided.

    Args:
        database: The control state.
        director: Sends desired states to devices that go back.
        clock: Wall time and durations.
    """

    def __init__(self, database: Database, director: Director, clock: Clock) -> None:
        self._database = database
        self._director = director
        self._clock = clock

    def order(
        self,
        model_of: Callable[[Transaction], str],
        decide: Callable[[Transaction], _Decided],
        save: Callable[[Transaction, _Decided], _Result],
    ) -> _Result:
        """Decide without holding up others, and save the decision.

        Args:
            model_of: Returns the model of the order.
            decide: Decides, and only reads.
            save: Saves that.

        Returns:
            What `save` returns.

        Raises:
            FleetError: What these raise; nothing is saved.
        """
        with self._database.reading() as transaction:
            model = model_of(transaction)
            before = rollout_work.states_of(transaction, model)
            decided = decide(transaction)
        with self._database.transaction() as transaction:
            rollout_work.lock_model(transaction, model)
            if rollout_work.states_of(transaction, model) != before:
                decided = decide(transaction)
            return save(transaction, decided)

    def answer(self, model: str, *, since_s: float) -> None:
        """Go on with what an order has left to do, until it has taken `ANSWER_S`; a part at least.

        Args:
            model: Its model.
            since_s: When it came, by the clock of durations.

        Raises:
            DatabaseError: The database does not answer.
        """
        self.go_on(model, within_s=since_s + ANSWER_S - self._clock.monotonic_s())

    def go_on(self, model: str | None = None, *, within_s: float) -> None:
        """Carry out what is left to do, for some time.

        Args:
            model: Only with rollouts of this one.
            within_s: For how long; a part that has begun ends.

        Raises:
            DatabaseError: The database does not answer.
        """
        ends_s = self._clock.monotonic_s() + within_s
        with self._database.reading() as transaction:
            found = rollout_work.rollouts(transaction, model)
        for rollout in found:
            try:
                while self._step(rollout):
                    if self._clock.monotonic_s() >= ends_s:
                        return
            except FleetError as exc:
                _log.warning("what is left of rollout %s is tried again: %s", rollout, exc)

    def end_of(self, model: str) -> None:
        """Take the devices of all ended rollouts of a model out, however long it takes.

        Raises:
            FleetError: It could not be done.
        """
        with self._database.reading() as transaction:
            found = rollout_work.rollouts(transaction, model, is_ending=True)
        for rollout in found:
            while self._step(rollout):
                pass

    def _step(self, rollout: str) -> bool:
        """Carry out the next part of what is left of a rollout, in a transaction.

        Returns:
            Whether something was done.

        Raises:
            FleetError: It could not be saved; nothing was changed.
        """
        now_s = self._clock.now_s()
        told: list[str] = []
        with self._database.transaction() as transaction:
            row = rollouts.get(transaction, rollout, lock=True)
            part = rollout_work.next_part(transaction, rollout)
            if part is None:
                return False
            if part.kind in ENDING_WORK:
                told = taking_out.step(transaction, row, part, now_s=now_s)
            elif rollout_work.rollouts(transaction, row.model, is_ending=True):
                return False
            else:
                taking_in.step(transaction, row, part, now_s=now_s)
        self._director.publish(told)
        return True

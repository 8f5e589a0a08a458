"""Tells webhooks about alerts and rollouts, from a table of what is still to be told.

Rules:
- A post is saved before it is sent, and each try before it is made: a controller that is killed
  goes on after its restart, and a receiver may get a post twice. Both have one `id`.
- A receiver that is away gets nothing else before its next try. A post that it refuses, or that a
  kill interrupted, holds up what is told later of the same groups, or the same rollout, and nothing
  else: their order holds.
- After `MAX_TRIES` a post is given up; so are the oldest if too many wait. The health tells it.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections.abc import Sequence

from controller.alert_settings import AlertsConfig
from controller.domain.alert_posts import (
    MAX_TOGETHER,
    MAX_TRIES,
    DeliveryState,
    Notice,
    body,
    group_key,
    wait_s,
)
from controller.domain.rollout_notices import RolloutNotice, key_of, rollout_body
from controller.services.webhook_posts import Answered, Outcome, Webhook
from controller.store import alert_deliveries
from controller.store.alert_tables import AlertDeliveryRow
from controller.store.database import Database, Transaction
from wire.clock import Clock

KEPT_S = 7 * 86_400.0
"""How long the table has what ended."""

TROUBLE_AFTER = 3
"""Tries that fail before the health tells it."""

_log = logging.getLogger(__name__)
_random = secrets.SystemRandom()


class Webhooks:
    """The receivers of alerts.

    Args:
        database: The control state.
        config: The receivers.
        clock: Wall time.

    Raises:
        SettingsError: A secret is unusable.
    """

    def __init__(self, database: Database, config: AlertsConfig, clock: Clock) -> None:
        self._database = database
        self._clock = clock
        self._webhooks = {each.name: Webhook(each) for each in config.webhooks}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._troubles: dict[str, str] = {}
        self._given_up = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the receivers."""
        return tuple(self._webhooks)

    def queue(self, transaction: Transaction, notices: Sequence[Notice]) -> None:
        """Save what is to be told, in the transaction in which it becomes so.

        Args:
            transaction: The transaction.
            notices: Alerts, in the order in which they happened.
        """
        now_s = self._clock.now_s()
        for name in self._told("alerts"):
            for start in range(0, len(notices), MAX_TOGETHER):
                part = list(notices[start : start + MAX_TOGETHER])
                identifier = _new_id()
                alert_deliveries.add(
                    transaction,
                    identifier=identifier,
                    groups={group_key(each.rule, each.group) for each in part},
                    webhook=name,
                    body=body(identifier, name, part, now_s=now_s),
                    alerts=len(part),
                    now_s=now_s,
                )
            if notices:
                surplus = alert_deliveries.give_up_surplus(transaction, name, now_s=now_s)
                self._note_given_up(name, surplus)

    def queue_rollout(self, transaction: Transaction, notice: RolloutNotice) -> None:
        """Save an event of a rollout that is to be told.

        Args:
            transaction: The transaction.
            notice: The event.
        """
        now_s = self._clock.now_s()
        for name in self._told("rollouts"):
            identifier = _new_id()
            alert_deliveries.add(
                transaction,
                identifier=identifier,
                groups={key_of(notice.rollout)},
                webhook=name,
                body=rollout_body(identifier, name, notice, now_s=now_s),
                alerts=0,
                now_s=now_s,
            )
            surplus = alert_deliveries.give_up_surplus(transaction, name, now_s=now_s)
            self._note_given_up(name, surplus)

    def post_due(self, name: str) -> None:
        """Post what is due to a receiver; a thread for each does, so none waits for another.

        Args:
            name: The name of the receiver.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            if not alert_deliveries.is_due(transaction, name, now_s=self._clock.now_s()):
                return
        webhook = self._webhooks[name]
        while not self._stopping.is_set() and self._post_next(webhook):
            pass

    def stop(self) -> None:
        """Post nothing more; what waits is posted after the next start."""
        self._stopping.set()

    def test(self) -> dict[str, Outcome]:
        """Post to each receiver that somebody tries it, once; nothing is kept.

        Returns:
            What came of it, by name.
        """
        now_s = self._clock.now_s()
        found = {}
        for name, webhook in self._webhooks.items():
            identifier = _new_id()
            content = body(identifier, name, [], now_s=now_s, is_test=True)
            found[name] = webhook.post(identifier, content.encode(), now_s)
        return found

    def waiting(self) -> dict[str, int]:
        """Return how many posts wait, by receiver.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            return alert_deliveries.waiting(transaction)

    def prune(self, transaction: Transaction, *, now_s: float) -> None:
        """Delete what ended long ago, and give up what is for nobody any more."""
        alert_deliveries.prune(transaction, before_s=now_s - KEPT_S, after_s=now_s + KEPT_S)
        gone = alert_deliveries.give_up_strangers(transaction, self._webhooks, now_s=now_s)
        self._note_given_up("that the settings no longer name", gone)

    def needs(self) -> list[str]:
        """Return what is wanting, one line each; it names no address."""
        with self._lock:
            troubles, given_up = sorted(self._troubles.items()), self._given_up
        lines = [
            f"a receiver of alerts that works: webhook {name}: {fault}" for name, fault in troubles
        ]
        if given_up:
            lines.append(
                f"{given_up} posts of alerts were given up since the start of the controller"
            )
        return lines

    def _told(self, of: str) -> list[str]:
        return [name for name, webhook in self._webhooks.items() if of in webhook.tells]

    def _post_next(self, webhook: Webhook) -> bool:
        """Post the next thing that is due to a receiver, and tell whether to go on with it."""
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            row = alert_deliveries.claim(
                transaction, webhook.name, now_s=now_s, wait_s=lambda n: wait_s(n, _random.random())
            )
        if row is None:
            return False
        outcome = webhook.post(row.id, row.body.encode(), now_s)
        self._save(row, outcome)
        self._tell(webhook.name, row, outcome)
        return outcome.answered is not Answered.FAILED

    def _save(self, row: AlertDeliveryRow, outcome: Outcome) -> None:
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            if outcome.answered is Answered.ACCEPTED:
                state = DeliveryState.DELIVERED
                alert_deliveries.end(transaction, row.number, state, "", now_s=now_s)
            elif row.tries >= MAX_TRIES:
                state = DeliveryState.GIVEN_UP
                alert_deliveries.end(transaction, row.number, state, outcome.fault, now_s=now_s)
            else:
                alert_deliveries.note_fault(transaction, row.number, outcome.fault)
            if outcome.answered is Answered.FAILED:
                alert_deliveries.postpone(transaction, row.webhook, until_s=row.next_at_s)

    def _tell(self, name: str, row: AlertDeliveryRow, outcome: Outcome) -> None:
        if outcome.answered is Answered.ACCEPTED:
            with self._lock:
                was_in_trouble = self._troubles.pop(name, None) is not None
            if was_in_trouble:
                _log.info("webhook %s accepts alerts again", name)
            return
        if row.tries >= MAX_TRIES:
            self._note_given_up(name, 1)
        if row.tries >= TROUBLE_AFTER:
            with self._lock:
                self._troubles[name] = outcome.fault
        _log.warning(
            "webhook %s did not take post %s, try %d: %s", name, row.id, row.tries, outcome.fault
        )

    def _note_given_up(self, name: str, number: int) -> None:
        if number:
            with self._lock:
                self._given_up += number
            _log.error("%d posts of alerts to webhook %s are given up", number, name)


def _new_id() -> str:
    return secrets.token_hex(16)

"""Judges the rules of alerts now and then, and keeps what becomes of them.

Rules:
- One controller of a database judges. Another one says that it does not, and begins when the first
  has ended.
- A fault of one rule is told with the rule; the others go on.
- All that a round changes, and what webhooks are to be told of it, is saved in one transaction: a
  controller that is killed judges anew, and tells nothing twice that it saved.
- What was judged by a rule that has been changed meanwhile is not saved.
- Time counts in which the controller judged and heard its devices: one that was away for a day
  forgets no alert, and a wall clock that is set forward lets none fire at once.
- What names an alert to receivers is drawn when it fires: no clock that is set changes it.
- An alert that somebody acknowledged is not told again while that lasts. That it is resolved is
  told to those who were told that it fires.
"""

from __future__ import annotations

import functools
import logging
import secrets
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from controller.alert_settings import AlertsConfig
from controller.domain.alert_groups import group_text
from controller.domain.alert_posts import ID_CHARS, Notice
from controller.services.alert_notices import FORGOTTEN, end_ack, is_acked, notice
from controller.services.alert_rules import CONTROLLER, RuleInForce, in_force
from controller.services.device_queries import over_devices
from controller.services.devices import Devices
from controller.services.reception import Reception
from controller.services.telemetry_batches import USUAL_S, report_every_s
from controller.services.webhooks import Webhooks
from controller.store import alerts, device_status
from controller.store.alert_tables import AlertRow
from controller.store.alerts import Rows
from controller.store.database import Database, Transaction
from controller.store.sole import Sole, Work
from telemetry.server.alerts.answers import Answers, of_devices, of_enrolled, unless_deaf
from telemetry.server.alerts.judging import MAX_ALERTS, Asked, Group, Judged, Verdict, judge
from telemetry.server.alerts.rules import Absence, AnyRule
from telemetry.server.alerts.states import Phase, Reading, State, Transition
from telemetry.server.question import DEVICE
from telemetry.server.store import TelemetryStore
from wire.clock import Clock
from wire.errors import FleetError

PRUNE_EVERY_S = 3600.0
INTERVALS_AT_MOST = 10
"""A round counts for so many intervals since the one before: it may have been late, not away."""

RESOLVED_KEPT_S = 7 * 86_400.0
SECONDS_PER_DAY = 86_400.0
SECOND = "another one with the same database does until it ends"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """How a rule was evaluated last."""

    at_s: float
    took_s: float = 0.0
    fault: str = ""
    note: str = ""
    """Why groups that have values are not judged."""


class Alerts:
    """Judges the rules.

    Args:
        database: The control state.
        telemetry: What devices sent.
        devices: The devices of the fleet.
        reception: How long the controller has heard its devices.
        webhooks: Who is told.
        config: How often.
        clock: Wall time and durations.
    """

    def __init__(
        self,
        database: Database,
        telemetry: TelemetryStore,
        devices: Devices,
        reception: Reception,
        webhooks: Webhooks,
        config: AlertsConfig,
        clock: Clock,
    ) -> None:
        self._database = database
        self._answers = Answers(telemetry)
        self._devices = devices
        self._reception = reception
        self._webhooks = webhooks
        self._config = config
        self._clock = clock
        self._sole = Sole(database, Work.ALERTS)
        self._lock = threading.Lock()
        self._is_second = False
        self._evaluated: dict[str, Evaluated] = {}
        self._round_at_s: float | None = None
        self._judged_at_s = clock.monotonic_s()
        """When the last round began, or this one was made."""

        self._pruned_at_s: float | None = None

    @property
    def enabled(self) -> bool:
        """Whether rules are judged."""
        return self._config.enabled

    def tick(self) -> None:
        """Judge all rules if it is time to, and prune; do nothing while another controller does.

        Raises:
            DatabaseError: The database does not answer.
        """
        now_s = self._clock.monotonic_s()
        if self.enabled and _is_over(self._round_at_s, now_s, self._config.interval_s):
            self._round_at_s = now_s
            self.evaluate()
        if _is_over(self._pruned_at_s, now_s, PRUNE_EVERY_S) and self._is_sole():
            self._pruned_at_s = now_s
            self._prune()

    def close(self) -> None:
        """Leave it to other controllers to judge."""
        self._sole.close()

    def evaluate(self) -> None:
        """Judge all rules once, unless another controller does.

        Raises:
            DatabaseError: The database does not answer; nothing has changed.
        """
        passed_s = self._passed_s()
        if not self._is_sole():
            return
        now_s = self._clock.now_s()
        with self._database.reading() as transaction:
            rules = in_force(transaction)
            rows = alerts.states(transaction)
        verdicts: dict[str, Verdict] = {}
        evaluated: dict[str, Evaluated] = {}
        for item in rules:
            if item.rule is not None and not item.rule.enabled:
                continue
            began_s, fault, note = self._clock.monotonic_s(), item.fault, ""
            if item.rule is not None:
                verdict, fault, note = self._judge(item.rule, rows, now_s, passed_s)
                if verdict is not None:
                    verdicts[item.name] = verdict
            took_s = self._clock.monotonic_s() - began_s
            evaluated[item.name] = Evaluated(at_s=now_s, took_s=took_s, fault=fault, note=note)
        if any(verdict.groups for verdict in verdicts.values()):
            self._save({item.name: item for item in rules}, verdicts, now_s)
        with self._lock:
            before, self._evaluated = self._evaluated, evaluated
        _log_faults(before, evaluated)

    def asking(self, rule: AnyRule, answers: Answers | None = None) -> Asked:
        """Return what answers a rule about metrics at a time; its devices are those of now.

        Args:
            rule: The rule.
            answers: Who answers; None for the store.

        Raises:
            SelectorError: Its selector cannot be read.
            DatabaseError: The database does not answer.
        """
        scope = over_devices(self._devices, rule.selector, rule.names)
        with self._database.reading() as transaction:
            every_s = report_every_s(device_status.count_enrolled(transaction))
        if isinstance(every_s, msgspec.UnsetType):
            every_s = USUAL_S
        enrolled = self._devices.enrolled(rule.selector) if isinstance(rule, Absence) else None
        answers = self._answers if answers is None else answers
        return functools.partial(
            answers.of_metric, rule, scope, report_every_s=every_s, enrolled=enrolled
        )

    def evaluated(self) -> Mapping[str, Evaluated]:
        """Return how each rule was evaluated last, since the controller started."""
        with self._lock:
            return dict(self._evaluated)

    def faulty_rules(self) -> int:
        """Return how many rules could not be evaluated, or not wholly, in the last round."""
        return sum(bool(each.fault) for each in self.evaluated().values())

    def needs(self) -> list[str]:
        """Return what is wanting, one line each; it names no rule and no device."""
        faulty = self.faulty_rules()
        lines = [f"to be the one that judges alerts: {SECOND}"] if self._is_second else []
        if faulty:
            lines.append(
                f"rules of alerts that can be evaluated: {faulty} cannot, or not wholly; "
                "`fleet alert rules` says why"
            )
        return lines + self._webhooks.needs()

    def _is_sole(self) -> bool:
        """Tell whether no other controller judges, and say so once if one does.

        Raises:
            DatabaseError: The database does not answer.
        """
        was_second, self._is_second = self._is_second, not self._sole.is_ours()
        if self._is_second and not was_second:
            _log.warning("this controller judges no alerts: %s", SECOND)
        return not self._is_second

    def _passed_s(self) -> float:
        """Return how long it has listened since the round before, and begin another one."""
        began_s, now_s = self._judged_at_s, self._clock.monotonic_s()
        self._judged_at_s = now_s
        at_most_s = INTERVALS_AT_MOST * self._config.interval_s
        return min(now_s - began_s, self._reception.heard_s(), at_most_s)

    def _judge(
        self, rule: AnyRule, rows: Rows, now_s: float, passed_s: float
    ) -> tuple[Verdict | None, str, str]:
        """Judge the groups of a rule; return what became of them, what went wrong, and a note."""
        known = _known(rule, rows)
        try:
            if isinstance(rule, Absence) and rule.metric is None:
                times = self._devices.heard_at_s(rule.selector).items()
                heard = {device: heard_s for device, (_, heard_s) in times}
                asked_s = self._clock.now_s()
                listening_s = self._reception.heard_s()
                answer = of_devices(heard, asked_s, listening_s)
            else:
                answer = self.asking(rule)(now_s, known=known.keys())
                if DEVICE in rule.names:
                    enrolled = self._devices.enrolled(rule.selector)
                    answer = of_enrolled(rule, answer, known.keys(), enrolled)
                listening_s = self._reception.heard_s()
            answer = unless_deaf(rule, answer, listening_s)
            verdict = judge(rule.limits, known, answer, now_s, passed_s)
        except FleetError as exc:
            return None, str(exc), ""
        except Exception:  # noqa: BLE001 - the others must go on
            _log.exception("the alert %s cannot be evaluated", rule.name)
            return None, "it cannot be evaluated; the controller's log says more", ""
        fault = (
            f"{verdict.left_out} more groups are beyond the bound than the {MAX_ALERTS} of "
            "one rule; group by less, or select fewer devices"
            if verdict.left_out
            else ""
        )
        return verdict, fault, answer.note

    def _save(
        self, judged_by: Mapping[str, RuleInForce], verdicts: Mapping[str, Verdict], now_s: float
    ) -> None:
        """Save what has become of the groups."""
        notices: list[Notice] = []
        with self._database.transaction() as transaction:
            today = {item.name: item for item in in_force(transaction)}
            alerts.settle(transaction, now_s=now_s)
            same = [name for name in verdicts if today.get(name) == judged_by[name]]
            rows = alerts.states(transaction, *same, lock=True) if same else {}
            for name in same:
                rule = judged_by[name].rule
                if rule is not None:
                    for each in verdicts[name].groups:
                        notices += self._keep(transaction, rows, rule, each, now_s)
            self._webhooks.queue(transaction, notices)

    def _keep(
        self, transaction: Transaction, rows: Rows, rule: AnyRule, judged: Judged, now_s: float
    ) -> Sequence[Notice]:
        """Save what has become of a group; return what is to be told."""
        labels = dict(zip(rule.names, judged.group, strict=True))
        row = alerts.put(transaction, rows, rule.name, group_text(labels), labels, judged.state)
        change, told = judged.transition, []
        if change is not None and Phase.FIRING in change[:2]:
            reason = FORGOTTEN if change.reading is Reading.FORGOTTEN else ""
            alerts.log(
                transaction, at_s=now_s, rule=rule.name, what=change.after, actor=CONTROLLER,
                group_text=row.group_text, value=change.value, detail=reason,
            )  # fmt: skip
            _log.info("alert %s is %s: %s", rule.name, change.after, row.group_text or "the fleet")
            if change.after is Phase.FIRING:
                row.incident = secrets.token_hex(ID_CHARS // 2)
            else:
                told += _resolved(rule, row, change, reason)
        if row.phase == Phase.FIRING and self._is_to_tell(row, now_s):
            fired_at_s, again = row.since_s, row.told_at_s is not None
            told.append(
                notice(rule, row, Phase.FIRING, fired_at_s=fired_at_s, at_s=now_s, repeated=again)
            )
            row.told_at_s = now_s
        if row.phase == Phase.INACTIVE and not is_acked(row, now_s):
            alerts.drop(transaction, rows, row)
        return told

    def _is_to_tell(self, row: AlertRow, now_s: float) -> bool:
        """Tell whether webhooks are to be given that an alert fires."""
        if is_acked(row, now_s):
            return False
        if row.told_at_s is None:
            return True
        every_s = self._config.repeat_s
        return every_s > 0 and now_s - row.told_at_s >= every_s

    def _prune(self) -> None:
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            alerts.settle(transaction, now_s=now_s)
            alerts.prune(
                transaction,
                history_before_s=now_s - self._config.history_days * SECONDS_PER_DAY,
                resolved_before_s=now_s - RESOLVED_KEPT_S,
            )
            self._webhooks.prune(transaction, now_s=now_s)


def _known(rule: AnyRule, rows: Rows) -> dict[Group, State]:
    """Return the groups of a rule that are not inactive.

    What was resolved when the rule was grouped by something else is none of its groups.
    """
    return {
        tuple(str(row.labels[name]) for name in rule.names): alerts.state_of(row)
        for row in rows.values()
        if row.rule == rule.name
        and row.phase != Phase.INACTIVE
        and row.labels.keys() == set(rule.names)
    }


def _resolved(rule: AnyRule, row: AlertRow, change: Transition, reason: str) -> list[Notice]:
    """Return what is told of an alert that ends, and end what held for it alone."""
    was_told = row.told_at_s is not None
    row.told_at_s = None
    if row.acked_until_s is None:
        end_ack(row)
    if not was_told:
        return []
    return [
        notice(
            rule, row, Phase.RESOLVED, fired_at_s=change.fired_at_s, at_s=change.at_s, reason=reason
        )
    ]


def _log_faults(before: Mapping[str, Evaluated], after: Mapping[str, Evaluated]) -> None:
    for name, each in after.items():
        known = before.get(name)
        if each.fault and (known is None or known.fault != each.fault):
            _log.warning("the alert %s cannot be evaluated: %s", name, each.fault)


def _is_over(since_s: float | None, now_s: float, length_s: float) -> bool:
    return since_s is None or now_s - since_s >= length_s

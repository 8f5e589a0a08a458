"""The rules of alerts that are in force, and how others take their place.

Rules:
- What the operator sets takes the place of all rules that were set. The rule about silent devices
  is in force without being set, unless one of that name is.
- If a rule compares something else than before, its alerts end: they were about something else. A
  new summary or severity ends nothing.
- What ends so, and what was resolved before, stays listed as resolved for as long as other alerts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from controller.alert_schemas import AlertRulesChange
from controller.domain.selectors import parse_selector
from controller.errors import SelectorError
from controller.services.alert_notices import ENDED_BY_RULE, end_ack, notice
from controller.services.webhooks import Webhooks
from controller.store import alerts, policies
from controller.store.alert_tables import AlertRuleRow
from controller.store.database import Database, Transaction
from controller.store.groups import read_selector
from telemetry.errors import AlertRuleError
from telemetry.server.alerts.kept import Retained, faults, remedy
from telemetry.server.alerts.rules import SILENT_DEVICES, TOLD_ONLY, AnyRule
from telemetry.server.alerts.rules_file import changed_keys, checked_rule, checked_rules
from telemetry.server.alerts.states import Phase
from wire.clock import Clock
from wire.codec import to_builtins

CONTROLLER = "controller"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleInForce:
    """A rule that is in force."""

    name: str
    rule: AnyRule | None
    """None if what is stored is no rule of this version."""

    spec: dict[str, Any]
    fault: str = ""
    changed_at_s: float | None = None
    """None for the rule that every fleet has."""


def checked(values: Mapping[str, Any], retained: Retained) -> tuple[AnyRule, ...]:
    """Return the rules that a person wrote, which can be answered and whose selectors can be read.

    Args:
        values: The content of a file.
        retained: How long telemetry is kept.

    Raises:
        AlertRuleError: They cannot be.
        SelectorError: A selector cannot be read.
    """
    rules = checked_rules(values)
    for rule in rules:
        with _selector_of(rule):
            parse_selector(rule.selector)
        for fault in faults(rule, retained):
            raise AlertRuleError(f"alert {rule.name}: {fault}", remedy=remedy(rule))
    return rules


@contextmanager
def _selector_of(rule: AnyRule) -> Iterator[None]:
    """Let faults of a selector name the rule.

    Raises:
        SelectorError: The selector cannot be read.
    """
    try:
        yield
    except SelectorError as exc:
        raise SelectorError(
            f"alert {rule.name}: {exc.message}",
            remedy=exc.remedy,
            expression=exc.expression,
            character=exc.character,
        ) from exc


def in_force(transaction: Transaction) -> list[RuleInForce]:
    """Return the rules that are in force, in the order of the file."""
    found = [_of_row(row) for row in alerts.rules(transaction)]
    if SILENT_DEVICES.name not in {each.name for each in found}:
        found.append(_built_in())
    return found


class AlertRuleBook:
    """The rules of alerts.

    Args:
        database: The control state.
        webhooks: Who is told.
        retained: How long telemetry is kept.
        clock: Wall time.
    """

    def __init__(
        self, database: Database, webhooks: Webhooks, retained: Retained, clock: Clock
    ) -> None:
        self._database = database
        self._webhooks = webhooks
        self._retained = retained
        self._clock = clock

    def apply(
        self, values: Mapping[str, Any], *, actor: str, dry_run: bool = False
    ) -> AlertRulesChange:
        """Put other rules in force.

        Args:
            values: The content of a file.
            actor: Who does it.
            dry_run: Only say what would change.

        Returns:
            What changes.

        Raises:
            AlertRuleError: They cannot be.
            SelectorError: A selector cannot be read.
            DatabaseError: The database does not answer.
        """
        rules = checked(values, self._retained)
        if dry_run:
            with self._database.reading() as transaction:
                self._check_groups(transaction, rules)
                before = in_force(transaction)
                return _compared(before, rules, _watched(transaction), dry_run=True)
        now_s = self._clock.now_s()
        with self._database.transaction() as transaction:
            policies.lock(transaction)
            self._check_groups(transaction, rules)
            before = in_force(transaction)
            change = _compared(before, rules, _watched(transaction), dry_run=False)
            ended = {*change.removed, *_compares_else(change.changed)}
            self._end(transaction, [each for each in before if each.name in ended], now_s)
            known = {each.name: each.changed_at_s for each in before}
            same = {*change.unchanged}
            rows = [
                AlertRuleRow(
                    name=rule.name,
                    position=position,
                    spec=to_builtins(rule),
                    changed_at_s=(known[rule.name] if rule.name in same else None) or now_s,
                )
                for position, rule in enumerate(rules)
            ]
            alerts.replace_rules(transaction, rows)
            for what, names in (
                ("rule-added", change.added),
                ("rule-changed", change.changed),
                ("rule-removed", change.removed),
            ):
                for name in names:
                    detail = ", ".join(change.changed.get(name, ()))
                    alerts.log(
                        transaction, at_s=now_s, rule=name, what=what, actor=actor, detail=detail
                    )
        return change

    def _check_groups(self, transaction: Transaction, rules: Sequence[AnyRule]) -> None:
        """Refuse selectors with groups that there are not."""
        for rule in rules:
            with _selector_of(rule):
                read_selector(transaction, rule.selector, now_s=self._clock.now_s())

    def _end(self, transaction: Transaction, ended: Sequence[RuleInForce], now_s: float) -> None:
        """End the alerts of rules that compare this no longer; those that fired were resolved."""
        if not ended:
            return
        rules = {each.name: each.rule for each in ended}
        rows = alerts.states(transaction, *rules, lock=True)
        notices = []
        for row in list(rows.values()):
            rule = rules[row.rule]
            if row.phase == Phase.FIRING:
                alerts.log(
                    transaction, at_s=now_s, rule=row.rule, what=Phase.RESOLVED, actor=CONTROLLER,
                    group_text=row.group_text, value=row.value, detail=ENDED_BY_RULE,
                )  # fmt: skip
                if rule is not None and row.told_at_s is not None:
                    notices.append(
                        notice(
                            rule,
                            row,
                            Phase.RESOLVED,
                            fired_at_s=row.since_s,
                            at_s=now_s,
                            reason=ENDED_BY_RULE,
                        )
                    )
                alerts.resolve(row, now_s=now_s)
            if row.phase != Phase.RESOLVED:
                alerts.drop(transaction, rows, row)
            else:
                row.told_at_s = None
                end_ack(row)
        self._webhooks.queue(transaction, notices)


def _watched(transaction: Transaction) -> frozenset[str]:
    """Return the names of rules of which alerts are pending or firing."""
    return frozenset(
        name
        for name, phases in alerts.counts(transaction).items()
        if any(phases.get(phase) for phase in (Phase.PENDING, Phase.FIRING))
    )


def _compares_else(changed: Mapping[str, Sequence[str]]) -> list[str]:
    """Return the names of the rules that compare something else than before."""
    return [name for name, keys in changed.items() if not set(keys) <= set(TOLD_ONLY)]


def _compared(
    before: Sequence[RuleInForce],
    rules: Sequence[AnyRule],
    watched: frozenset[str],
    *,
    dry_run: bool,
) -> AlertRulesChange:
    old = {each.name: each for each in before}
    new = {rule.name: rule for rule in rules}
    new.setdefault(SILENT_DEVICES.name, SILENT_DEVICES)
    changed: dict[str, list[str]] = {}
    for name, rule in new.items():
        known = old.get(name)
        if known is None:
            continue
        keys = ["kind"] if known.rule is None else list(changed_keys(known.rule, rule))
        if keys:
            changed[name] = keys
    removed = [name for name in old if name not in new]
    ended = watched.intersection([*removed, *_compares_else(changed)])
    return AlertRulesChange(
        added=[name for name in new if name not in old],
        changed=changed,
        removed=removed,
        unchanged=[name for name in new if name in old and name not in changed],
        ended=sorted(ended),
        dry_run=dry_run,
    )


def _of_row(row: AlertRuleRow) -> RuleInForce:
    try:
        rule = checked_rule(row.spec)
    except AlertRuleError as exc:
        return RuleInForce(
            name=row.name, rule=None, spec=row.spec, fault=str(exc), changed_at_s=row.changed_at_s
        )
    return RuleInForce(name=row.name, rule=rule, spec=row.spec, changed_at_s=row.changed_at_s)


def _built_in() -> RuleInForce:
    rule = SILENT_DEVICES
    return RuleInForce(name=rule.name, rule=rule, spec=to_builtins(rule))

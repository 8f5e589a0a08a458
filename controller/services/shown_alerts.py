"""Alerts as the operator sees, acknowledges and tests them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any

from controller.alert_schemas import (
    AckRequest,
    Alert,
    AlertEvent,
    AlertHistory,
    AlertRule,
    AlertSpan,
    AlertTestResult,
)
from controller.domain.alert_groups import group_text, is_named
from controller.domain.device_text import clean
from controller.errors import ConflictError, InvalidRequestError
from controller.services.alert_notices import end_ack, is_acked
from controller.services.alert_rules import RuleInForce, checked, in_force
from controller.services.alerts import Alerts, Evaluated
from controller.services.device_queries import condition_doubts, selector_doubt
from controller.services.devices import Devices
from controller.store import alerts
from controller.store.alert_tables import AlertHistoryRow, AlertRow
from controller.store.database import Database
from controller.store.tables import MAX_DETAIL_CHARS, NAME_CHARS
from telemetry.errors import NotKeptError, QueryError, TelemetryError
from telemetry.server.alerts.answers import Answers, of_devices
from telemetry.server.alerts.judging import Answer, Asked, Group
from telemetry.server.alerts.replay import looks_at, replay, what_is_missed
from telemetry.server.alerts.rules import Absence, AnyRule, BurnRate, Change, Limits
from telemetry.server.alerts.silence import Silences
from telemetry.server.alerts.states import Phase
from telemetry.server.past import Past
from telemetry.server.query_text import parse_conditions
from telemetry.server.store import TelemetryStore
from wire.clock import Clock

TEST_LIMIT_S = 20.0
"""How long the test of one request may take: less than a client waits."""

OPERATOR = "operator"
BY_MINUTES = (
    "silences are judged by whole minutes here: one that is less than 2 minutes longer than the "
    "window may be missing"
)
RULE_GONE = "no rule of this name is in force any more"
RULE_CHANGED = "its rule has been changed since"
OPEN = (Phase.PENDING, Phase.FIRING)
SHOWN = (*OPEN, Phase.RESOLVED)


class ShownAlerts:
    """What commands ask about alerts.

    Args:
        database: The control state.
        telemetry: What devices sent.
        devices: The devices of the fleet.
        judging: Judges the rules.
        clock: Wall time and durations.
    """

    def __init__(
        self,
        database: Database,
        telemetry: TelemetryStore,
        devices: Devices,
        judging: Alerts,
        clock: Clock,
    ) -> None:
        self._database = database
        self._telemetry = telemetry
        self._devices = devices
        self._judging = judging
        self._clock = clock

    def all(self, *, with_resolved: bool, limit: int) -> list[Alert]:
        """Return alerts that are pending or firing, and rules that cannot be evaluated.

        Args:
            with_resolved: Also those that were resolved in the last days.
            limit: The greatest number of alerts.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rules = in_force(transaction)
            rows = alerts.newest(transaction, SHOWN if with_resolved else OPEN, limit=limit)
        evaluated = self._judging.evaluated()
        errors = [
            _faulty(item, evaluated[item.name])
            for item in rules
            if item.name in evaluated and evaluated[item.name].fault
        ]
        return [*errors, *self._shown(rules, rows)]

    def rules(self) -> list[AlertRule]:
        """Return the rules in force, in the order of the file.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rules = in_force(transaction)
            counts = alerts.counts(transaction)
        evaluated = self._judging.evaluated()
        return [self._rule(item, evaluated, counts.get(item.name, {})) for item in rules]

    def history(self, name: str, *, limit: int) -> AlertHistory:
        """Return a rule, its alerts and what happened; also of one that is gone.

        Args:
            name: The name of the rule.
            limit: The greatest number of entries.

        Raises:
            UnknownAlertError: No rule has it, and none had while history is kept.
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rules = in_force(transaction)
            names = [item.name for item in rules]
            if name not in names:
                names += [
                    each for each in alerts.names_in_history(transaction) if each not in names
                ]
            alerts.check_rule(name, names)
            rows = list(alerts.states(transaction, name).values())
            entries = alerts.history(transaction, name, limit=limit)
            counts = alerts.counts(transaction)
        item = next((each for each in rules if each.name == name), None)
        shown = [row for row in rows if row.phase in SHOWN]
        return AlertHistory(
            rule=self._rule(item, self._judging.evaluated(), counts.get(name, {}))
            if item is not None
            else _gone(name),
            alerts=self._shown(rules, shown),
            history=[_event(entry) for entry in entries],
        )

    def acknowledge(self, name: str, request: AckRequest) -> list[Alert]:
        """Note that somebody has seen alerts of a rule.

        Args:
            name: The name of the rule.
            request: Which group, and how long.

        Returns:
            The alerts that were acknowledged.

        Raises:
            UnknownAlertError: No rule has the name.
            InvalidRequestError: The comment is too long.
            ConflictError: There is no such alert to acknowledge.
            DatabaseError: The database does not answer.
        """
        if len(request.comment) > MAX_DETAIL_CHARS:
            raise InvalidRequestError(f"the comment is longer than {MAX_DETAIL_CHARS} characters")
        now_s, is_end = self._clock.now_s(), request.for_s == 0
        with self._database.transaction() as transaction:
            rules = in_force(transaction)
            alerts.check_rule(name, [item.name for item in rules])
            found = [
                row
                for row in alerts.states(transaction, name, lock=True).values()
                if (is_acked(row, now_s) if is_end else row.phase in OPEN)
                and (request.group is None or is_named(request.group, row.group_text, row.labels))
            ]
            if not found:
                which = "" if request.group is None else f" of {request.group[:80]!r}"
                what = "acknowledged" if is_end else "pending or firing"
                raise ConflictError(
                    f"{name} has no {what} alert{which}",
                    remedy=f"`fleet alert show {name}` shows its alerts",
                )
            for row in found:
                _acknowledge(row, request, now_s)
                alerts.log(
                    transaction, at_s=now_s, rule=name, group_text=row.group_text,
                    what="ack-ended" if is_end else "acknowledged", value=row.value,
                    actor=request.by or OPERATOR, detail=request.comment,
                )  # fmt: skip
            return self._shown(rules, found)

    def test(
        self, values: Mapping[str, Any], since_s: float, step_s: int | None = None
    ) -> list[AlertTestResult]:
        """Return when rules would have fired.

        Args:
            values: The content of a file.
            since_s: From when on, wall time.
            step_s: How far the looks are apart; None for as near as there may be.

        Returns:
            One result for each rule; one that could not be tested has a fault.

        Raises:
            AlertRuleError: They cannot be.
            QueryError: The times make no sense.
            TelemetryStoreError: The database failed.
        """
        end_s = self._clock.monotonic_s() + TEST_LIMIT_S
        rules = checked(values, self._telemetry.retained)
        looks = looks_at(since_s, self._clock.now_s(), step_s)
        with Past.of(self._telemetry) as past:
            return [self._tested(rule, looks, since_s, past, end_s) for rule in rules]

    def _tested(
        self, rule: AnyRule, looks: range, since_s: float, past: Past, end_s: float
    ) -> AlertTestResult:
        try:
            answer = (
                self._silences(rule, since_s, self._clock.now_s())
                if isinstance(rule, Absence) and rule.metric is None
                else self._judging.asking(rule, Answers(self._telemetry, past))
            )
            found = replay(rule, answer, looks, lambda: self._clock.monotonic_s() < end_s)
        except QueryError as exc:
            return AlertTestResult(
                alert=rule.name, step_s=looks.step, spans=[], was_cut=False, fault=str(exc)
            )
        missed = [what_is_missed(rule, looks.step)]
        if isinstance(rule, Absence) and rule.metric is None:
            missed.append(BY_MINUTES)
        return AlertTestResult(
            alert=rule.name,
            step_s=looks.step,
            spans=[
                AlertSpan(
                    group=group_text(dict(zip(rule.names, span.group, strict=True))),
                    fired_at_s=span.fired_at_s,
                    resolved_at_s=span.resolved_at_s,
                    furthest=span.furthest,
                )
                for span in found.spans
            ],
            was_cut=found.was_cut,
            note="; ".join(filter(None, (found.note, *missed))),
        )

    def doubts(self, values: Mapping[str, Any]) -> list[str]:
        """Return what is wanting for rules to find anything, though they may be set.

        Args:
            values: The content of a file.

        Returns:
            A line for each rule that could not be evaluated now, that watches no device, or that
            asks for fewer values than it takes.

        Raises:
            AlertRuleError: They cannot be.
        """
        now_s = self._clock.now_s()
        found = []
        for rule in checked(values, self._telemetry.retained):
            if not rule.enabled:
                continue
            if doubt := selector_doubt(self._devices, rule.selector):
                found.append(f"{rule.name}: {doubt}")
            if isinstance(rule, Change) and 0 < rule.min_count < rule.least_count:
                found.append(
                    f"{rule.name}: min_count = {rule.min_count:g} is less than a change of "
                    f"{rule.stat} needs; {rule.least_count:g} is taken"
                )
            if isinstance(rule, Absence) and rule.metric is None:
                continue
            try:
                with suppress(NotKeptError):  # there are not enough hours yet
                    self._judging.asking(rule)(now_s, known=())
                found += [f"{rule.name}: {doubt}" for doubt in self._about_values(rule)]
            except TelemetryError as exc:  # the rules are in force, whatever the store says
                found.append(f"{rule.name}: {exc}")  # with its remedy
        return found

    def _about_values(self, rule: AnyRule) -> list[str]:
        """Return which values its conditions name that nothing has that was reported."""
        metric = rule.total if isinstance(rule, BurnRate) else rule.metric
        where = [pair for word in rule.where for pair in parse_conditions(word)]
        return condition_doubts(self._telemetry, metric or "", where)

    def _silences(self, rule: Absence, since_s: float, now_s: float) -> Asked:
        """Return what a rule about devices would have compared: by what they measured."""
        times = self._devices.heard_at_s(rule.selector).items()
        enrolled = {device: first_s for device, (first_s, _) in times}
        silences = Silences(self._telemetry, enrolled, since_s, now_s, rule.window_s)

        def answer(at_s: float, /, *, known: Collection[Group]) -> Answer:  # noqa: ARG001 - as `Asked`
            return of_devices(silences.heard(at_s), at_s)

        return answer

    def _shown(self, rules: list[RuleInForce], rows: list[AlertRow]) -> list[Alert]:
        known, now_s = {item.name: item for item in rules}, self._clock.now_s()
        return [_alert(known.get(row.rule), row, now_s) for row in rows]

    def _rule(
        self, item: RuleInForce, evaluated: Mapping[str, Evaluated], counts: Mapping[str, int]
    ) -> AlertRule:
        done, rule = evaluated.get(item.name), item.rule
        is_on = self._judging.enabled and (rule is None or rule.enabled)
        fault = done.fault if done is not None and is_on else item.fault
        state = "error" if fault else "evaluated" if done is not None else "not evaluated"
        return AlertRule(
            name=item.name,
            kind=str(item.spec.get("kind", "")),
            severity=str(item.spec.get("severity", "")),
            summary=str(item.spec.get("summary", "")),
            enabled=rule is not None and rule.enabled,
            built_in=item.changed_at_s is None,
            spec=item.spec,
            changed_at_s=item.changed_at_s,
            state=state if is_on else "off",  # type: ignore[arg-type]  # one of them
            error=fault,
            note=done.note if done is not None and is_on else "",
            evaluated_at_s=done.at_s if done is not None else None,
            took_ms=done.took_s * 1000 if done is not None else None,
            pending=counts.get(Phase.PENDING, 0),
            firing=counts.get(Phase.FIRING, 0),
        )


def _alert(item: RuleInForce | None, row: AlertRow, now_s: float) -> Alert:
    spec = item.spec if item is not None else {}
    limits = item.rule.limits if item is not None and item.rule is not None else Limits()
    acked = is_acked(row, now_s)
    note = ""
    if item is None:
        note = RULE_GONE
    elif row.phase == Phase.RESOLVED and row.since_s <= (item.changed_at_s or 0.0):
        note, limits = RULE_CHANGED, Limits()
    return Alert(
        note=note,
        alert=row.rule,
        group=row.group_text,
        labels={name: str(value) for name, value in row.labels.items()},
        state=Phase(row.phase).value,
        severity=str(spec.get("severity", "")),
        summary=str(spec.get("summary", "")),
        value=row.value,
        kind=str(spec.get("kind", "")),
        metric=str(spec.get("metric") or spec.get("errors") or ""),
        stat=str(spec.get("stat", "")),
        above=limits.above,
        below=limits.below,
        since_s=row.since_s,
        acked=acked,
        acked_until_s=row.acked_until_s if acked else None,
        acked_by=row.acked_by if acked else "",
        comment=row.comment if acked else "",
    )


def _gone(name: str) -> AlertRule:
    """Return what is known of a rule that is in force no more."""
    return AlertRule(
        name=name, kind="", severity="", summary="", enabled=False, built_in=False, spec={},
        changed_at_s=None, state="gone", note=RULE_GONE,
    )  # fmt: skip


def _faulty(item: RuleInForce, evaluated: Evaluated) -> Alert:
    return Alert(
        alert=item.name, group="", labels={}, state="error", since_s=evaluated.at_s,
        severity=str(item.spec.get("severity", "")), summary=str(item.spec.get("summary", "")),
        error=evaluated.fault,
    )  # fmt: skip


def _event(row: AlertHistoryRow) -> AlertEvent:
    return AlertEvent(
        at_s=row.at_s,
        group=row.group_text,
        what=row.what,
        value=row.value,
        actor=row.actor,
        detail=row.detail,
    )


def _acknowledge(row: AlertRow, request: AckRequest, now_s: float) -> None:
    end_ack(row)
    if request.for_s == 0:
        return
    row.acked_at_s = now_s
    row.acked_until_s = None if request.for_s is None else now_s + request.for_s
    row.acked_by = clean(request.by or OPERATOR, NAME_CHARS)
    row.comment = clean(request.comment, MAX_DETAIL_CHARS)

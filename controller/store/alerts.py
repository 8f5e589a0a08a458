"""Rules of alerts, the states of their groups, and their history."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, select, update
from sqlalchemy.orm import Session

from controller.domain.device_text import clean
from controller.domain.names import which_there_are
from controller.errors import UnknownAlertError
from controller.store.alert_tables import AlertHistoryRow, AlertRow, AlertRuleRow
from controller.store.tables import MAX_DETAIL_CHARS, NAME_CHARS
from telemetry.server.alerts.states import Phase, State

MAX_HISTORY = 100_000
"""Entries that are kept; the oldest go first."""

Rows = dict[tuple[str, str], AlertRow]
"""The states of groups, by rule and group."""


def rules(session: Session) -> list[AlertRuleRow]:
    """Return the rules that the operator set, in the order of the file."""
    return list(session.scalars(select(AlertRuleRow).order_by(AlertRuleRow.position)))


def replace_rules(session: Session, rows: Sequence[AlertRuleRow]) -> None:
    """Put other rules in the place of all that there are.

    Args:
        session: The transaction.
        rows: The rules, which belong to no session yet.
    """
    names = [row.name for row in rows]
    session.execute(delete(AlertRuleRow).where(AlertRuleRow.name.not_in(names)))
    for row in rows:
        session.merge(row)


def check_rule(name: str, known: Sequence[str]) -> None:
    """Refuse a name that no rule has.

    Args:
        name: As the operator wrote it.
        known: The names of the rules, or of all of which there is any history.

    Raises:
        UnknownAlertError: No rule has it.
    """
    if name not in known:
        raise UnknownAlertError(
            f"there is no alert {name[:64]!r}",
            remedy=which_there_are(
                name, known, what="alerts", none="set some: `fleet alert apply FILE`"
            ),
        )


def states(session: Session, *names: str, lock: bool = False) -> Rows:
    """Return the groups of some rules that have a state; of all rules if none is named.

    Args:
        session: The transaction.
        names: The rules.
        lock: Keep other transactions from changing them.
    """
    statement = select(AlertRow).order_by(AlertRow.rule, AlertRow.group_text)
    if names:
        statement = statement.where(AlertRow.rule.in_(names))
    if lock:
        statement = statement.with_for_update()
    return {(row.rule, row.group_text): row for row in session.scalars(statement)}


def counts(session: Session) -> dict[str, Counter[str]]:
    """Return how many groups of each rule are in each phase."""
    rows = session.execute(
        select(AlertRow.rule, AlertRow.phase, func.count()).group_by(AlertRow.rule, AlertRow.phase)
    )
    found: dict[str, Counter[str]] = {}
    for rule, phase, number in rows:
        found.setdefault(rule, Counter())[phase] = number
    return found


def newest(session: Session, phases: Collection[Phase], *, limit: int) -> list[AlertRow]:
    """Return groups in some phases, the newest change first."""
    statement = (
        select(AlertRow)
        .where(AlertRow.phase.in_(phases))
        .order_by(AlertRow.since_s.desc(), AlertRow.rule, AlertRow.group_text)
        .limit(limit)
    )
    return list(session.scalars(statement))


def state_of(row: AlertRow) -> State:
    """Return the state of a group."""
    return State(
        phase=Phase(row.phase),
        since_s=row.since_s,
        value=row.value,
        held_s=row.held_s,
        missing_s=row.missing_s,
    )


def put(
    session: Session, rows: Rows, rule: str, group: str, labels: Mapping[str, str], state: State
) -> AlertRow:
    """Save the state of a group.

    Args:
        session: The transaction.
        rows: The states of the rule, from this transaction; a new one is added.
        rule: Its name.
        group: The group as text.
        labels: What it stands for.
        state: Its state.

    Returns:
        The row.
    """
    row = rows.get((rule, group))
    if row is None:
        row = AlertRow(
            rule=rule, group_text=group, labels=dict(labels), told_at_s=None, acked_at_s=None,
            acked_until_s=None, acked_by="", comment="", incident="",
        )  # fmt: skip
        session.add(row)
        rows[rule, group] = row
    row.phase, row.since_s = state.phase, state.since_s
    row.value, row.held_s, row.missing_s = state.value, state.held_s, state.missing_s
    return row


def resolve(row: AlertRow, *, now_s: float) -> None:
    """Note that a group is resolved, whatever its value is.

    Args:
        row: Its state.
        now_s: Wall time.
    """
    row.phase, row.since_s = Phase.RESOLVED, now_s
    row.held_s = row.missing_s = 0.0


def drop(session: Session, rows: Rows, row: AlertRow) -> None:
    """Forget the state of a group.

    Args:
        session: The transaction.
        rows: The states of its rule.
        row: Its state.
    """
    rows.pop((row.rule, row.group_text), None)
    if row in session.new:
        session.expunge(row)
    else:
        session.delete(row)


def log(session: Session, *, at_s: float, rule: str, what: str, actor: str, **more: Any) -> None:  # noqa: ANN401 - fields of a row
    """Add an entry to the history.

    Args:
        session: The transaction.
        at_s: Wall time.
        rule: The name of the rule.
        what: What happened, such as `firing`.
        actor: Who did it.
        more: `group_text`, `value`, `detail`.
    """
    session.add(
        AlertHistoryRow(
            at_s=at_s,
            rule=rule,
            group_text=more.get("group_text", ""),
            what=what,
            value=more.get("value"),
            actor=clean(actor, NAME_CHARS),
            detail=clean(more.get("detail", ""), MAX_DETAIL_CHARS),
        )
    )


def history(session: Session, rule: str, *, limit: int) -> list[AlertHistoryRow]:
    """Return the newest entries about a rule, the newest first."""
    return list(
        session.scalars(
            select(AlertHistoryRow)
            .where(AlertHistoryRow.rule == rule)
            .order_by(AlertHistoryRow.id.desc())
            .limit(limit)
        )
    )


def names_in_history(session: Session) -> list[str]:
    """Return the names of the rules of which there is any history."""
    return list(session.scalars(select(AlertHistoryRow.rule).distinct()))


def settle(session: Session, *, now_s: float) -> None:
    """Let no time be later than now: the clock was set back, and what holds for a time begins anew.

    Args:
        session: The transaction, which has read no states yet.
        now_s: Wall time.
    """
    lasts = AlertRow.acked_until_s - AlertRow.acked_at_s
    for column, values in (
        (AlertRow.acked_at_s, {"acked_at_s": now_s, "acked_until_s": now_s + lasts}),
        (AlertRow.told_at_s, {"told_at_s": now_s}),
        (AlertRow.since_s, {"since_s": now_s}),
    ):
        session.execute(update(AlertRow).where(column > now_s).values(values))


def prune(session: Session, *, history_before_s: float, resolved_before_s: float) -> None:
    """Delete old entries of the history, and groups that were resolved long ago.

    Args:
        session: The transaction.
        history_before_s: Wall time.
        resolved_before_s: Wall time.
    """
    newest_id = session.scalar(select(func.max(AlertHistoryRow.id))) or 0
    session.execute(
        delete(AlertHistoryRow).where(
            (AlertHistoryRow.at_s < history_before_s)
            | (AlertHistoryRow.id <= newest_id - MAX_HISTORY)
        )
    )
    session.execute(
        delete(AlertRow).where(
            AlertRow.phase.in_((Phase.RESOLVED, Phase.INACTIVE)),
            AlertRow.since_s < resolved_before_s,
        )
    )

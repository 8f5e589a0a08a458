"""Builds what is told of an alert."""

from __future__ import annotations

from controller.domain.alert_posts import Notice
from controller.store.alert_tables import AlertRow
from telemetry.server.alerts.rules import AnyRule
from telemetry.server.alerts.states import Phase

ENDED_BY_RULE = "its rule was changed, switched off or removed"
FORGOTTEN = "there was no data of it for a day, or it is gone"


def notice(
    rule: AnyRule,
    row: AlertRow,
    state: Phase,
    *,
    fired_at_s: float,
    at_s: float,
    reason: str = "",
    repeated: bool = False,
) -> Notice:
    """Return what is told of an alert.

    Args:
        rule: Its rule.
        row: The group, with its last value.
        state: `firing` or `resolved`.
        fired_at_s: When it fired.
        at_s: When what is told happened.
        reason: Why it was resolved, if not by its value.
        repeated: Whether it was told before.
    """
    limits = rule.limits
    return Notice(
        id=row.incident,
        rule=rule.name,
        kind=str(rule.__struct_config__.tag),
        severity=rule.severity,
        summary=rule.summary,
        group=row.group_text,
        labels=row.labels,
        state=state,
        value=row.value,
        above=limits.above,
        below=limits.below,
        fired_at_s=fired_at_s,
        at_s=at_s,
        repeated=repeated,
        reason=reason,
    )


def is_acked(row: AlertRow, now_s: float) -> bool:
    """Tell whether somebody has acknowledged an alert, and the time for that is not over."""
    if row.acked_at_s is None:
        return False
    return row.acked_until_s is None or now_s < row.acked_until_s


def end_ack(row: AlertRow) -> None:
    """End an acknowledgement."""
    row.acked_at_s = row.acked_until_s = None
    row.acked_by = row.comment = ""

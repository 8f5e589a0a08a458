"""The orders that the lists of the API can have; the first of each is the usual one. Pure."""

from __future__ import annotations

from typing import Final

from controller.access_schemas import ApiToken, AuditEntry
from controller.alert_schemas import Alert
from controller.device_schemas import Device
from controller.domain.paging import Sorts, by_number, by_text
from controller.enrolment_schemas import TokenSummary
from controller.group_schemas import Group
from controller.query_schemas import SavedQuery
from controller.release_schemas import Release
from controller.rollout_schemas import Rollout

BEFORE_ALL: Final = 1e12
"""Later than any time: a rule that cannot be evaluated comes before alerts."""

GRAVITY: Final = {"critical": 3.0, "warning": 2.0, "info": 1.0}
ALERTS: Final[Sorts[Alert]] = Sorts(
    lambda a: f"{a.alert}\n{a.group}\n{a.state == 'error'}",
    {
        "since": by_number(lambda a: BEFORE_ALL if a.state == "error" else a.since_s),
        "alert": by_text(lambda a: a.alert),
        "severity": by_number(lambda a: GRAVITY.get(a.severity)),
        "state": by_text(lambda a: a.state),
    },
)
API_TOKENS: Final[Sorts[ApiToken]] = Sorts(
    lambda t: t.name,
    {
        "name": by_text(lambda t: t.name),
        "created": by_number(lambda t: t.created_at_s),
        "expires": by_number(lambda t: t.expires_at_s),
        "used": by_number(lambda t: t.used_at_s),
    },
)
AUDIT: Final[Sorts[AuditEntry]] = Sorts(lambda e: e.hash, {"row": by_number(lambda e: e.sequence)})
DEVICES: Final[Sorts[Device]] = Sorts(
    lambda d: d.id,
    {
        "id": by_text(lambda d: d.id),
        "enrolled": by_number(lambda d: d.enrolled_at_s),
        "profile": by_text(lambda d: d.profile),
        "seen": by_number(lambda d: d.last_seen_at_s),
        "state": by_text(lambda d: d.state),
    },
)
GROUPS: Final[Sorts[Group]] = Sorts(
    lambda g: g.name,
    {"name": by_text(lambda g: g.name), "changed": by_number(lambda g: g.changed_at_s)},
)
RELEASES: Final[Sorts[Release]] = Sorts(
    lambda r: r.digest,
    {
        "published": by_number(lambda r: r.published_at_s),
        "name": by_text(lambda r: r.name),
        "size": by_number(lambda r: r.size_bytes),
    },
)
ROLLOUTS: Final[Sorts[Rollout]] = Sorts(
    lambda r: r.id,
    {
        "created": by_number(lambda r: r.created_at_s),
        "finished": by_number(lambda r: r.finished_at_s),
        "id": by_text(lambda r: r.id),
        "model": by_text(lambda r: r.model),
        "state": by_text(lambda r: r.state),
    },
)
SAVED_QUERIES: Final[Sorts[SavedQuery]] = Sorts(
    lambda q: q.name,
    {"name": by_text(lambda q: q.name), "saved": by_number(lambda q: q.saved_at_s)},
)
TOKENS: Final[Sorts[TokenSummary]] = Sorts(
    lambda t: t.id,
    {
        "created": by_number(lambda t: t.created_at_s),
        "expires": by_number(lambda t: t.expires_at_s),
        "id": by_text(lambda t: t.id),
    },
)

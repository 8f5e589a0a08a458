"""The requests and answers of the HTTP API about alerts; `controller.schemas` has the others."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from controller.schemas import Bounds, Request

MAX_ACTOR_CHARS = 63
MAX_ACK_S = 366 * 86_400
MAX_PAST_S = 366 * 86_400

AlertState = Literal["inactive", "pending", "firing", "resolved", "error"]


@dataclass(kw_only=True)
class Alert:
    """A group of a rule, or a rule that cannot be evaluated."""

    alert: str
    """The name of the rule."""

    group: str
    """Such as `device=cam-1`; empty for a rule without groups."""

    labels: dict[str, str]
    state: AlertState
    severity: str
    summary: str
    value: float | None = None
    metric: str = ""
    """What the value is a statistic of; empty for how long a device is silent."""

    stat: str = ""
    kind: str = ""
    """That of the rule."""

    above: float | None = None
    """The bound that the value is compared with, or `below`."""

    below: float | None = None
    since_s: float
    """When the state began."""

    acked: bool = False
    acked_until_s: float | None = None
    """None: until it is resolved."""

    acked_by: str = ""
    comment: str = ""
    error: str = ""
    """Why the rule cannot be evaluated."""

    note: str = ""
    """That the rule by which it was resolved is gone, or has been changed since."""


@dataclass(kw_only=True)
class AlertRule:
    """A rule and how it is evaluated."""

    name: str
    kind: str
    severity: str
    summary: str
    enabled: bool
    built_in: bool
    """Whether every fleet has it, and no file has set it."""

    spec: dict[str, Any]
    """All its keys, as in a file."""

    changed_at_s: float | None
    state: Literal["evaluated", "error", "off", "not evaluated", "gone"]
    """Whether it can be evaluated, not whether it fires. `not evaluated`: not since the controller
    started. `gone`: it was removed, and has only a history."""

    error: str = ""
    note: str = ""
    """Why groups that have values are not judged, or that it is gone."""

    evaluated_at_s: float | None = None
    took_ms: float | None = None
    pending: int = 0
    firing: int = 0


@dataclass(kw_only=True)
class AlertRulesRequest(Request):
    """Rules that take the place of all that were set."""

    rules: dict[str, Any]
    """What is in a file: the tables `alert`."""

    by: str = ""
    """Who does it, for the history."""

    dry_run: bool = False


@dataclass(kw_only=True)
class AlertRulesChange:
    """What another file of rules changes."""

    added: list[str]
    changed: dict[str, list[str]]
    """Rule to the keys that differ."""

    removed: list[str]
    unchanged: list[str]
    ended: list[str]
    """Rules whose alerts, pending or firing, end: they were removed, switched off, or compare
    something else."""

    dry_run: bool
    doubts: list[str] = field(default_factory=list)
    """What is wanting for rules to find anything: a metric or a label that there is not yet."""


@dataclass(kw_only=True)
class AlertEvent:
    """Something that happened to an alert or a rule."""

    at_s: float
    group: str
    what: str
    value: float | None
    actor: str
    detail: str


@dataclass(kw_only=True)
class AlertHistory:
    """A rule, its present alerts and what happened."""

    rule: AlertRule
    alerts: list[Alert]
    history: list[AlertEvent]
    """The newest first."""


@dataclass(kw_only=True)
class AckRequest(Request):
    """That somebody has seen an alert."""

    group: str | None = None
    """As the list shows it, or the value of its only label; None for all of the rule."""

    for_s: Annotated[float, Bounds(ge=0, le=MAX_ACK_S)] | None = None
    """How long; None until it is resolved, 0 to end an acknowledgement."""

    comment: str = ""
    by: str = ""


@dataclass(kw_only=True)
class AlertTest(Request):
    """Rules that are judged over the past."""

    rules: dict[str, Any]
    """What is in a file: the tables `alert`."""

    since: str = "1d"
    """A duration ago, or a time, as in a query of telemetry."""

    step: str = ""
    """How far the looks are apart, such as 5m; empty for as near as there may be."""


@dataclass(kw_only=True)
class AlertSpan:
    """A time in which an alert would have been firing."""

    group: str
    fired_at_s: float
    resolved_at_s: float | None
    """None: it would still be."""

    furthest: float | None
    """The value that is furthest beyond the bound."""


@dataclass(kw_only=True)
class AlertTestResult:
    """What a rule would have done."""

    alert: str
    step_s: int
    """How far the looks at it were apart."""

    spans: list[AlertSpan]
    was_cut: bool
    """Whether there were more."""

    note: str = ""
    """Why groups that had values were not judged, when that was last so; and what may have been
    between the looks."""

    fault: str = ""
    """Why the rule could not be tested; the others were."""


@dataclass(kw_only=True)
class WebhookResult:
    """What came of a test of one webhook."""

    webhook: str
    accepted: bool
    fault: str = ""
    waiting: int = 0
    """Posts that wait for it."""

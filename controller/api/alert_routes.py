"""The routes of alerts; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.alert_schemas import (
    AckRequest,
    Alert,
    AlertHistory,
    AlertRule,
    AlertRulesChange,
    AlertRulesRequest,
    AlertState,
    AlertTest,
    AlertTestResult,
    WebhookResult,
)
from controller.api.pages import AlertPage
from controller.api.services import AskedBy, Services, author, router
from controller.services.webhook_posts import Answered
from telemetry.server.query_text import parse_step_s, parse_time_s

MAX_LISTED = 10_000
DEFAULT_HISTORY = 100
MAX_HISTORY = 10_000

alert_routes: APIRouter = router("/v1/alerts", "alerts")


@alert_routes.get("")
def list_alerts(
    services: Services,
    page: AlertPage,
    resolved: Annotated[
        bool, Query(description="Also those that were resolved in the last days.")
    ] = False,
    alert: Annotated[str, Query(description="Only of this rule.")] = "",
    state: AlertState | None = None,
    severity: Annotated[str, Query(description="Only of this severity.")] = "",
) -> list[Alert]:
    """List alerts that are pending or firing, and rules that cannot be evaluated."""
    found = services.alerts.all(with_resolved=resolved, limit=MAX_LISTED)
    return page.of(
        each
        for each in found
        if alert in {"", each.alert}
        and state in {None, each.state}
        and severity in {"", each.severity}
    )


@alert_routes.get("/rules")
def list_alert_rules(services: Services) -> list[AlertRule]:
    """List the rules in force, in the order of their file."""
    return services.alerts.rules()


@alert_routes.put("/rules")
def apply_alert_rules(
    services: Services, caller: AskedBy, request: AlertRulesRequest
) -> AlertRulesChange:
    """Put rules in the place of all that were set. A second time changes nothing."""
    change = services.alert_rules.apply(
        request.rules, actor=author(caller, request.by) or "operator", dry_run=request.dry_run
    )
    change.doubts = services.alerts.doubts(request.rules)
    return change


@alert_routes.get("/rules/{name}")
def get_alert_rule(
    services: Services,
    name: str,
    limit: Annotated[
        int, Query(ge=1, le=MAX_HISTORY, description="The greatest number of entries.")
    ] = DEFAULT_HISTORY,
) -> AlertHistory:
    """Return a rule, its alerts and what happened, the newest first."""
    return services.alerts.history(name, limit=limit)


@alert_routes.post("/rules/{name}/ack")
def acknowledge(services: Services, caller: AskedBy, name: str, request: AckRequest) -> list[Alert]:
    """Note that somebody has seen alerts: they are not told again while that lasts."""
    request.by = author(caller, request.by)
    return services.alerts.acknowledge(name, request)


@alert_routes.post("/test")
def test_alert_rules(services: Services, request: AlertTest) -> list[AlertTestResult]:
    """Judge rules over the past, and say when each would have fired. Changes nothing."""
    since_s = parse_time_s(request.since, services.clock.now_s())
    step_s = parse_step_s(request.step) if request.step else None
    return services.alerts.test(request.rules, since_s, step_s)


@alert_routes.post("/test-webhooks")
def test_webhooks(services: Services) -> list[WebhookResult]:
    """Post a test to each webhook now, once, and say what came of it."""
    waiting = services.webhooks.waiting()
    return [
        WebhookResult(
            webhook=name,
            accepted=outcome.answered is Answered.ACCEPTED,
            fault=outcome.fault,
            waiting=waiting.get(name, 0),
        )
        for name, outcome in services.webhooks.test().items()
    ]

"""Requests about alerts and their rules."""

from __future__ import annotations

import builtins

from controller.alert_schemas import (
    AckRequest,
    Alert,
    AlertHistory,
    AlertRule,
    AlertRulesChange,
    AlertRulesRequest,
    AlertTest,
    AlertTestResult,
    WebhookResult,
)
from controller.client.connection import segment
from controller.client.listing import Listing, Resource, order, yes


class Alerts(Resource):
    """Alerts and their rules."""

    def list(
        self,
        *,
        resolved: bool = False,
        alert: str = "",
        state: str = "",
        severity: str = "",
        sort: str = "",
        reverse: bool = False,
    ) -> Listing[Alert]:
        """List alerts that are pending or firing, and rules that cannot be evaluated.

        Args:
            resolved: Also those that were resolved in the last days.
            alert: Only those of this rule.
            state: Only those in this state.
            severity: Only those of this severity.
            sort: `since`, `alert`, `severity` or `state`; empty for `since`, the newest first.
            reverse: The other way round.
        """
        params = {
            "resolved": yes(resolved), "alert": alert, "state": state, "severity": severity,
            **order(sort, reverse=reverse),
        }  # fmt: skip
        return Listing(self._api, "/v1/alerts", Alert, params)

    def history(self, alert: str, *, limit: int = 100) -> AlertHistory:
        """Return a rule, its alerts and what happened, the newest first."""
        path = f"/v1/alerts/rules/{segment(alert)}"
        return self._api.get(path, AlertHistory, {"limit": str(limit)})

    def acknowledge(self, alert: str, request: AckRequest) -> builtins.list[Alert]:
        """Note that somebody has seen alerts."""
        path = f"/v1/alerts/rules/{segment(alert)}/ack"
        return self._api.send("POST", path, list[Alert], request)

    def rules(self) -> builtins.list[AlertRule]:
        """Return the rules in force."""
        return self._api.get("/v1/alerts/rules", list[AlertRule])

    def apply(self, request: AlertRulesRequest) -> AlertRulesChange:
        """Put rules in the place of all that were set."""
        return self._api.send("PUT", "/v1/alerts/rules", AlertRulesChange, request)

    def test(self, request: AlertTest) -> builtins.list[AlertTestResult]:
        """Judge rules over the past, and return when each would have fired; changes nothing."""
        return self._api.send("POST", "/v1/alerts/test", list[AlertTestResult], request)

    def test_webhooks(self) -> builtins.list[WebhookResult]:
        """Post a test to each webhook, and return what came of it."""
        return self._api.send("POST", "/v1/alerts/test-webhooks", list[WebhookResult])

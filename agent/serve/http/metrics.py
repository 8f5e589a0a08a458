"""`GET /metrics`: what Prometheus scrapes.

It stands before the other paths and gives on what is not for it, so an endpoint without metrics is
as it was.

Rules:
- Who may ask for inference may ask for the metrics: the token, if there is one, is needed.
- Everything is read when it is asked for; only requests are counted as they come.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from agent.serve.frames import Reply
from agent.serve.http.exposition import (
    OPEN_METRICS,
    PLAIN,
    Family,
    asks_for_open_metrics,
    exposed,
)
from agent.serve.http.request import RefusedRequestError
from agent.serve.http.request_metrics import RequestMetrics
from agent.serve.http.server import Api

PATH: Final = "/metrics"
READING: Final = ("GET", "HEAD")


class Metrics:
    """All metrics of the agent.

    Args:
        readings: Returns those that are read when they are asked for.
    """

    def __init__(self, readings: Callable[[], Iterable[Family]]) -> None:
        self.requests = RequestMetrics()
        self._readings = readings

    def reply(self, accept: str) -> Reply:
        """Return all metrics.

        Args:
            accept: The client's `Accept` header; empty if it sent none.
        """
        open_metrics = asks_for_open_metrics(accept)
        text = exposed((*self.requests.families(), *self._readings()), open_metrics=open_metrics)
        kind = OPEN_METRICS if open_metrics else PLAIN
        return Reply(status=200, headers={"Content-Type": kind}, body=memoryview(text))


class MetricsApi:
    """Answers `/metrics`, and leaves all else to another API.

    Args:
        api: Answers all else.
        metrics: The metrics.
    """

    def __init__(self, api: Api, metrics: Metrics) -> None:
        self._api = api
        self._metrics = metrics

    def refusal(self, target: str, headers: Mapping[str, str]) -> RefusedRequestError | None:
        """Refuse a client that may not ask for this; None if it may."""
        return self._api.refusal(target, headers)

    def answer(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: memoryview,
        connection: socket.socket | None = None,
    ) -> Reply:
        """Answer a request that `refusal` has not refused."""
        if target.partition("?")[0] != PATH:
            return self._api.answer(method, target, headers, body, connection)
        if method not in READING:
            return Reply.refusal(405, "this path requires GET", {"Allow": ", ".join(READING)})
        return self._metrics.reply(headers.get("accept", ""))

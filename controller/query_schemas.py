"""The requests and answers of the HTTP API about saved queries of the telemetry, and reports."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from controller.schemas import Request

Format = Literal["", "table", "json", "csv", "parquet", "plot", "png"]


@dataclass(kw_only=True)
class TelemetryQuestion(Request):
    """A query of the telemetry, in the words of `GET /v1/telemetry/query`."""

    metric: str
    stat: str = ""
    by: str = ""
    where: list[str] = field(default_factory=list)
    selector: str = ""
    since: str = "1h"
    until: str = ""
    step: str = ""
    format: Format = ""
    """How the command line shows the answer; empty for a table."""


@dataclass(kw_only=True)
class SavedQueryRequest(Request):
    """A query to keep under a name."""

    query: TelemetryQuestion
    saved_by: str = ""
    """Who keeps it, as the client says: whoever has the API token may write any name."""


@dataclass(kw_only=True)
class SavedQuery:
    """A query that the fleet's operators share."""

    name: str
    query: TelemetryQuestion
    saved_by: str
    saved_at_s: float


@dataclass(kw_only=True)
class KeptQuery(SavedQuery):
    """A query that was saved just now."""

    doubts: list[str] = field(default_factory=list)
    """What is wanting for it to be answered today: a label or attribute that there is not yet."""


@dataclass(kw_only=True)
class ReportAsked:
    """A device was asked to report its telemetry now."""

    device: str
    id: str
    """What its report answers."""


@dataclass(kw_only=True)
class ReportState:
    """What became of a request to report."""

    stored: bool
    """Whether the report is stored, and so part of each answer to a query."""

"""The routes of saved queries of the telemetry; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.pages import SavedQueryPage
from controller.api.services import AskedBy, Services, author, router
from controller.query_schemas import KeptQuery, SavedQuery, SavedQueryRequest

saved_query_routes: APIRouter = router("/v1/telemetry/saved", "telemetry")


@saved_query_routes.get("")
def list_saved_queries(services: Services, page: SavedQueryPage) -> list[SavedQuery]:
    """List the saved queries, by name."""
    return page.of(services.saved_queries.all())


@saved_query_routes.get("/{query}")
def get_saved_query(services: Services, query: str) -> SavedQuery:
    """Return a saved query, and who saved it."""
    return services.saved_queries.get(query)


@saved_query_routes.put("/{query}")
def save_query(
    services: Services,
    caller: AskedBy,
    query: str,
    request: SavedQueryRequest,
    replace: Annotated[
        bool, Query(description="Whether it may take the place of another one of that name.")
    ] = False,
) -> KeptQuery:
    """Save a query under a name; all who have an API token can run it."""
    request.saved_by = author(caller, request.saved_by)
    return services.saved_queries.put(query, request, replace=replace)


@saved_query_routes.delete("/{query}")
def remove_saved_query(services: Services, query: str) -> SavedQuery:
    """Remove a saved query, and return it as it was."""
    return services.saved_queries.remove(query)

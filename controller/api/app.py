"""The HTTP API: the only access for the command line and for other programs.

Rules:
- Every path needs an API token, except the health, and a role that the path allows. The description
  of the API at `/openapi.json` needs one too; there are no pages of documentation, because theirs
  load scripts from the internet.
- Every error has the same form, `schemas.Fault`.
"""

from __future__ import annotations

from fastapi import FastAPI

from controller.api import faults as api_faults
from controller.api.callers import Callers
from controller.api.guard import Guard
from controller.api.routes import fleet_routes
from controller.api.services import FleetServices
from controller.services.blobs import MAX_BLOB_BYTES

_DESCRIPTION = """
Devices, releases, rollouts, policies and telemetry of a fleet.

Send an API token as `Authorization: Bearer TOKEN`; only the health needs none. Times are seconds
since the epoch (`_s`), sizes are bytes, digests are SHA-256 in hexadecimal. Every answer of 400 or
more is a `Fault`.
"""


def create_app(
    services: FleetServices,
    *,
    version: str,
    max_blob_bytes: int = MAX_BLOB_BYTES,
) -> FastAPI:
    """Make the application.

    Args:
        services: What the API gives access to.
        version: The program's version.
        max_blob_bytes: The largest body of an uploaded blob.

    Returns:
        The application behind its guard.
    """
    app = FastAPI(
        title="edgefleet controller",
        description=_DESCRIPTION,
        version=version,
        routes=fleet_routes(),
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    api_faults.install(app)
    app.add_middleware(
        Guard,
        callers=Callers(services.access, services.clock),
        audit=services.audit,
        clock=services.clock,
        max_blob_bytes=max_blob_bytes,
    )
    return app

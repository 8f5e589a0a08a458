"""The routes of shadows; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.services import Services, router
from controller.shadow_schemas import Shadow, ShadowReport, ShadowRequest

shadow_routes: APIRouter = router("/v1/shadows", "shadows")


@shadow_routes.get("")
def list_shadows(services: Services) -> list[Shadow]:
    """List the releases that run beside those that serve."""
    return services.shadows.all()


@shadow_routes.get("/{model}")
def show_shadow(services: Services, model: str) -> ShadowReport:
    """Show what devices have told of the shadow of a model since it began, by profile."""
    return services.shadows.report(model)


@shadow_routes.put("/{model}")
def start_shadow(services: Services, model: str, request: ShadowRequest) -> Shadow:
    """Let devices run a release beside the one that serves a model; each call begins anew."""
    return services.shadows.start(model, request)


@shadow_routes.delete("/{model}")
def stop_shadow(services: Services, model: str) -> Shadow:
    """End the shadow of a model. What devices have told of it stays in the telemetry."""
    return services.shadows.stop(model)

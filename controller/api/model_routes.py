"""The routes of the fleet's models; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from controller.api.services import Services, router
from controller.model_schemas import Model, RemovedModel

model_routes: APIRouter = router("/v1/models", "models")


@model_routes.get("")
def list_models(services: Services) -> list[Model]:
    """List models, and how many devices run and should run each release."""
    return services.models.all()


@model_routes.delete("/{model}")
def remove_model(
    services: Services,
    model: str,
    selector: Annotated[str, Query(description="A label expression; empty means all.")] = "",
) -> RemovedModel:
    """Let devices stop serving a model and free its space; its releases stay published.

    It is refused while a rollout of the model runs on one of them.
    """
    return services.models.remove(model, selector)

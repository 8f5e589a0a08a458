"""Requests about shadows: releases that run beside those that serve."""

from __future__ import annotations

import builtins

from controller.client.connection import segment
from controller.client.listing import Resource
from controller.shadow_schemas import Shadow, ShadowReport, ShadowRequest


class Shadows(Resource):
    """The shadow of each model."""

    def list(self) -> builtins.list[Shadow]:
        """Return the shadows by model, and how many devices know of each."""
        return self._api.get("/v1/shadows", list[Shadow])

    def get(self, model: str) -> ShadowReport:
        """Return how the shadow of a model compares with the release that serves."""
        return self._api.get(f"/v1/shadows/{segment(model)}", ShadowReport)

    def start(self, model: str, request: ShadowRequest) -> Shadow:
        """Let devices run a release as the shadow of a model, in place of the one before."""
        return self._api.send("PUT", f"/v1/shadows/{segment(model)}", Shadow, request)

    def stop(self, model: str) -> Shadow:
        """Let no device run a shadow of a model any more."""
        return self._api.send("DELETE", f"/v1/shadows/{segment(model)}", Shadow)

"""Requests about releases and models."""

from __future__ import annotations

from urllib.parse import urlencode

from controller.client.connection import segment
from controller.client.listing import Listing, Resource, order
from controller.model_schemas import Model, RemovedModel
from controller.release_schemas import Release, ReleaseRequest
from controller.rollout_plan_schemas import PreflightReport


class Releases(Resource):
    """Published packages."""

    def list(
        self, *, model: str = "", state: str = "", sort: str = "", reverse: bool = False
    ) -> Listing[Release]:
        """List releases, without the devices that run them.

        Args:
            model: Only those of this model.
            state: `published` or `revoked`; empty for both.
            sort: `published`, `name` or `size`; empty for `published`, the newest first.
            reverse: The other way round.
        """
        params = {"model": model, "state": state, **order(sort, reverse=reverse)}
        return Listing(self._api, "/v1/releases", Release, params)

    def get(self, release: str) -> Release:
        """Return a release by `name:version` or digest, with the devices that run it."""
        return self._api.get(f"/v1/releases/{segment(release)}", Release)

    def preflight(
        self, release: str, *, selector: str = "", limit: int = 20, windowed: bool = False
    ) -> PreflightReport:
        """Return which devices could take a release; nothing is changed.

        Args:
            release: As `name:version` or digest.
            selector: Only devices that match.
            limit: How many devices are named for each reason.
            windowed: Whether the rollout is to have windows.
        """
        path = f"/v1/releases/{segment(release)}/preflight"
        params = {"selector": selector, "limit": str(limit)}
        if windowed:
            params["windowed"] = "true"
        return self._api.get(path, PreflightReport, params)

    def publish(self, envelope_sha256: str) -> Release:
        """Publish a package whose files are there (`Fleet.put_blob`).

        Args:
            envelope_sha256: Digest of its signed index.
        """
        body = ReleaseRequest(envelope_sha256=envelope_sha256)
        return self._api.send("POST", "/v1/releases", Release, body)

    def revoke(self, release: str) -> Release:
        """Stop handing out a release, and halt its rollouts."""
        return self._api.send("POST", f"/v1/releases/{segment(release)}/revoke", Release)


class Models(Resource):
    """Models, over all their releases."""

    def list(self) -> list[Model]:
        """Return the models, and how many devices run each release."""
        return self._api.get("/v1/models", list[Model])

    def remove(self, model: str, *, selector: str = "") -> RemovedModel:
        """Let devices stop serving a model and free its space."""
        query = f"?{urlencode({'selector': selector})}" if selector else ""
        return self._api.send("DELETE", f"/v1/models/{segment(model)}{query}", RemovedModel)

"""Requests about trusted metadata: who may sign what."""

from __future__ import annotations

from collections.abc import Mapping

from controller.client.listing import Resource
from controller.metadata_schemas import MetadataState, MetadataSubmission


class Metadata(Resource):
    """The fleet's trusted metadata."""

    def state(self) -> MetadataState:
        """Return who may sign what, and until when each file counts."""
        return self._api.get("/v1/metadata", MetadataState)

    def files(self) -> dict[str, str]:
        """Return all files by name, as they were signed."""
        return self._api.get("/v1/metadata/files", MetadataSubmission).files

    def submit(self, files: Mapping[str, str]) -> MetadataState:
        """Give the controller files by name, all or none: their signatures decide."""
        body = MetadataSubmission(files=dict(files))
        return self._api.send("POST", "/v1/metadata", MetadataState, body)

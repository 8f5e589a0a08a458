"""The routes of trusted metadata; the rules are those of `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter

from controller.api.services import Services, router
from controller.errors import NoMetadataError
from controller.metadata_schemas import MetadataState, MetadataSubmission
from controller.services.metadata import FleetMetadata
from wire.metadata import MetadataFile

metadata_routes: APIRouter = router("/v1/metadata", "metadata")


@metadata_routes.get("")
def get_metadata(services: Services) -> MetadataState:
    """Return who may sign what, and until when each file counts."""
    return _metadata(services).state()


@metadata_routes.get("/files")
def get_files(services: Services) -> MetadataSubmission:
    """Return all files of trusted metadata, as they were signed."""
    files = _metadata(services).everything()
    return MetadataSubmission(files={file.name: file.content for file in files})


@metadata_routes.post("")
def submit(services: Services, request: MetadataSubmission) -> MetadataState:
    """Take signed files, all or none: their signatures decide, not who sends them."""
    files = [MetadataFile(name=name, content=text) for name, text in request.files.items()]
    return _metadata(services).submit(files)


def _metadata(services: Services) -> FleetMetadata:
    """Return the metadata.

    Raises:
        NoMetadataError: This fleet has none.
    """
    if services.metadata is None:
        raise NoMetadataError(
            "this fleet has no trusted metadata, but a trust file with keys that never change",
            remedy="make it with `fleet key init DIR`, DIR being the controller's directory",
        )
    return services.metadata

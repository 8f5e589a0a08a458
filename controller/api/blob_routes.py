"""The routes of blobs, of which packages consist; see `controller.api.routes`."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from controller.api.made_answers import MadeAnswer
from controller.api.services import Services, router
from controller.errors import UnknownBlobError
from controller.release_schemas import BlobRef
from controller.services.blobs import UPLOAD, BlobStore

blob_routes: APIRouter = router("/v1/blobs", "blobs")


@blob_routes.put(
    "/{sha256}",
    status_code=201,
    openapi_extra={"requestBody": {"content": {"application/octet-stream": {}}}},
)
async def put_blob(services: Services, sha256: str, request: Request) -> BlobRef:
    """Store a blob; its content must hash to its name. A second time changes nothing."""
    writer = await run_in_threadpool(services.blobs.writer, sha256)
    with writer:
        async for part in request.stream():
            await run_in_threadpool(writer.write, part)
        await run_in_threadpool(writer.finish)
    return BlobRef(sha256=sha256, size_bytes=writer.size_bytes)


@blob_routes.head("/{sha256}", response_class=Response)
def has_blob(services: Services, sha256: str) -> Response:
    """Tell whether a blob is there, and its size."""
    return Response(headers={"Content-Length": str(_size(services.blobs, sha256))})


@blob_routes.get("/{sha256}", response_class=Response)
def get_blob(services: Services, sha256: str) -> MadeAnswer:
    """Return the content of a blob."""
    headers = {"Content-Length": str(_size(services.blobs, sha256))}
    return MadeAnswer(
        services.blobs.parts(sha256), media_type="application/octet-stream", headers=headers
    )


def _size(blobs: BlobStore, sha256: str) -> int:
    size_bytes = blobs.size_bytes(sha256)
    if size_bytes is None:
        raise UnknownBlobError(f"there is no blob {sha256}", remedy=UPLOAD)
    return size_bytes

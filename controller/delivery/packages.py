"""What published packages say of themselves, read from their blobs; the last ones are kept."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from typing import Final

import msgspec

from controller.domain.deltas import Package
from controller.services.blobs import BlobStore
from controller.store.deltas import Named
from wire.codec import MAX_JSON_BYTES
from wire.errors import FleetError
from wire.package.index import PAYLOAD_TYPE, index_from_bytes
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes
from wire.trust.envelope import MAX_ENVELOPE_BYTES, read_unverified

MAX_KEPT: Final = 32

_log = logging.getLogger(__name__)


class Packages:
    """Reads the indices and manifests of releases.

    Their signatures were checked when they were published; blobs are what their digests say.

    Args:
        blobs: The content.
    """

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, Package] = OrderedDict()

    def get(self, release: Named) -> Package | None:
        """Return the package of a release; None if its blobs are not there or cannot be read."""
        with self._lock:
            package = self._kept.get(release.digest)
            if package is not None:
                self._kept.move_to_end(release.digest)
                return package
        try:
            package = self._read(release)
        except FleetError as exc:
            _log.warning("what the package %s consists of is not known: %s", release.digest, exc)
            return None
        with self._lock:
            self._kept[release.digest] = package
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        return package

    def _read(self, release: Named) -> Package:
        """Read a package's index and manifest.

        Raises:
            UnknownBlobError: A blob is not there, as in a backup without them.
            StorageError: The disk does not answer.
            WireFormatError: A blob is damaged.
        """
        envelope = self._blobs.read(release.envelope_sha256, length=MAX_ENVELOPE_BYTES + 1)
        payload = read_unverified(envelope, payload_type=PAYLOAD_TYPE).payload
        index = index_from_bytes(payload)
        manifest = self._blobs.read(index.file(MANIFEST_FILE).sha256, length=MAX_JSON_BYTES + 1)
        files = tuple(msgspec.structs.replace(entry, chunks=()) for entry in index.files)
        return Package(
            index=msgspec.structs.replace(index, files=files),
            manifest=manifest_from_bytes(manifest),
        )

"""What of a package a simulated device asks for, piece by piece, over messages. Pure.

Rules:
- It fetches what a device fetches: the signed index, the manifest, and the files of the first
  variant that fits. It checks the signature, the digest of the package and that of each chunk.
- Of the files it fetches only the first bytes, up to a limit, and keeps nothing: a thousand devices
  have one disk. Of what is left out only the size counts.
"""

from __future__ import annotations

from collections import deque
from typing import Final, NamedTuple

from agent.errors import FetchError, NoVariantError
from wire.codec import sha256_hex
from wire.delivery import MAX_CHUNK_INDICES, Chunk
from wire.installs import ReleaseRef
from wire.package.index import CHUNK_BYTES, PAYLOAD_TYPE, PackageIndex, index_from_bytes
from wire.package.manifest import MANIFEST_FILE, manifest_from_bytes
from wire.profile import DeviceProfile
from wire.trust.root import Trust

WINDOW_BYTES: Final = 128 * 1024
"""What one request asks for at most, and at least one chunk: the next one acknowledges it."""


class Wanted(NamedTuple):
    """A request for chunks."""

    sha256: str
    chunk_bytes: int
    indices: tuple[int, ...]


class _Blob(NamedTuple):
    sha256: str
    chunk_bytes: int
    chunks: int
    digests: tuple[str, ...] = ()
    """Of the chunks; empty where the whole is checked."""

    kept: bool = False


class Retrieval:
    """The retrieval of one package.

    Args:
        release: Which.
        profile: What the device is.
        trust: The keys that may sign a package.
        limit_bytes: How much of its files is fetched.
    """

    def __init__(
        self, release: ReleaseRef, profile: DeviceProfile, trust: Trust, limit_bytes: int
    ) -> None:
        self._release = release
        self._profile = profile
        self._trust = trust
        self._left_bytes = limit_bytes
        self.total_bytes = 0
        self.came_bytes = 0
        self.omitted_bytes = 0
        """What is not fetched, and takes only its time."""

        self.variant = ""
        self._index: PackageIndex | None = None
        chunks = -(-release.envelope_size_bytes // CHUNK_BYTES)
        self._blobs = deque([_Blob(release.envelope_sha256, CHUNK_BYTES, chunks, kept=True)])
        self._parts: dict[int, bytes] = {}
        self._next = 0
        self._waiting: set[int] = set()

    @property
    def is_done(self) -> bool:
        """Whether all has come."""
        return not self._blobs

    def wanted(self) -> Wanted | None:
        """Return what to ask for; None if all has come."""
        if not self._blobs:
            return None
        blob = self._blobs[0]
        if not self._waiting:
            window = min(max(1, WINDOW_BYTES // blob.chunk_bytes), MAX_CHUNK_INDICES)
            end = min(self._next + window, blob.chunks)
            self._waiting = set(range(self._next, end))
            self._next = end
        return Wanted(blob.sha256, blob.chunk_bytes, tuple(sorted(self._waiting)))

    def take(self, chunk: Chunk) -> bool:
        """Take a piece that came.

        Args:
            chunk: As received; one that nobody waits for is ignored.

        Returns:
            Whether all that was asked for has come.

        Raises:
            FetchError: The controller does not have it, or it is damaged.
            NoVariantError: No variant fits the device.
            WireFormatError: The package is malformed.
            SignatureError: Nobody who may has signed it.
        """
        if not self._blobs or chunk.sha256 != self._blobs[0].sha256:
            return False
        blob = self._blobs[0]
        if chunk.missing:
            raise FetchError(f"the controller does not have {blob.sha256[:12]}")
        if chunk.index not in self._waiting:
            return False
        if blob.digests and sha256_hex(chunk.data) != blob.digests[chunk.index]:
            raise FetchError(f"chunk {chunk.index} of {blob.sha256[:12]} is damaged")
        self._waiting.discard(chunk.index)
        self.came_bytes += len(chunk.data)
        if blob.kept:
            self._parts[chunk.index] = chunk.data
        if self._waiting:
            return False
        if self._next == blob.chunks:
            self._end_of(self._blobs.popleft())
        return True

    def _end_of(self, blob: _Blob) -> None:
        """Find out what comes after a blob.

        Raises:
            FetchError: It is damaged.
        """
        content = b"".join(self._parts[number] for number in sorted(self._parts))
        self._parts.clear()
        self._next = 0
        if not blob.kept:
            return
        if sha256_hex(content) != blob.sha256:
            raise FetchError(f"{blob.sha256[:12]} is damaged")
        if self._index is None:
            self._read_index(content)
        else:
            self._read_manifest(self._index, content)

    def _read_index(self, envelope: bytes) -> None:
        """Take what the package consists of.

        Raises:
            FetchError: It is another package.
        """
        payload = self._trust.unseal(envelope, role="release", payload_type=PAYLOAD_TYPE)
        if sha256_hex(payload) != self._release.digest:
            raise FetchError("the package is another one than was ordered")
        self._index = index = index_from_bytes(payload)
        manifest = index.file(MANIFEST_FILE)
        self._blobs.append(
            _Blob(
                manifest.sha256, index.chunk_bytes, len(manifest.chunks), manifest.chunks, kept=True
            )
        )

    def _read_manifest(self, index: PackageIndex, content: bytes) -> None:
        """Take which files are needed.

        Raises:
            NoVariantError: No variant fits the device.
        """
        fitting = manifest_from_bytes(content).fitting(self._profile)
        if not fitting:
            raise NoVariantError("no variant of the package fits this device")
        self.variant = fitting[0].name
        entries = index.files_for(fitting[:1])
        self.total_bytes = self._release.envelope_size_bytes
        self.total_bytes += sum(entry.size_bytes for entry in entries)
        for entry in entries:
            if entry.path == MANIFEST_FILE or not entry.chunks:
                continue
            chunks = min(len(entry.chunks), -(-max(self._left_bytes, 0) // index.chunk_bytes))
            fetched_bytes = min(entry.size_bytes, chunks * index.chunk_bytes)
            self._left_bytes -= fetched_bytes
            self.omitted_bytes += entry.size_bytes - fetched_bytes
            if chunks:
                self._blobs.append(
                    _Blob(entry.sha256, index.chunk_bytes, chunks, entry.chunks[:chunks])
                )

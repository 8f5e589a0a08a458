"""Brings the files of a package to their places, each once and checked.

Rules:
- The signed index comes first; nothing is read that it does not vouch for.
- A file that is there and intact is not fetched again, and what came of one is kept in its part.
"""

from __future__ import annotations

from pathlib import Path

from agent.errors import RefusedError, storage_faults
from agent.install.fetch.fetcher import Fetcher
from agent.install.fetch.part import Blob
from agent.install.fetch.sources import Errand
from agent.package_files import clear_way, is_intact, keep_directory
from agent.packages import Package, open_package, read_index
from wire.installs import ReleaseRef
from wire.package.index import ENVELOPE_FILE, FileEntry
from wire.package.manifest import MANIFEST_FILE
from wire.trust.root import Trust


class Bringer:
    """Brings files of packages.

    Args:
        fetcher: Fetches blobs.
        trust: The keys that may sign packages.
        parts: Where files are that are partly here.
    """

    def __init__(self, fetcher: Fetcher, trust: Trust, parts: Path) -> None:
        self._fetcher = fetcher
        self._trust = trust
        self._parts = parts

    def describe(self, release: ReleaseRef, directory: Path, errand: Errand) -> Package:
        """Bring the signed index and the manifest of a package.

        Args:
            release: What was ordered.
            directory: Where the package comes.
            errand: What is wanted.

        Returns:
            The package; its other files may be missing.

        Raises:
            RefusedError: The package is another release than was ordered.
            FleetError: They do not come, or are not what was signed.
        """
        with storage_faults("cannot make the directory of the package"):
            keep_directory(directory)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        envelope = FileEntry(
            path=ENVELOPE_FILE,
            size_bytes=release.envelope_size_bytes,
            sha256=release.envelope_sha256,
            chunks=(),
        )
        blob = Blob(sha256=envelope.sha256, size_bytes=envelope.size_bytes)
        self.bring(directory, envelope, blob, errand)
        index = read_index(directory, release.digest, self._trust)
        if (index.name, index.version) != (release.name, release.version):
            raise RefusedError(
                f"{release.name}:{release.version} was ordered, but the package is "
                f"{index.name}:{index.version}"
            )
        entry = index.file(MANIFEST_FILE)
        self.bring(directory, entry, Blob.of_file(entry, index.chunk_bytes), errand)
        return open_package(directory, release.digest, self._trust)

    def bring(self, directory: Path, entry: FileEntry, blob: Blob, errand: Errand) -> None:
        """Bring a file, unless it is there and intact.

        Args:
            directory: Of the package.
            entry: The file.
            blob: Its content.
            errand: What is wanted.

        Raises:
            FleetError: It does not come, or the storage fails.
        """
        if not is_intact(directory, entry):
            clear_way(directory, entry.path)
            clear_way(self._parts, entry.sha256)
            part = self._parts / entry.sha256
            self._fetcher.fetch(blob, part, (directory, entry.path), errand)

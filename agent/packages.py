"""A package on this device: its signed index, its manifest, and whether its files are intact.

Rules:
- No part of a package is trusted before its index's signature and digest have been checked.
- `agent.package_files` opens the files.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from agent.errors import StorageError, storage_faults
from agent.package_files import is_intact, open_inside
from agent.ports import RecorderPort
from wire.errors import FleetError, IntegrityError
from wire.package.index import (
    ENVELOPE_FILE,
    PAYLOAD_TYPE,
    FileEntry,
    PackageIndex,
    index_from_bytes,
)
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_from_bytes
from wire.package.variant import Variant
from wire.trust.envelope import MAX_ENVELOPE_BYTES
from wire.trust.root import Trust


class Package(msgspec.Struct, frozen=True, kw_only=True):
    """A package with a checked index and manifest; its other files may be missing."""

    digest: str
    directory: Path
    index: PackageIndex
    manifest: Manifest

    @property
    def release(self) -> str:
        """Name and version, for people."""
        return f"{self.index.name}:{self.index.version}"

    def files(self, variants: Iterable[Variant]) -> tuple[FileEntry, ...]:
        """Return the entries of the files that some variants need."""
        return self.index.files_for(tuple(variants))

    def verify(self, variants: Iterable[Variant]) -> None:
        """Hash every file that some variants need.

        Args:
            variants: Variants of this package.

        Raises:
            IntegrityError: A file is missing, is a link, or differs from what was signed.
            StorageError: A file cannot be read.
        """
        for entry in self.files(variants):
            if not is_intact(self.directory, entry):
                raise IntegrityError(
                    f"{entry.path} of {self.release} differs from the signed file",
                    remedy="the agent fetches what is damaged from the controller",
                )


class Damage:
    """What was found damaged among the packages of this device. For any thread.

    Args:
        recorder: Takes an event for each fault that is new.
    """

    def __init__(self, recorder: RecorderPort) -> None:
        self._recorder = recorder
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, frozenset[str]]] = {}

    def note(self, digest: str, fault: str, variants: Iterable[str], *, found: str) -> None:
        """Remember what is wrong with a package.

        Args:
            digest: Digest of the package.
            fault: What is wrong, for people.
            variants: Names of the variants that need what is damaged.
            found: By what it was found, for the event: `start` of a worker, or `scrub`.
        """
        hurt = frozenset(variants)
        with self._lock:
            faults = self._found.setdefault(digest, {})
            is_new = fault not in faults
            faults[fault] = faults.get(fault, frozenset()) | hurt
        if is_new:
            data = {"package": digest, "variants": sorted(hurt), "found": found}
            self._recorder.event("damage", fault, data)

    def of(self, digest: str) -> str | None:
        """Return what is wrong with a package; None if nothing is known."""
        with self._lock:
            return next(iter(self._found.get(digest, ())), None)

    def variants(self, digest: str) -> frozenset[str]:
        """Return the names of the variants of a package of which a file is damaged."""
        with self._lock:
            return frozenset().union(*self._found.get(digest, {}).values())

    def forget(self, digest: str) -> None:
        """Forget the damage of a package, because it has been repaired."""
        with self._lock:
            self._found.pop(digest, None)


class SignedFiles:
    """What was signed of the files of variants, for what loads them.

    Args:
        opened: Returns a package of this device by its digest; raises a FleetError if its index or
            its manifest is not what was signed.
        damage: Remembers what is found damaged.
    """

    def __init__(self, opened: Callable[[str], Package], damage: Damage) -> None:
        self._opened = opened
        self._damage = damage

    def of(self, digest: str, variant: Variant) -> tuple[FileEntry, ...]:
        """Return what was signed of all files that a variant needs.

        Args:
            digest: Digest of the package.
            variant: One of its variants.

        Returns:
            Their entries in the index, which has just been checked.

        Raises:
            FleetError: The index or the manifest is not what was signed, or cannot be read.
        """
        return self._package(digest, variant).files((variant,))

    def check(self, digest: str, variant: Variant) -> None:
        """Hash these files here.

        Args:
            digest: Digest of the package.
            variant: One of its variants.

        Raises:
            IntegrityError: One is not what was signed.
            StorageError: One cannot be read.
            FleetError: The index is not what was signed.
        """
        package = self._package(digest, variant)
        try:
            package.verify((variant,))
        except (IntegrityError, StorageError) as exc:
            self.note(digest, variant, exc)
            raise

    def note(self, digest: str, variant: Variant, fault: FleetError) -> None:
        """Remember that a file of a variant was found damaged when it was to be loaded.

        Args:
            digest: Digest of the package.
            variant: One of its variants.
            fault: What is wrong.
        """
        self._damage.note(digest, fault.message, (variant.name,), found="start")

    def _package(self, digest: str, variant: Variant) -> Package:
        try:
            return self._opened(digest)
        except (IntegrityError, StorageError) as exc:
            self.note(digest, variant, exc)
            raise


def read_index(directory: Path, digest: str, trust: Trust) -> PackageIndex:
    """Read and check the signed index of a package.

    Args:
        directory: Directory of the package.
        digest: The expected digest of the package.
        trust: The keys that may sign packages.

    Returns:
        The index.

    Raises:
        IntegrityError: The index is of another package, or is missing.
        SignatureError: It has no valid signature.
        WireFormatError: It is malformed.
        StorageError: It cannot be read.
    """
    data = _read_bounded(directory, ENVELOPE_FILE, MAX_ENVELOPE_BYTES)
    index = index_from_bytes(trust.unseal(data, role="release", payload_type=PAYLOAD_TYPE))
    if index.digest != digest:
        raise IntegrityError(f"the envelope belongs to package {index.digest}, not to {digest}")
    return index


def open_package(directory: Path, digest: str, trust: Trust) -> Package:
    """Read and check the index and the manifest of a package.

    Args:
        directory: Directory of the package.
        digest: The expected digest of the package.
        trust: The keys that may sign packages.

    Returns:
        The package; its other files are not read.

    Raises:
        IntegrityError: The index or the manifest is missing or differs from what was signed.
        SignatureError: The index has no valid signature.
        WireFormatError: One of them is malformed.
        StorageError: One of them cannot be read.
    """
    index = read_index(directory, digest, trust)
    entry = index.file(MANIFEST_FILE)
    data = _read_bounded(directory, MANIFEST_FILE, entry.size_bytes)
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise IntegrityError(
            f"{MANIFEST_FILE} of {index.name}:{index.version} differs from the signed file"
        )
    manifest = manifest_from_bytes(data)
    if (manifest.name, manifest.version) != (index.name, index.version):
        raise IntegrityError(
            f"the index of {index.name}:{index.version} contains the manifest of "
            f"{manifest.name}:{manifest.version}"
        )
    return Package(digest=digest, directory=directory, index=index, manifest=manifest)


def _read_bounded(directory: Path, path: str, limit_bytes: int) -> bytes:
    with storage_faults(f"cannot read {path}"), open_inside(directory, path) as file:
        data = file.read(limit_bytes + 1)
    if len(data) > limit_bytes:
        raise IntegrityError(f"{path} is longer than {limit_bytes} bytes")
    return data

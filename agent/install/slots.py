"""The packages on this device, and which of them serves.

```
packages/<digest>/     whole packages, verified when they were put here
incoming/<digest>/     packages that are being fetched
parts/<sha256>         files that are partly here
current                a link to packages/<digest>: the package that serves after a restart
preloaded              a link to incoming/<digest>: the package that was handed over last
```

Rules:
- `current` changes by one rename and is durable before the agent acts on it.
- A directory moves to `packages` by one rename, after all its files are verified and durable.
- The package that `current` names, and the one before it, are never removed.
- A package that was handed over and not installed yet goes when another is handed over, or when its
  storage is needed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from agent.errors import storage_faults
from agent.packages import keep_directory
from wire.files import sync_directory
from wire.package.index import is_digest

CURRENT = "current"
PRELOADED = "preloaded"


class Slots:
    """The packages of this device.

    Args:
        root: Directory of the agent's state.

    Raises:
        StorageError: The directories cannot be made.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._packages = root / "packages"
        self._incoming = root / "incoming"
        self.parts = root / "parts"
        for directory in (self._packages, self._incoming, self.parts):
            with storage_faults(f"cannot make the directory {directory.name}"):
                keep_directory(directory)
                directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def directory(self, digest: str) -> Path:
        """Return the directory of a package; while it is not whole, the one below `incoming`."""
        whole = self._packages / _checked(digest)
        return whole if whole.is_dir() else self._incoming / digest

    def has(self, digest: str) -> bool:
        """Tell whether a package is whole."""
        return (self._packages / _checked(digest)).is_dir()

    def whole(self) -> tuple[str, ...]:
        """Return the digests of all whole packages."""
        return tuple(sorted(p.name for p in self._packages.iterdir() if is_digest(p.name)))

    def arriving(self) -> tuple[str, ...]:
        """Return the digests of all packages that are being fetched, or were handed over."""
        return tuple(sorted(p.name for p in self._incoming.iterdir() if is_digest(p.name)))

    def current(self) -> str | None:
        """Return the digest of the package that serves after a restart."""
        try:
            digest = (self._root / CURRENT).readlink().name
        except OSError:
            return None
        return digest if is_digest(digest) and self.has(digest) else None

    def stage(self, digest: str) -> None:
        """Move a fetched and verified package to the whole ones. Calling it twice is safe.

        Args:
            digest: Digest of the package.

        Raises:
            StorageError: The storage failed.
        """
        with storage_faults("cannot stage the package"):
            for directory, _, _ in os.walk(self.directory(digest)):
                sync_directory(Path(directory))
            if not self.has(digest):
                keep_directory(self._packages / digest)
                (self._incoming / digest).rename(self._packages / digest)
            sync_directory(self._packages)
            sync_directory(self._incoming)

    def switch(self, digest: str) -> None:
        """Make a package the one that serves after a restart.

        Args:
            digest: Digest of a whole package.

        Raises:
            StorageError: The storage failed; after a restart the old or the new package serves.
        """
        self._link(CURRENT, f"packages/{_checked(digest)}", "cannot switch to the package")

    def preloaded(self) -> str | None:
        """Return the digest of the package that was handed over last, unless it is whole already.

        Some of its files may be missing.
        """
        try:
            digest = (self._root / PRELOADED).readlink().name
        except OSError:
            return None
        return digest if is_digest(digest) and (self._incoming / digest).is_dir() else None

    def preload(self, digest: str, *, keep: str | None) -> None:
        """Keep a package that is being handed over, in place of the one before it.

        Args:
            digest: Digest of the package.
            keep: Digest of a package that stays even if it was handed over before.

        Raises:
            StorageError: The storage failed.
        """
        before = self.preloaded()
        self._link(PRELOADED, f"incoming/{_checked(digest)}", "cannot keep the package")
        if before is not None and before not in {digest, keep}:
            with storage_faults("cannot remove the package that was handed over before"):
                shutil.rmtree(self._incoming / before)

    def clear(self) -> None:
        """Let no package serve after a restart.

        Raises:
            StorageError: The storage failed.
        """
        with storage_faults("cannot clear the current package"):
            (self._root / CURRENT).unlink(missing_ok=True)
            sync_directory(self._root)

    def collect(self, keep: Collection[str | None]) -> None:
        """Remove all packages, whole or not, except the current one and those in `keep`.

        Args:
            keep: Digests of packages to keep beside the current one.

        Raises:
            StorageError: A package cannot be removed.
        """
        kept = {*keep, self.current()}
        with storage_faults("cannot remove an old package"):
            for package in [p for p in self._packages.iterdir() if p.name not in kept]:
                # A half-removed package must not lie among the whole ones, even after a power cut.
                leaving = self._incoming / f"{package.name}.leaving"
                shutil.rmtree(leaving, ignore_errors=True)
                package.rename(leaving)
            for leftover in [p for p in self._incoming.iterdir() if p.name not in kept]:
                shutil.rmtree(leftover)
            for part in self.parts.iterdir():
                part.unlink()

    def keep_parts(self, wanted: Collection[str]) -> None:
        """Remove partial files that nobody needs any more, of installs that ended early.

        Args:
            wanted: SHA-256 of the files whose parts stay.

        Raises:
            StorageError: One cannot be removed.
        """
        with storage_faults("cannot remove a partial file"):
            for part in self.parts.iterdir():
                if part.name not in wanted:
                    part.unlink()

    def free_bytes(self) -> int:
        """Return the storage that this user may still fill, in bytes.

        Raises:
            StorageError: The device does not report it.
        """
        with storage_faults("cannot read the amount of free storage"):
            figures = os.statvfs(self._root)
        return figures.f_bavail * figures.f_frsize

    def used_bytes(self) -> int:
        """Return the size of all packages, whole or not, in bytes.

        Partial files do not count: all of each is still to come.
        """
        return sum(
            file.stat().st_size
            for place in (self._packages, self._incoming)
            for file in place.rglob("*")
            if file.is_file() and not file.is_symlink()
        )

    def _link(self, name: str, to: str, fault: str) -> None:
        """Make a link in place of the one of that name, by one rename."""
        temporary = self._root / f".{name}.new"
        with storage_faults(fault):
            for link in (temporary, self._root / name):
                if link.is_dir() and not link.is_symlink():
                    shutil.rmtree(link)
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(to)
            temporary.replace(self._root / name)
            sync_directory(self._root)


def _checked(digest: str) -> str:
    """Return the digest after a check: no other text may become a path.

    Raises:
        ValueError: It is not a digest, which is a bug.
    """
    if not is_digest(digest):
        raise ValueError(f"not a digest: {digest!r}")
    return digest

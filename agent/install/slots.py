"""The packages on this device, and which of them serve.

```
packages/<digest>/     whole packages, verified when they were put here
incoming/<digest>/     packages that are being fetched
parts/<sha256>         files that are partly here
shadows/<model>        a link to packages/<digest>: the shadow of the model (`agent.shadow`)
serving/<model>        a link to packages/<digest>: what serves the model after a restart
preloaded              a link to incoming/<digest>: the package that was handed over last
```

Rules:
- A link changes by one rename and is durable before the agent acts on it. So each model has a slot
  of its own, while all share the storage of the packages.
- A directory moves to `packages` by one rename, after all its files are verified and durable.
- What has come of a package is durable before a record says so.
- The package that a link names, and the one before it, are never removed.
- A package that was handed over and not installed yet goes when another is handed over, or when its
  storage is needed.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

from agent.errors import storage_faults
from agent.package_files import keep_directory
from wire.files import make_directory, sync_directory
from wire.package.index import is_digest
from wire.profile import NAME_PATTERN

SERVING: Final = "serving"
SHADOWS: Final = "shadows"
PRELOADED: Final = "preloaded"
ONE_SLOT: Final = "current"
"""The link of agents that had one model."""


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
        self._serving = root / SERVING
        self._shadows = root / SHADOWS
        self.parts = root / "parts"
        for directory in (self._packages, self._incoming, self._serving, self.parts):
            with storage_faults(f"cannot make the directory {directory.name}"):
                keep_directory(directory)
                make_directory(directory)

    def directory(self, digest: str) -> Path:
        """Return the directory of a package; while it is not whole, the one below `incoming`."""
        whole = self._packages / checked(digest)
        return whole if whole.is_dir() else self._incoming / digest

    def has(self, digest: str) -> bool:
        """Tell whether a package is whole."""
        return (self._packages / checked(digest)).is_dir()

    def whole(self) -> tuple[str, ...]:
        """Return the digests of all whole packages."""
        return tuple(sorted(p.name for p in self._packages.iterdir() if is_digest(p.name)))

    def arriving(self) -> tuple[str, ...]:
        """Return the digests of all packages that are being fetched, or were handed over."""
        return tuple(sorted(p.name for p in self._incoming.iterdir() if is_digest(p.name)))

    def of(self, model: str) -> Slot:
        """Return the slot of a model.

        Raises:
            ValueError: It is no name of a model, which is a bug.
        """
        return Slot(self, self._serving / _named(model))

    def shadow_of(self, model: str) -> Slot:
        """Return the slot of the shadow of a model. `collect` does not keep what it names.

        Raises:
            ValueError: It is no name of a model, which is a bug.
        """
        return Slot(self, self._shadows / _named(model))

    def shadows(self) -> dict[str, str | None]:
        """Return the package of each shadow by its model; None for one that is not whole here."""
        if not self._shadows.is_dir():
            return {}
        names = sorted(p.name for p in self._shadows.iterdir() if NAME_PATTERN.fullmatch(p.name))
        return {name: self.shadow_of(name).current() for name in names}

    def serving(self) -> dict[str, str]:
        """Return the digest of the package that serves each model after a restart, by its name."""
        names = sorted(p.name for p in self._serving.iterdir() if NAME_PATTERN.fullmatch(p.name))
        found = {name: self.of(name).current() for name in names}
        return {name: digest for name, digest in found.items() if digest is not None}

    def one_slot(self) -> str | None:
        """Return the digest of the package that an agent with one model served last."""
        return self.named(self._root / ONE_SLOT)

    def adopt(self, model: str) -> None:
        """Make the slot of agents that had one model that of a model. Calling it twice is safe.

        Raises:
            StorageError: The storage failed.
        """
        digest = self.one_slot()
        if digest is None:
            return
        self.of(model).switch(digest)
        with storage_faults("cannot remove the link to the package"):
            (self._root / ONE_SLOT).unlink(missing_ok=True)
            sync_directory(self._root)

    def named(self, link: Path) -> str | None:
        """Return the digest of the whole package that a link names, or None."""
        try:
            digest = link.readlink().name
        except OSError:
            return None
        return digest if is_digest(digest) and self.has(digest) else None

    def settle(self, digest: str) -> None:
        """Let the names of all that has come of a package survive a power cut.

        Its files are durable when they get their names.

        Args:
            digest: Digest of the package.

        Raises:
            StorageError: The storage failed.
        """
        package = self.directory(digest)
        with storage_faults("cannot keep what came of the package"):
            for directory, _, _ in os.walk(package):
                sync_directory(Path(directory))
            sync_directory(package.parent)

    def stage(self, digest: str) -> None:
        """Move a fetched and verified package to the whole ones. Calling it twice is safe.

        Args:
            digest: Digest of the package.

        Raises:
            StorageError: The storage failed.
        """
        self.settle(digest)
        with storage_faults("cannot stage the package"):
            if not self.has(digest):
                keep_directory(self._packages / digest)
                (self._incoming / digest).rename(self._packages / digest)
            sync_directory(self._packages)
            sync_directory(self._incoming)

    def preloaded(self) -> str | None:
        """Return the digest of the package that was handed over last, unless it is whole already.

        Some of its files may be missing.
        """
        try:
            digest = (self._root / PRELOADED).readlink().name
        except OSError:
            return None
        return digest if is_digest(digest) and (self._incoming / digest).is_dir() else None

    def preload(self, digest: str, *, keep: Collection[str]) -> None:
        """Keep a package that is being handed over, in place of the one before it.

        Args:
            digest: Digest of the package.
            keep: Digests of packages that stay even if they were handed over before.

        Raises:
            StorageError: The storage failed.
        """
        before = self.preloaded()
        to = f"incoming/{checked(digest)}"
        replace_link(self._root / PRELOADED, to, "cannot keep the package")
        if before is not None and before not in {digest, *keep}:
            with storage_faults("cannot remove the package that was handed over before"):
                shutil.rmtree(self._incoming / before)

    def collect(self, keep: Collection[str | None], *, keep_parts: bool = False) -> None:
        """Remove all packages, whole or not, except those that serve and those in `keep`.

        Args:
            keep: Digests of packages to keep beside those that serve.
            keep_parts: Whether partial files stay, because another install needs them.

        Raises:
            StorageError: A package cannot be removed.
        """
        kept = {*keep, *self.serving().values(), self.one_slot()}
        with storage_faults("cannot remove an old package"):
            leaving = [p for p in self._packages.iterdir() if p.name not in kept]
            for package in leaving:
                away = self._incoming / f"{package.name}.leaving"
                shutil.rmtree(away, ignore_errors=True)
                package.rename(away)
            if leaving:
                # A half-removed package must not lie among the whole ones, even after a power cut.
                sync_directory(self._incoming)
                sync_directory(self._packages)
            for leftover in [p for p in self._incoming.iterdir() if p.name not in kept]:
                shutil.rmtree(leftover)
            for part in [] if keep_parts else list(self.parts.iterdir()):
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


class Slot:
    """The link of one model to the package that serves it after a restart.

    Args:
        slots: The packages.
        link: The link.
    """

    def __init__(self, slots: Slots, link: Path) -> None:
        self._slots = slots
        self._link = link

    def current(self) -> str | None:
        """Return the digest of the package that serves after a restart."""
        return self._slots.named(self._link)

    def switch(self, digest: str) -> None:
        """Make a package the one that serves after a restart.

        Args:
            digest: Digest of a whole package.

        Raises:
            StorageError: The storage failed; after a restart the old or the new package serves.
        """
        to = f"../packages/{checked(digest)}"
        replace_link(self._link, to, "cannot switch to the package")

    def clear(self) -> None:
        """Let no package serve after a restart.

        Raises:
            StorageError: The storage failed.
        """
        with storage_faults("cannot clear the current package"):
            if self._link.parent.is_dir():
                self._link.unlink(missing_ok=True)
                sync_directory(self._link.parent)


def replace_link(link: Path, to: str, fault: str) -> None:
    """Make a link in place of the one of that name, by one rename.

    Args:
        link: The link.
        to: What it names, from its directory.
        fault: What the error says if the storage fails.

    Raises:
        StorageError: The storage failed.
    """
    temporary = link.with_name(f".{link.name}.new")
    with storage_faults(fault):
        make_directory(link.parent)
        for path in (temporary, link):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(to)
        try:
            temporary.replace(link)
        finally:  # it is there only if the link could not be replaced
            temporary.unlink(missing_ok=True)
        sync_directory(link.parent)


def _named(model: str) -> str:
    """Return the name of a model after a check: no other text may become a path.

    Raises:
        ValueError: It is no name of a model, which is a bug.
    """
    if NAME_PATTERN.fullmatch(model) is None:
        raise ValueError(f"not a name of a model: {model!r}")
    return model


def checked(digest: str) -> str:
    """Return the digest after a check: no other text may become a path.

    Raises:
        ValueError: It is not a digest, which is a bug.
    """
    if not is_digest(digest):
        raise ValueError(f"not a digest: {digest!r}")
    return digest

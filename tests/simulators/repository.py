"""A fleet's trusted metadata, made with the controller's own code and keys of its own.

Each test holds all keys, so that it can also do what a thief would do with some of them.
"""

from __future__ import annotations

import copy
import datetime as dt
import secrets
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from controller.metadata.checks import check
from controller.metadata.documents import Authored, Document, write
from controller.metadata.edit import (
    RoleKeys,
    moved,
    new_list,
    new_root,
    new_targets,
    put,
    with_keys,
    with_release,
    without_release,
)
from controller.metadata.online import Online, OnlineSigner, sign_online, signer_of
from controller.metadata.sets import assembled
from controller.metadata.signing import signed, with_stale
from tests.simulators.packages import SignedPackage
from wire.clock import SystemClock
from wire.metadata import MetadataFile, file_name
from wire.trust.envelope import SigningKey
from wire.trust.roles import DIRECTOR, RELEASES, ROOT, SNAPSHOT, TARGETS, TIMESTAMP

DAY_S = 86_400.0


class Repository:
    """The metadata of one fleet, signed with keys that the test holds.

    Args:
        now_s: When it is signed; None for now.
        life_s: How long a timestamp lives.
        director: Seed of the director's key; None for a new one.
    """

    def __init__(
        self,
        *,
        now_s: float | None = None,
        life_s: float = DAY_S,
        director: bytes | None = None,
        fleet: str = "",
    ) -> None:
        self.now_s = SystemClock().now_s() if now_s is None else now_s
        self.life_s = life_s
        self.seeds: dict[str, list[bytes]] = {
            ROOT: [secrets.token_bytes(32) for _ in range(3)],
            TARGETS: [secrets.token_bytes(32)],
            SNAPSHOT: [secrets.token_bytes(32)],
            TIMESTAMP: [secrets.token_bytes(32)],
            DIRECTOR: [director or secrets.token_bytes(32)],
            RELEASES: [secrets.token_bytes(32)],
        }
        tops = {
            name: RoleKeys(self.public(name), 2 if name == ROOT else 1)
            for name in (ROOT, TARGETS, SNAPSHOT, TIMESTAMP)
        }
        root = new_root(fleet or secrets.token_hex(16), tops, self.now_s)
        targets = new_targets(
            RoleKeys(self.public(DIRECTOR)), RoleKeys(self.public(RELEASES)), self.now_s
        )
        listed = new_list(self.now_s)
        for document, role in ((root, ROOT), (targets, TARGETS), (listed, RELEASES)):
            self.sign(document, role)
        self.authored: Authored = assembled(write(root), write(targets), {RELEASES: write(listed)})
        check(self.authored)
        self.online: Online
        self.renew(fresh=True)

    def public(self, role: str) -> tuple[Any, ...]:
        """Return the public keys of a role."""
        return tuple(signer_of(seed).public_key for seed in self.seeds[role])

    @property
    def director(self) -> SigningKey:
        """The key that signs desired states."""
        return SigningKey(self.seeds[DIRECTOR][0])

    def sign(self, document: Document, *roles: str, seeds: Iterable[bytes] = ()) -> None:
        """Put the signatures of all keys of some roles below a document, and of other keys."""
        document.signatures.clear()
        for seed in (*(seed for role in roles for seed in self.seeds[role]), *seeds):
            document.sign(signer_of(seed), append=True)

    def renew(self, *, fresh: bool = False, life_s: float | None = None) -> None:
        """Sign a new timestamp, and what has changed."""
        self.online = sign_online(
            self.authored,
            None if fresh else self.online,
            (
                OnlineSigner(SNAPSHOT, self.seeds[SNAPSHOT][0]),
                OnlineSigner(TIMESTAMP, self.seeds[TIMESTAMP][0]),
            ),
            now_s=self.now_s,
            life_s=self.life_s if life_s is None else life_s,
        )

    def change(self, role: str, document: Document) -> None:
        """Put a changed document into the metadata, signed by all keys, and renew."""
        after = with_stale(put(self.authored, role, document), self.now_s)
        everybody = [signer_of(seed) for seeds in self.seeds.values() for seed in seeds]
        self.authored = signed(after, everybody)
        check(self.authored)
        self.renew()

    def list_package(self, package: SignedPackage) -> None:
        """List a package."""
        self.list(package.index.name, package.index.version, package.digest,
                  len(package.index.to_bytes()))  # fmt: skip

    def list(self, name: str, version: str, sha256: str, size_bytes: int = 100) -> None:
        """List a release."""
        found = with_release(
            self.authored,
            name,
            version,
            sha256=sha256,
            size_bytes=size_bytes,
            now_s=self.now_s,
        )
        if found is not None:
            self.change(*found)

    def delegate(self, model: str) -> None:
        """Give the releases of a model a role of their own."""
        self.seeds[model] = [secrets.token_bytes(32)]
        after = moved(self.authored, model, RoleKeys(self.public(model)), self.now_s)
        everybody = [signer_of(seed) for seeds in self.seeds.values() for seed in seeds]
        self.authored = signed(after, everybody)
        check(self.authored)
        self.renew()

    def unlist(self, name: str, version: str) -> None:
        """Take a release out of its list."""
        found = without_release(self.authored, name, version, self.now_s)
        assert found is not None
        self.change(*found)

    def rotate(self, role: str, *, keep: bool = False) -> None:
        """Give a role a new key, beside or in place of those that it has."""
        new = secrets.token_bytes(32)
        old = [] if keep else [signer_of(seed).public_key.keyid for seed in self.seeds[role]]
        document = with_keys(
            self.authored,
            role,
            self.now_s,
            add=[signer_of(new).public_key],
            remove=old if role != ROOT else old[:1],
        )
        gone, self.seeds[role] = self.seeds[role], [new, *(self.seeds[role] if keep else [])]
        if role == ROOT:
            self.seeds[role] = [new, *gone[1:]]
            document.signatures.clear()
            signers = [signer_of(seed) for seed in (*gone, new)]
            self.authored = signed(put(self.authored, ROOT, document), signers)
            self.renew()
            return
        self.change(ROOT if role in {TARGETS, SNAPSHOT, TIMESTAMP} else TARGETS, document)

    def files(self) -> tuple[MetadataFile, ...]:
        """Return everything, as a controller sends it."""
        return (*self.authored.files(), *self.online.content)

    def write_root(self, path: Path) -> Path:
        """Write the first root, as it comes with a device."""
        path.write_bytes(self.authored.roots[0])
        return path


def file_of(role: str, document: Document) -> MetadataFile:
    """Return a document as it travels."""
    name = file_name(role, document.signed.version)
    return MetadataFile(name=name, content=write(document).decode())


def altered(document: Document, **changes: Any) -> Document:
    """Return a copy of a document with other values, whose signatures are no longer right."""
    made = copy.deepcopy(document)
    for name, value in changes.items():
        setattr(made.signed, name, value)
    return made


def in_future(days: float) -> dt.datetime:
    """Return a time in so many days, in whole seconds."""
    return dt.datetime.fromtimestamp(int(SystemClock().now_s() + days * DAY_S), dt.UTC)

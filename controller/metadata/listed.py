"""Whom to believe by metadata, for the controller and for commands: as devices do."""

from __future__ import annotations

from dataclasses import dataclass

from controller.metadata.documents import Authored
from wire.errors import SignatureError
from wire.package.index import index_from_bytes
from wire.trust.envelope import read_unverified
from wire.trust.roles import DIRECTOR, target_path
from wire.trust.root import Role, RoleName, encode_key


@dataclass(frozen=True, slots=True)
class ListedTrust:
    """What verified metadata vouches for.

    Args:
        authored: The metadata.
    """

    authored: Authored

    @property
    def director(self) -> Role:
        """The keys that may sign desired states."""
        keys = self.authored.keys(DIRECTOR).values()
        return Role(
            keys=tuple(encode_key(bytes.fromhex(key.keyval["public"])) for key in keys),
            threshold=self.authored.threshold(DIRECTOR),
        )

    @property
    def fleet_names(self) -> tuple[str, ...]:
        """The name of the fleet."""
        return (self.authored.fleet,)

    def unseal(self, data: bytes, *, role: RoleName, payload_type: str) -> bytes:
        """Verify an envelope as a device does: a package by its list, the rest by the director.

        Args:
            data: The envelope.
            role: What vouches for it.
            payload_type: The only type that is accepted.

        Returns:
            The payload.

        Raises:
            WireFormatError: Not an envelope.
            SignatureError: Nothing vouches for it.
        """
        if role == "director":
            return self.director.unseal(data, payload_type)
        payload = read_unverified(data, payload_type=payload_type).payload
        index = index_from_bytes(payload)
        if not self.lists(index.name, index.version, index.digest):
            raise SignatureError(
                f"no trusted list has this package as {index.name}:{index.version}",
                remedy="publish it with a key that may list it: fleet release publish "
                "PACKAGE --key release.key",
            )
        return payload

    def lists(self, name: str, version: str, sha256: str) -> bool:
        """Tell whether the list that a release belongs into has it.

        Args:
            name: Name of the package.
            version: Its version.
            sha256: Its digest.
        """
        path = target_path(name, version)
        listing = self.authored.role_of(path)
        known = None if listing is None else self.authored.lists[listing].signed.targets.get(path)
        return known is not None and known.hashes.get("sha256") == sha256

"""What the controller itself signs: which lists belong together, and that they do so now.

Rules:
- Both have keys of their own, which sign nothing else: their thief can hide newer releases, for as
  long as a timestamp lives, and can add none.
- A version is the time in seconds, so a controller that was restored goes on above all that it
  signed before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ed25519
from securesystemslib.signer import CryptoSigner, SSlibKey
from tuf.api.metadata import Metadata, MetaFile, Snapshot, Timestamp

from controller.metadata.documents import Authored, expiry, with_former, write
from controller.metadata.edit import LIFE_S, next_version
from controller.metadata.errors import MetadataError
from wire.metadata import MetadataFile, file_name
from wire.trust.envelope import SEED_BYTES, keyid_of
from wire.trust.roles import ISSUED_FIELD, SNAPSHOT, TARGETS, TIMESTAMP

SNAPSHOT_LIFE_S: Final = LIFE_S
"""The timestamp is what shows a freeze; a snapshot is renewed with each change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Online:
    """The snapshot and the timestamp that hold now."""

    snapshot: Metadata[Snapshot]
    timestamp: Metadata[Timestamp]
    content: tuple[MetadataFile, MetadataFile]
    """Their files, the snapshot first."""

    @property
    def expires_at_s(self) -> float:
        """When the first of them expires, seconds since 1970."""
        ends = (self.snapshot.signed.expires, self.timestamp.signed.expires)
        return min(ends).timestamp()


class OnlineSigner:
    """A key that signs one of the two roles.

    Args:
        role: The role.
        seed: The 32 secret bytes of its key.
    """

    def __init__(self, role: str, seed: bytes) -> None:
        if len(seed) != SEED_BYTES:
            raise MetadataError(
                f"the key of {role} has {len(seed)} bytes, not {SEED_BYTES}",
                remedy="make one with `fleet key generate FILE`",
            )
        self.role = role
        self._signer = signer_of(seed)

    def may_sign(self, authored: Authored) -> bool:
        """Tell whether the root lets this key sign its role alone."""
        keys = authored.keys(self.role)
        return self._signer.public_key.keyid in keys and authored.threshold(self.role) == 1

    def fault(self, authored: Authored) -> str:
        """Return why this key does not sign its role, and what to do; empty if it does."""
        if self.may_sign(authored):
            return ""
        return (
            f"the controller's key may not sign {self.role} alone: put a key of the role "
            f"{self.role} where [trust] in controller.toml names it, and start the controller again"
        )

    def sign(self, document: Metadata[Snapshot] | Metadata[Timestamp]) -> None:
        """Sign a document."""
        document.sign(self._signer)


def signer_of(seed: bytes) -> CryptoSigner:
    """Return what signs with an Ed25519 key, which has the name that it has in envelopes."""
    private = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    public = SSlibKey.from_crypto(private.public_key())
    public.keyid = keyid_of(bytes.fromhex(public.keyval["public"]))
    return CryptoSigner(private, public)


def sign_online(
    authored: Authored,
    before: Online | None,
    signers: tuple[OnlineSigner, OnlineSigner],
    *,
    now_s: float,
    life_s: float,
) -> Online:
    """Sign a timestamp, and a snapshot if the lists have changed.

    Args:
        authored: What people have signed.
        before: What held until now; None for nothing.
        signers: Of the snapshot and of the timestamp.
        now_s: Wall time.
        life_s: How long the timestamp lives.

    Returns:
        What holds from now on.

    Raises:
        MetadataError: The root does not let a key sign.
    """
    for signer in signers:
        if fault := signer.fault(authored):
            raise MetadataError(fault)
    snapshot = _snapshot(authored, before, signers[0], now_s)
    version = next_version(before.timestamp.signed.version if before else 0, now_s)
    timestamp = Metadata(
        Timestamp(
            version=version,
            expires=expiry(now_s, life_s),
            snapshot_meta=MetaFile(snapshot.signed.version),
            unrecognized_fields={ISSUED_FIELD: int(now_s)},
        )
    )
    signers[1].sign(timestamp)
    return online_of(snapshot, timestamp)


def online_of(snapshot: Metadata[Snapshot], timestamp: Metadata[Timestamp]) -> Online:
    """Return both with their files."""
    named = ((SNAPSHOT, snapshot), (TIMESTAMP, timestamp))
    first, second = (
        MetadataFile(
            name=file_name(role, document.signed.version), content=write(document).decode()
        )
        for role, document in named
    )
    return Online(snapshot=snapshot, timestamp=timestamp, content=(first, second))


def _snapshot(
    authored: Authored, before: Online | None, signer: OnlineSigner, now_s: float
) -> Metadata[Snapshot]:
    versions = {
        f"{TARGETS}.json": authored.targets.signed.version,
        **{f"{name}.json": listed.signed.version for name, listed in authored.lists.items()},
    }
    known = before.snapshot if before is not None else None
    if known is not None:
        # A name that a device has seen in a snapshot must stay, also when its role is no more.
        former = with_former(authored, known).former
        versions = {f"{name}.json": version for name, version in former.items()} | versions
    if known is not None and _still_holds(known, versions, authored, now_s):
        return known
    document = Metadata(
        Snapshot(
            version=next_version(known.signed.version if known else 0, now_s),
            expires=expiry(now_s, SNAPSHOT_LIFE_S),
            meta={name: MetaFile(version) for name, version in versions.items()},
        )
    )
    signer.sign(document)
    return document


def _still_holds(
    known: Metadata[Snapshot], versions: dict[str, int], authored: Authored, now_s: float
) -> bool:
    same = {name: meta.version for name, meta in known.signed.meta.items()} == versions
    young = known.signed.expires.timestamp() - now_s > SNAPSHOT_LIFE_S / 2
    found = authored.root.signed.get_verification_result(
        SNAPSHOT, known.signed_bytes, known.signatures
    )
    return same and young and found.verified

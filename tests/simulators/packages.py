"""Signed packages for tests, small and made in memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from wire.codec import sha256_hex, to_json
from wire.desired import DESIRED_PAYLOAD_TYPE, DesiredState
from wire.enrolling import ENROL_PAYLOAD_TYPE, EnrolAnswer, EnrolReply, EnrolRequest
from wire.installs import ReleaseRef
from wire.messages import decode_message
from wire.metadata import MetadataFile
from wire.package.accuracy import Accuracy
from wire.package.golden import Golden
from wire.package.index import ENVELOPE_FILE, PAYLOAD_TYPE, PackageIndex, asset_directory, entry_for
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_to_bytes
from wire.package.performance import Performance
from wire.package.tensors import TensorSpec
from wire.package.variant import Requirements, Variant, VariantInfo
from wire.policy import PolicySpec
from wire.profile import DeviceProfile
from wire.trust.envelope import SigningKey, seal
from wire.trust.root import Role, TrustRoot, encode_key

RELEASE_KEY = SigningKey(b"r" * 32)
DIRECTOR_SEED = b"d" * 32
DIRECTOR_KEY = SigningKey(DIRECTOR_SEED)
STRANGER_KEY = SigningKey(b"s" * 32)
TRUST = TrustRoot(
    release=Role(keys=(encode_key(RELEASE_KEY.public_key),)),
    director=Role(keys=(encode_key(DIRECTOR_KEY.public_key),)),
)
PROFILE = DeviceProfile(
    name="bench",
    architecture="x86_64",
    memory_bytes=2**30,
    storage_bytes=2**30,
    runtimes=("null",),
)
IO = (TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),)
CHUNK_BYTES = 1024


@dataclass(frozen=True, kw_only=True)
class SignedPackage:
    """A package as a controller has it."""

    files: dict[str, bytes]
    envelope: bytes
    index: PackageIndex

    @property
    def digest(self) -> str:
        return self.index.digest

    @property
    def blobs(self) -> tuple[bytes, ...]:
        return (self.envelope, *self.files.values())

    @property
    def ref(self) -> ReleaseRef:
        return ReleaseRef(
            name=self.index.name,
            version=self.index.version,
            digest=self.digest,
            envelope_sha256=sha256_hex(self.envelope),
            envelope_size_bytes=len(self.envelope),
        )

    def write_to(self, directory: Path) -> None:
        """Put the package where a device has it."""
        for path, content in (self.files | {ENVELOPE_FILE: self.envelope}).items():
            place = directory / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)


def variant(
    name: str,
    *,
    accuracy: float = 0.9,
    latency_ms: float = 10.0,
    memory_bytes: int = 2**20,
    options: dict[str, str] | None = None,
    golden: Golden | None = None,
    size_bytes: int = 0,
) -> Variant:
    """Return a variant for the null runtime."""
    return Variant(
        name=name,
        directory=f"variants/{name}",
        info=VariantInfo(
            runtime="null",
            precision="fp32",
            model_file="model.json",
            options=options or {},
            inputs=IO,
            outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 4)),),
            requirements=Requirements(memory_bytes=memory_bytes),
            size_bytes=size_bytes,
            accuracy=Accuracy(
                metric="top1",
                value=accuracy,
                reference=1.0,
                retention=accuracy,
                agreement=accuracy,
                sqnr_db=None,
                worst_error=1 - accuracy,
                samples=10,
            ),
            performance=Performance(
                latency_p50_ms=latency_ms,
                latency_p95_ms=latency_ms,
                load_ms=1.0,
                first_inference_ms=1.0,
                peak_memory_bytes=memory_bytes,
                runs=1,
                threads=1,
                machine="test",
            ),
            golden=golden,
        ),
    )


def package(
    version: str,
    variants: dict[Variant, bytes] | list[tuple[Variant, bytes]],
    *,
    name: str = "digits",
    key: SigningKey = RELEASE_KEY,
    assets: dict[str, dict[str, bytes]] | None = None,
    documents: dict[str, bytes] | None = None,
    chunk_bytes: int = CHUNK_BYTES,
) -> SignedPackage:
    """Make and sign a package.

    Args:
        version: Of the package.
        variants: Each with the content of its model file.
        name: Of the package.
        key: That signs it.
        assets: Shared assets: reference to file name to content.
        documents: What it says of its origin, by path.
        chunk_bytes: Size of a chunk.
    """
    pairs = list(variants.items()) if isinstance(variants, dict) else variants
    manifest = Manifest(name=name, version=version, variants=tuple(v for v, _ in pairs))
    files = {MANIFEST_FILE: manifest_to_bytes(manifest)}
    files |= {f"{v.directory}/{v.info.model_file}": content for v, content in pairs}
    for asset, content in (assets or {}).items():
        files |= {f"{asset_directory(asset)}/{path}": data for path, data in content.items()}
    files |= documents or {}
    index = PackageIndex(
        name=name,
        version=version,
        chunk_bytes=chunk_bytes,
        files=tuple(entry_for(p, files[p], chunk_bytes=chunk_bytes) for p in sorted(files)),
    )
    envelope = seal(index.to_bytes(), payload_type=PAYLOAD_TYPE, keys=[key])
    return SignedPackage(files=files, envelope=envelope, index=index)


def two_variants(version: str, *, best: str = "best", small: str = "small") -> SignedPackage:
    """Make a package of an accurate slow variant and a cheap fast one, with that content."""
    return package(
        version,
        [
            (variant("best", accuracy=0.99, latency_ms=40.0, memory_bytes=4096), best.encode()),
            (variant("small", accuracy=0.90, latency_ms=5.0, memory_bytes=1024), small.encode()),
        ],
    )


def desired(
    revision: int,
    release: SignedPackage | ReleaseRef | None,
    *,
    device: str = "dev-1",
    key: SigningKey = DIRECTOR_KEY,
    policy: PolicySpec | None = None,
    rollout: str | None = None,
    boot_id: str | msgspec.UnsetType = msgspec.UNSET,
) -> tuple[DesiredState, bytes]:
    """Make and sign a desired state."""
    state = DesiredState(
        device=device,
        revision=revision,
        issued_at_s=1.0,
        release=release.ref if isinstance(release, SignedPackage) else release,
        policy=policy or PolicySpec(),
        rollout=rollout,
        boot_id=boot_id,
    )
    return state, seal(to_json(state), payload_type=DESIRED_PAYLOAD_TYPE, keys=[key])


def enrol_reply_to(
    request: bytes,
    *,
    accepted: bool = True,
    reason: str = "",
    challenge: str | msgspec.UnsetType = msgspec.UNSET,
    ask_again_s: float | msgspec.UnsetType = msgspec.UNSET,
    key: SigningKey = DIRECTOR_KEY,
    metadata: tuple[MetadataFile, ...] | msgspec.UnsetType = msgspec.UNSET,
) -> bytes:
    """Answer a request to enrol, as a controller does that has this key."""
    device = decode_message(request, EnrolRequest).device
    answer = EnrolAnswer(
        device=device,
        accepted=accepted,
        request_sha256=sha256_hex(request),
        reason=reason,
        challenge=challenge,
        ask_again_s=ask_again_s,
    )
    signed = seal(to_json(answer), payload_type=ENROL_PAYLOAD_TYPE, keys=[key])
    reply = EnrolReply(
        device=device,
        accepted=accepted,
        reason=reason,
        signed=signed.decode(),
        metadata=metadata,
    )
    return to_json(reply)

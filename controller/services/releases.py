"""Publishing and revoking releases.

Rules:
- The signature comes first: the controller reads nothing of a package before it has verified the
  envelope.
- A published release is complete: every file is in the blob store with the signed size.
- A name and version always mean the same package.
- Revoking a release halts its rollouts, and desired states no longer order it: those that did get
  a new revision, and the other models in them go on. Devices that run it go on; the answer names
  them and the rollouts that brought it.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from controller.domain.paging import PageRequest, Part, cut
from controller.domain.states import MAKING_WORK, ReleaseState, RolloutOrder
from controller.errors import ConflictError, InvalidRequestError
from controller.release_schemas import KeptDelta, Release, RunningDevice, VariantSummary
from controller.services import sorts
from controller.services.blobs import BlobStore
from controller.services.director import Director
from controller.store import (
    deltas,
    deployments,
    desired,
    releases,
    rollout_steps,
    rollout_work,
    rollouts,
    shadows,
    way_back,
)
from controller.store.database import Database, Transaction
from controller.store.release_tables import ReleaseRow
from wire.clock import Clock
from wire.codec import MAX_JSON_BYTES, convert
from wire.errors import WireFormatError
from wire.messages import MAX_MESSAGE_BYTES
from wire.package.index import PAYLOAD_TYPE, PackageIndex, index_from_bytes
from wire.package.manifest import MANIFEST_FILE, Manifest, manifest_from_bytes
from wire.package.measured import check_measured
from wire.package.variant import Variant
from wire.trust.envelope import MAX_ENVELOPE_BYTES
from wire.trust.root import Trust

MAX_CHUNK_BYTES = MAX_MESSAGE_BYTES - 4096
"""The largest chunk that fits into one message with its header."""

MAX_RUNNING = 100_000
"""The greatest number of devices that an answer names."""


class Releases:
    """The releases of the fleet.

    Args:
        database: The control state.
        blobs: The content.
        trust: Who may sign packages.
        director: Sends desired states to devices that go back.
        clock: Wall time.
    """

    def __init__(
        self,
        database: Database,
        blobs: BlobStore,
        trust: Trust,
        director: Director,
        clock: Clock,
    ) -> None:
        self._database = database
        self._blobs = blobs
        self._trust = trust
        self._director = director
        self._clock = clock

    def publish(self, envelope_sha256: str) -> Release:
        """Publish a package whose blobs are uploaded; repeating the call changes nothing.

        Args:
            envelope_sha256: The blob that holds its signed index.

        Returns:
            The release.

        Raises:
            UnknownBlobError: The envelope has not been uploaded.
            SignatureError: It is not signed by the release role.
            WireFormatError: The index or the manifest is malformed, or they contradict each other.
            InvalidRequestError: Files have not been uploaded.
            ConflictError: That name and version belong to another package, or it was revoked.
        """
        envelope = self._blobs.read(envelope_sha256, length=MAX_ENVELOPE_BYTES + 1)
        payload = self._trust.unseal(envelope, role="release", payload_type=PAYLOAD_TYPE)
        index = index_from_bytes(payload)
        if index.to_bytes() != payload:
            raise WireFormatError("the package index is not in its canonical form")
        if index.chunk_bytes > MAX_CHUNK_BYTES:
            raise WireFormatError(f"chunks of {index.chunk_bytes} bytes do not fit into a message")
        self._check_blobs(index)
        manifest = self._manifest(index)
        row = _row(index, manifest, envelope_sha256, len(envelope), self._clock.now_s())
        blobs = [(entry.sha256, entry.size_bytes) for entry in index.files]
        with self._database.transaction() as transaction:
            return _kept(transaction, row, [*blobs, (envelope_sha256, len(envelope))])

    def listed(
        self, page: PageRequest, *, model: str = "", state: ReleaseState | None = None
    ) -> Part[Release]:
        """Return a part of the releases, without the devices that run them.

        Args:
            page: Which part.
            model: Only those of this model; empty for all.
            state: Only those in this state; None for all.

        Raises:
            DatabaseError: The database does not answer.
        """
        with self._database.reading() as transaction:
            rows = releases.listed(transaction, page, model=model, state=state)
        return cut([to_schema(row) for row in rows], page, sorts.RELEASES)

    def get(self, ref: str) -> Release:
        """Return a release by digest or `name:version`, with its devices and deltas.

        Raises:
            UnknownReleaseError: None of that name has been published.
        """
        with self._database.reading() as transaction:
            row = releases.get(transaction, ref)
            shown = _with_devices(transaction, row)
            shown.deltas = [
                KeptDelta(**delta._asdict()) for delta in deltas.shown(transaction, row.digest)
            ]
        return shown

    def revoke(self, ref: str) -> Release:
        """Stop handing out a release and halt its rollouts; repeating the call changes nothing.

        Args:
            ref: Digest or `name:version`.

        Returns:
            The release, with the devices that run it.

        Raises:
            UnknownReleaseError: None of that name has been published.
        """
        now_s = self._clock.now_s()
        told: list[str] = []
        with self._database.transaction() as transaction:
            row = releases.get(transaction, ref)
            reason = f"release {row.name}:{row.version} was revoked"
            if releases.revoke(transaction, row):
                for rollout in rollouts.active_for_release(transaction, row.digest):
                    is_unmade = rollout_work.is_left(transaction, rollout.id, *MAKING_WORK)
                    order = RolloutOrder.ABORT if is_unmade else RolloutOrder.HALT
                    told += rollout_steps.end(
                        transaction, rollout, order, reason=reason, now_s=now_s
                    )
                for ended in deployments.waiting_for(transaction, row.digest):
                    told += rollout_steps.recall(
                        transaction,
                        rollouts.get(transaction, ended),
                        release=row.digest,
                        reason=reason,
                        now_s=now_s,
                    )
                shadows.remove_release(transaction, row.name, row.digest)
                told += desired.renew_with(transaction, row.digest, now_s=now_s)
            release = _with_devices(transaction, row)
        self._director.publish(sorted(set(told)))
        return release

    def _check_blobs(self, index: PackageIndex) -> None:
        wrong = [
            entry.sha256
            for entry in index.files
            if self._blobs.size_bytes(entry.sha256) != entry.size_bytes
        ]
        if wrong:
            raise InvalidRequestError(
                f"{len(wrong)} of {len(index.files)} files are not uploaded, such as {wrong[0]}",
                remedy="upload every file of the package first",
            )

    def _manifest(self, index: PackageIndex) -> Manifest:
        entry = index.file(MANIFEST_FILE)
        data = self._blobs.read(entry.sha256, length=MAX_JSON_BYTES + 1)
        manifest = manifest_from_bytes(data)
        if (manifest.name, manifest.version) != (index.name, index.version):
            raise WireFormatError(
                f"the index names {index.name}:{index.version}, "
                f"but the manifest names {manifest.name}:{manifest.version}"
            )
        for variant in manifest.variants:
            index.file(f"{variant.directory}/{variant.info.model_file}")
        check_measured(manifest, index)
        return manifest


def to_schema(row: ReleaseRow) -> Release:
    """Return a release as the API shows it."""
    return Release(
        name=row.name,
        version=row.version,
        digest=row.digest,
        size_bytes=row.size_bytes,
        state=ReleaseState(row.state),
        published_at_s=row.published_at_s,
        variants=[convert(item, VariantSummary) for item in row.variants],
        envelope_sha256=row.envelope_sha256,
        envelope_size_bytes=row.envelope_size_bytes,
    )


def _with_devices(transaction: Transaction, row: ReleaseRow) -> Release:
    shown = to_schema(row)
    shown.running = [
        RunningDevice(
            device=item.device,
            online=item.online,
            rollout=item.rollout,
            previous=f"{item.previous.name}:{item.previous.version}" if item.previous else None,
        )
        for item in way_back.running(transaction, row.digest, limit=MAX_RUNNING)
    ]
    return shown


def _kept(transaction: Transaction, row: ReleaseRow, blobs: list[tuple[str, int]]) -> Release:
    known = releases.find(transaction, f"{row.name}:{row.version}")
    if known is None:
        releases.add(transaction, row, blobs)
        return to_schema(row)
    if known.digest != row.digest:
        raise ConflictError(
            f"{row.name}:{row.version} is already published as the package {known.digest}",
            remedy="give the new package a new version",
        )
    if known.state != ReleaseState.PUBLISHED:
        raise ConflictError(
            f"{row.name}:{row.version} has been revoked", remedy="give the package a new version"
        )
    return to_schema(known)


def _row(
    index: PackageIndex, manifest: Manifest, envelope_sha256: str, envelope_bytes: int, now_s: float
) -> ReleaseRow:
    return ReleaseRow(
        digest=index.digest,
        name=index.name,
        version=index.version,
        state=ReleaseState.PUBLISHED,
        envelope_sha256=envelope_sha256,
        envelope_size_bytes=envelope_bytes,
        size_bytes=index.size_bytes,
        published_at_s=now_s,
        variants=[_summary(variant) for variant in manifest.variants],
    )


def _summary(variant: Variant) -> dict[str, Any]:
    info = variant.info
    summary = VariantSummary(
        name=variant.name,
        runtime=info.runtime,
        precision=info.precision,
        size_bytes=info.size_bytes,
        profiles=list(info.profiles),
        accuracy=info.accuracy.value if info.accuracy else None,
        retention=info.accuracy.retention if info.accuracy else None,
        latency_p50_ms=info.performance.latency_p50_ms if info.performance else None,
        peak_memory_bytes=info.performance.peak_memory_bytes if info.performance else None,
    )
    return asdict(summary)

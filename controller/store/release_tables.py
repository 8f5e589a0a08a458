"""The tables of releases, their blobs, and the deltas between their files."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    String,
    UniqueConstraint,
)
from sqlalchemy.orm import Mapped, mapped_column

from controller.domain.states import DeltaState, ReleaseState
from controller.store.tables import DIGEST_CHARS, NAME_CHARS, Base, one_of


class ReleaseRow(Base):
    """A published package."""

    __tablename__ = "release"
    __table_args__ = (one_of("state", ReleaseState), UniqueConstraint("name", "version"))

    digest: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    name: Mapped[str] = mapped_column(String(NAME_CHARS))
    version: Mapped[str] = mapped_column(String(NAME_CHARS))
    state: Mapped[str] = mapped_column(String(16))
    envelope_sha256: Mapped[str] = mapped_column(String(DIGEST_CHARS))
    envelope_size_bytes: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    published_at_s: Mapped[float]
    variants: Mapped[list[Any]]
    """Summaries of the manifest's variants, as `release_schemas.VariantSummary`."""


class ReleaseBlobRow(Base):
    """A blob that belongs to a release: its files and its envelope."""

    __tablename__ = "release_blob"
    __table_args__ = (Index(None, "sha256"),)

    release: Mapped[str] = mapped_column(ForeignKey("release.digest"), primary_key=True)
    sha256: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    size_bytes: Mapped[int] = mapped_column(BigInteger)


class DeltaRow(Base):
    """What is known of the delta from one file to another; the delta itself is a blob."""

    __tablename__ = "delta"
    __table_args__ = (
        one_of("state", DeltaState),
        CheckConstraint(
            "state <> 'ready' OR (sha256 IS NOT NULL AND size_bytes IS NOT NULL)", name="ready"
        ),
        Index(None, "sha256"),
        Index(None, "target"),
    )

    base: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    """SHA-256 of the file that it begins from; that of no bytes for plain compression."""

    target: Mapped[str] = mapped_column(String(DIGEST_CHARS), primary_key=True)
    state: Mapped[str] = mapped_column(String(16))
    full_bytes: Mapped[int] = mapped_column(BigInteger)
    """Size of the target."""

    sha256: Mapped[str | None] = mapped_column(String(DIGEST_CHARS))
    size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    chunk_bytes: Mapped[int] = mapped_column(Integer, server_default="0")
    chunks: Mapped[list[Any]]
    """SHA-256 of each chunk; empty where they would be too many."""

    made_at_s: Mapped[float]
    used_at_s: Mapped[float]
    """When it was last offered, to the hour: the one that was longest not used goes first."""

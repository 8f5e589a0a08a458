"""The tables of what devices are to capture, and of what they have sent.

Rules:
- Samples are kept as they came: sealed to a key of which the controller has the public half alone.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, ForeignKeyConstraint, Index, Integer, LargeBinary, String
from sqlalchemy.orm import Mapped, mapped_column

from controller.store.tables import NAME_CHARS, Base
from wire.capture import MAX_HEAD_BYTES, PIECE_BYTES

ID_CHARS = 32


class CaptureRow(Base):
    """Which requests for a model devices are to capture."""

    __tablename__ = "capture"

    model: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    selector: Mapped[str] = mapped_column(String(1024))
    rule: Mapped[dict[str, Any]]
    """As `wire.capture.CaptureRule`."""

    started_at_s: Mapped[float]


class SampleRow(Base):
    """A sample, of which some or all parts have come."""

    __tablename__ = "captured_sample"
    __table_args__ = (Index(None, "model", "stored_at_s"),)

    device: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    sample: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    capture: Mapped[str] = mapped_column(String(ID_CHARS))
    model: Mapped[str] = mapped_column(String(NAME_CHARS))
    head: Mapped[bytes] = mapped_column(LargeBinary(MAX_HEAD_BYTES))
    pieces: Mapped[int] = mapped_column(Integer)
    lacks: Mapped[int] = mapped_column(Integer)
    """How many parts have not come."""

    size_bytes: Mapped[int] = mapped_column(BigInteger)
    """What is sealed; until all has come, the most that it can be."""

    stored_at_s: Mapped[float]


class SamplePieceRow(Base):
    """A part of a sample."""

    __tablename__ = "captured_piece"
    __table_args__ = (
        ForeignKeyConstraint(
            ["device", "sample"], ["captured_sample.device", "captured_sample.sample"]
        ),
    )

    device: Mapped[str] = mapped_column(String(NAME_CHARS), primary_key=True)
    sample: Mapped[str] = mapped_column(String(ID_CHARS), primary_key=True)
    piece: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    blob: Mapped[bytes] = mapped_column(LargeBinary(PIECE_BYTES))

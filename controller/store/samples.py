"""What devices captured, as it came: sealed, in parts.

Rules:
- A part that comes again changes nothing.
- A sample is counted with the most that it can be until all of it has come, so that the bounds hold
  at any moment.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import case, delete, func, select, tuple_
from sqlalchemy.orm import Session

from controller.capture_settings import CaptureConfig
from controller.store.capture_tables import SamplePieceRow, SampleRow
from wire.capture import PIECE_BYTES, CaptureRule, SampleHead
from wire.samples import SamplePiece

DAY_S = 86_400.0
SLACK = 2
"""How much more than its budget a device may send in a day: its days begin at other times, and what
waited for a connection comes at once."""

DELETED_AT_ONCE = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What is kept of a model."""

    samples: int = 0
    size_bytes: int = 0
    partial: int = 0


def store(
    session: Session,
    piece: SamplePiece,
    head: SampleHead,
    rule: CaptureRule,
    bounds: CaptureConfig,
    *,
    now_s: float,
) -> str:
    """Keep a part of a sample.

    Args:
        session: The transaction.
        piece: The part, whose sizes have been checked.
        head: What it says of its sample.
        rule: What its device is asked to capture.
        bounds: How much may be kept of the model.
        now_s: Wall time.

    Returns:
        Why nothing of the sample is wanted; empty if the part is kept.
    """
    row = session.get(SampleRow, (piece.device, piece.sample))
    if row is None:
        if why := _why_not(session, piece, head, rule, bounds, now_s):
            return why
        row = SampleRow(
            device=piece.device,
            sample=piece.sample,
            capture=head.capture,
            model=head.model,
            head=piece.head,
            pieces=piece.pieces,
            lacks=piece.pieces,
            size_bytes=piece.pieces * PIECE_BYTES,
            stored_at_s=now_s,
        )
        session.add(row)
        session.flush()
    elif row.head != piece.head or row.pieces != piece.pieces:
        return "the device sent another sample of that name"
    if session.get(SamplePieceRow, (piece.device, piece.sample, piece.piece)) is None:
        session.add(
            SamplePieceRow(
                device=piece.device, sample=piece.sample, piece=piece.piece, blob=piece.blob
            )
        )
        row.lacks -= 1
        if piece.piece == piece.pieces - 1:
            row.size_bytes += len(piece.blob) - PIECE_BYTES
    return ""


def kept(session: Session) -> dict[str, Kept]:
    """Return what is kept of each model."""
    partial = case((SampleRow.lacks > 0, 1), else_=0)
    rows = session.execute(
        select(
            SampleRow.model,
            func.count(),
            func.sum(SampleRow.size_bytes),
            func.sum(partial),
        ).group_by(SampleRow.model)
    )
    return {
        model: Kept(samples=count - int(part), size_bytes=int(size), partial=int(part))
        for model, count, size, part in rows
    }


def page(session: Session, model: str, after: tuple[str, str], limit: int) -> list[SampleRow]:
    """Return whole samples of a model in the order of device and name.

    Args:
        session: The transaction.
        model: The model.
        after: Device and name of the last one of the page before; empty texts for the first.
        limit: How many at most.
    """
    key = tuple_(SampleRow.device, SampleRow.sample)
    return list(
        session.scalars(
            select(SampleRow)
            .where(SampleRow.model == model, SampleRow.lacks == 0, key > after)
            .order_by(SampleRow.device, SampleRow.sample)
            .limit(limit)
        )
    )


def sealed(session: Session, device: str, sample: str) -> bytes:
    """Return all that is sealed of a whole sample."""
    return b"".join(
        session.scalars(
            select(SamplePieceRow.blob)
            .where(SamplePieceRow.device == device, SamplePieceRow.sample == sample)
            .order_by(SamplePieceRow.piece)
        )
    )


def prune(session: Session, *, before_s: float, partial_before_s: float) -> int:
    """Delete samples that are old, and parts of which the rest never came.

    Args:
        session: The transaction.
        before_s: Samples that came before this wall time go.
        partial_before_s: Of those that are not whole, these.

    Returns:
        How many samples went; there may be more if it is `DELETED_AT_ONCE`.
    """
    old = (SampleRow.stored_at_s < before_s) | (
        (SampleRow.lacks > 0) & (SampleRow.stored_at_s < partial_before_s)
    )
    found = session.execute(
        select(SampleRow.device, SampleRow.sample).where(old).limit(DELETED_AT_ONCE)
    ).all()
    keys = [tuple(each) for each in found]
    for table in (SamplePieceRow, SampleRow):
        session.execute(
            delete(table)
            .where(tuple_(table.device, table.sample).in_(keys))
            .execution_options(synchronize_session=False)
        )
    return len(found)


def _why_not(
    session: Session,
    piece: SamplePiece,
    head: SampleHead,
    rule: CaptureRule,
    bounds: CaptureConfig,
    now_s: float,
) -> str:
    """Return why a new sample is not kept; empty if it is."""
    count, size = session.execute(
        select(func.count(), func.coalesce(func.sum(SampleRow.size_bytes), 0)).where(
            SampleRow.model == head.model
        )
    ).one()
    if count >= bounds.max_samples:
        return f"{count} samples of model {head.model} are kept, which is the greatest number"
    coming = piece.pieces * PIECE_BYTES
    if size + coming > bounds.max_bytes:
        return f"the samples of model {head.model} take {size} bytes, and {bounds.max_bytes} may"
    today = session.scalar(
        select(func.coalesce(func.sum(SampleRow.size_bytes), 0)).where(
            SampleRow.model == head.model,
            SampleRow.device == piece.device,
            SampleRow.capture == rule.id,
            SampleRow.stored_at_s >= now_s - DAY_S,
        )
    )
    if (today or 0) > SLACK * rule.bytes_per_day:
        return "the device sent more than it was asked for"
    return ""

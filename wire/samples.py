"""The messages that bring captured samples to the controller, part by part. Pure values."""

from __future__ import annotations

import msgspec

from wire.capture import MAX_HEAD_BYTES, MAX_PIECES, PIECE_BYTES
from wire.messages import Message


class SamplePiece(Message, frozen=True, kw_only=True):
    """A part of a sample, which is encrypted to the operator. MessagePack.

    All parts but the last have `wire.capture.PIECE_BYTES`.
    """

    device: str
    sample: str
    """As in the head."""

    head: bytes
    """A `wire.capture.SampleHead` as JSON, with each part the same bytes."""

    piece: int
    """Which part, from 0."""

    pieces: int
    blob: bytes

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong with the sizes, each as one line; empty if they can be."""
        rules = (
            (1 <= self.pieces <= MAX_PIECES, f"a sample has {self.pieces} parts"),
            (0 <= self.piece < self.pieces, f"a sample of {self.pieces} has no part {self.piece}"),
            (len(self.head) <= MAX_HEAD_BYTES, "the head of a sample is too large"),
            (
                self.piece == self.pieces - 1 or len(self.blob) == PIECE_BYTES,
                "a part of a sample that is not the last one has another size than it must have",
            ),
            (0 < len(self.blob) <= PIECE_BYTES, "a part of a sample is empty or too large"),
        )
        return tuple(text for holds, text in rules if not holds)


class SampleAck(Message, frozen=True, kw_only=True):
    """The controller's answer to a part of a sample. JSON."""

    sample: str
    piece: int
    """The part that is stored."""

    refused: str | msgspec.UnsetType = msgspec.UNSET
    """Why nothing of the sample is wanted, in one line; the device then removes it. Unset where the
    part is stored."""

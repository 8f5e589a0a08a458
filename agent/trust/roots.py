"""Reads what the supervisor needs of a root of trusted metadata, without the client of TUF."""

from __future__ import annotations

import msgspec

from wire.codec import from_json
from wire.errors import WireFormatError
from wire.trust.roles import FLEET_FIELD, ROOT


class _Signed(msgspec.Struct, frozen=True):
    type_: str = msgspec.field(name="_type", default="")
    fleet: str = msgspec.field(name=FLEET_FIELD, default="")


class _RootFile(msgspec.Struct, frozen=True):
    signed: _Signed = _Signed()


def fleet_of(content: bytes) -> str | None:
    """Return which fleet a root belongs to; None if it is no root."""
    try:
        signed = from_json(content, _RootFile).signed
    except WireFormatError:
        return None
    return signed.fleet if signed.type_ == ROOT and signed.fleet else None

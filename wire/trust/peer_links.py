"""Links by which one device fetches one blob from another one, signed by the director. Pure.

```
/blobs/3f2a...?device=cam-2&peer=cam-1&until=1763990000&signature=mV3q...
```

Rules:
- The signature covers who fetches, from whom, which blob and until when: a link is for nothing
  else.
- Who serves needs the trust root alone, no secret and no connection to the controller.
- A link is a secret until it expires. No log gets one.

Source:
    RFC 8032, Ed25519. The text that is signed begins with other words than a DSSE envelope's, so
    that no signature of the one is valid for the other.
"""

from __future__ import annotations

import base64
import re
from typing import Final, NamedTuple

from wire.errors import SignatureError
from wire.trust.envelope import SigningKey, is_valid
from wire.trust.root import Role

MAX_QUERY_BYTES: Final = 512
AGAIN: Final = "ask the controller for a new link"

_NAME: Final = r"[a-z0-9][a-z0-9._-]{0,62}"
_QUERY: Final = re.compile(
    rf"device=({_NAME})&peer=({_NAME})&until=([1-9][0-9]{{0,11}})&signature=([A-Za-z0-9_-]{{86}})"
)
"""Exactly as `peer_path` writes it: two programs could read any other form differently."""


class PeerLink(NamedTuple):
    """What a valid link says."""

    device: str
    """Who may fetch."""

    until_s: int
    """When it expires, seconds since 1970."""


def peer_path(key: SigningKey, *, device: str, peer: str, sha256: str, until_s: int) -> str:
    """Return the path and the query of a link.

    Args:
        key: The director's.
        device: Who fetches.
        peer: Who serves.
        sha256: The blob.
        until_s: When it expires, seconds since 1970.

    Returns:
        What stands after the host.
    """
    signature = base64.urlsafe_b64encode(key.sign(_text(device, peer, sha256, until_s)))
    shown = signature.rstrip(b"=").decode()
    return f"/blobs/{sha256}?device={device}&peer={peer}&until={until_s}&signature={shown}"


def check_peer_link(
    director: Role, query: str, *, peer: str, sha256: str, now_s: float
) -> PeerLink:
    """Check a link.

    Args:
        director: Whose keys may sign.
        query: What stands after the `?`.
        peer: The device that checks.
        sha256: The blob that is asked for.
        now_s: Wall time. A clock in the past lets a link live longer, one in the future ends it.

    Returns:
        Whose link it is, and until when.

    Raises:
        SignatureError: It is no link of the director's for this blob from this device, or has
            expired.
    """
    found = _QUERY.fullmatch(query) if len(query) <= MAX_QUERY_BYTES else None
    if found is None or found[2] != peer:
        raise SignatureError("this is no link to a blob of this device", remedy=AGAIN)
    device, until_s = found[1], int(found[3])
    message = _text(device, peer, sha256, until_s)
    signature = base64.urlsafe_b64decode(found[4] + "==")
    # One link has one signature: where several keys have to sign, nothing comes from peers.
    if director.threshold > 1 or not any(
        is_valid(key, message, signature) for key in director.public_keys()
    ):
        raise SignatureError("this link is not for this blob", remedy=AGAIN)
    if now_s >= until_s:
        raise SignatureError("this link has expired", remedy=AGAIN)
    return PeerLink(device, until_s)


def _text(device: str, peer: str, sha256: str, until_s: int) -> bytes:
    return f"edgefleet peer link 1\n{peer}\n{device}\n{sha256}\n{until_s}".encode()

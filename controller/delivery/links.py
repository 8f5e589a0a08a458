"""Links by which one device downloads one blob, until they expire. Pure.

```
/blobs/3f2a...?device=cam-berlin&until=1763990000&signature=9c41...
```

Rules:
- The signature covers the device, the blob and the time: a link is for nothing else.
- Who checks a link needs the secret alone, no database. A link works until it expires, also when
  its release was revoked or its device decommissioned meanwhile.
- A link is a secret. No log gets one.

Source:
    RFC 2104, HMAC; the form is that of nginx's secure links and of presigned links of object
    stores.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Final, NamedTuple

from controller.errors import LinkError

SECRET_BYTES: Final = 32
MAX_QUERY_BYTES: Final = 512
AGAIN: Final = "ask the controller for a new link"

_QUERY: Final = re.compile(
    rb"device=([a-z0-9][a-z0-9._-]{0,62})&until=([1-9][0-9]{0,11})&signature=([0-9a-f]{64})"
)
"""Exactly as `path_of` writes it: two programs could read any other form differently."""


class Link(NamedTuple):
    """What a valid link says."""

    device: str
    """Whose it is."""

    until_s: int
    """When it expires, seconds since 1970."""


class Links:
    """Makes and checks links.

    Args:
        secret: Known to the controller alone.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret

    def path_of(self, device: str, sha256: str, until_s: int) -> str:
        """Return the path and the query of a link.

        Args:
            device: Whose link it is.
            sha256: The blob.
            until_s: When it expires, seconds since 1970.

        Returns:
            What stands after the host.
        """
        signature = self._signature(device, sha256, until_s)
        return f"/blobs/{sha256}?device={device}&until={until_s}&signature={signature}"

    def check(self, sha256: str, query: bytes, now_s: float) -> Link:
        """Check a link.

        Args:
            sha256: The blob that is asked for.
            query: What stands after the `?`.
            now_s: Wall time.

        Returns:
            Whose link it is, and until when.

        Raises:
            LinkError: It is not a link for this blob, or has expired.
        """
        found = _QUERY.fullmatch(query) if len(query) <= MAX_QUERY_BYTES else None
        if found is None:
            raise LinkError("this is not a link that the controller made", remedy=AGAIN)
        device, until_s, shown = found[1].decode(), int(found[2]), found[3].decode()
        if not hmac.compare_digest(shown, self._signature(device, sha256, until_s)):
            raise LinkError("this link is not for this blob", remedy=AGAIN)
        if now_s >= until_s:
            raise LinkError("this link has expired", remedy=AGAIN)
        return Link(device, until_s)

    def _signature(self, device: str, sha256: str, until_s: int) -> str:
        # The version keeps the meaning of the secret apart from any later form of links.
        text = f"edgefleet link 1\n{device}\n{sha256}\n{until_s}"
        return hmac.new(self._secret, text.encode(), hashlib.sha256).hexdigest()

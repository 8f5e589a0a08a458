"""What an API token looks like. Pure.

A token is `eft_`, 32 random bytes and a checksum, both in base64url. The prefix and the checksum
let a scanner of secrets find it, and refuse what only looks like one: the pattern is
`eft_[A-Za-z0-9_-]{49}`.

Rules:
- What is kept of a token is its SHA-256. It has 256 random bits, so nobody finds it by trying: a
  slow hash, which protects passwords that people choose, would only make each request slow.
- A token is looked up by that digest. How long the look-up takes says something about a digest that
  the caller knows already, and nothing about the tokens that there are.
"""

from __future__ import annotations

import base64
import re
import zlib
from typing import Final

from wire.codec import sha256_hex

PREFIX: Final = "eft_"
SECRET_BYTES: Final = 32
_SECRET_CHARS: Final = 43
_CHECKSUM_CHARS: Final = 6
TOKEN_CHARS: Final = len(PREFIX) + _SECRET_CHARS + _CHECKSUM_CHARS
_ANYWHERE: Final = re.compile(f"{PREFIX}[A-Za-z0-9_-]{{{TOKEN_CHARS - len(PREFIX)}}}")


def token_of(secret: bytes) -> str:
    """Return the token of a secret.

    Args:
        secret: 32 random bytes.

    Returns:
        The token, as its holder shows it.

    Raises:
        ValueError: The secret has another length.
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, not {len(secret)}")
    body = PREFIX + _base64url(secret)
    return body + _checksum(body)


def is_token(text: str) -> bool:
    """Tell whether a text has the form and the checksum of a token; it may be known to nobody."""
    if len(text) != TOKEN_CHARS or not text.startswith(PREFIX) or not text.isascii():
        return False
    return _checksum(text[:-_CHECKSUM_CHARS]) == text[-_CHECKSUM_CHARS:]


def digest_of(token: str) -> str:
    """Return what is kept of a token."""
    return sha256_hex(token.encode())


def without_tokens(text: str) -> str:
    """Return a text in which no API token stands that somebody put there by mistake."""
    return _ANYWHERE.sub(f"{PREFIX}...", text)


def _checksum(body: str) -> str:
    return _base64url(zlib.crc32(body.encode()).to_bytes(4, "big"))


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")

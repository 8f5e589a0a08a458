"""The broker account through which an unknown device enrols; a token gives access to it.

Rules:
- The account may only send a request to enrol and receive the answer. The controller makes the
  account together with the token, and removes it when the token is used up or has expired.
"""

from __future__ import annotations

from wire.codec import sha256_hex


def enrol_username(token: str) -> str:
    """Return the MQTT user name that belongs to a token; the password is the token itself."""
    return f"enrol-{sha256_hex(token.encode())[:8]}"

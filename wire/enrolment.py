"""How an unknown device gets in: the broker account that an enrolment token opens.

Rules:
- The account may only ask to be enrolled and hear the answer; the controller makes it with the
  token and removes it when the token is used up or has expired.
"""

from __future__ import annotations

from wire.codec import sha256_hex


def enrol_username(token: str) -> str:
    """Return the MQTT user name that belongs to a token; the password is the token itself."""
    return f"enrol-{sha256_hex(token.encode())[:8]}"

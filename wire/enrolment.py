"""The broker accounts through which a device enrols, and the form of its client identifier.

Rules:
- An enrolment account may only send a request to enrol and receive the answer. The controller makes
  one for each token, and removes it when the token is used up or has expired.
- One more is for devices that are enrolled already and lost their own account. Its password follows
  from the director's public key or the name of the fleet: it keeps out those who know nothing of
  the fleet, and gives no right to the others. The controller admits a device there only by its
  own key, which it proves over a fresh challenge: a recorded request admits nobody.
- A device's client identifier cannot be guessed: a second connection with the same identifier would
  end the device's own.
"""

from __future__ import annotations

import re
from typing import Final

from wire.codec import sha256_hex, to_json

CLIENT_SECRET: Final = re.compile(r"[0-9a-f]{32}")


def enrol_username(token: str) -> str:
    """Return the MQTT user name that belongs to a token; the password is the token itself."""
    return f"enrol-{sha256_hex(token.encode())[:8]}"


def return_password(fleet_name: str) -> str:
    """Return the password of the account for enrolled devices that lost their own.

    Args:
        fleet_name: A public key of the `director` role in base64, as the trust file has it; where
            the device has a root of trusted metadata, the name of the fleet in it.

    Returns:
        The password; its user name follows from it as from a token, by `enrol_username`.
    """
    return sha256_hex(f"edgefleet-enrol-again-v1\n{fleet_name}".encode())


def enrol_proof(device: str, token: str, password: str) -> bytes:
    """Return the bytes that an enrolling device signs with its own key."""
    return f"edgefleet-enrol-v1\n{device}\n{token}\n{password}".encode()


def challenged_proof(
    *, device: str, token: str, password: str, client_id: str, nonce: str, challenge: str
) -> bytes:
    """Return the bytes that a device signs which answers a challenge.

    Args:
        device: Its identifier.
        token: The token of the request, or empty.
        password: The password of the account for which it asks.
        client_id: The client identifier of that account.
        nonce: That of the request.
        challenge: What the controller gave it to sign.

    Returns:
        The bytes: all of it, unambiguous.
    """
    parts = [device, token, password, client_id, nonce, challenge]
    return b"edgefleet-enrol-v2\n" + to_json(parts)


def csr_proof(*, device: str, nonce: str, challenge: str, csr: str) -> bytes:
    """Return the bytes that a device signs so that a request for a certificate is its own.

    Args:
        device: Its identifier.
        nonce: That of the request to enrol; empty where a certificate is renewed.
        challenge: What the controller gave it to sign, or empty.
        csr: The certificate signing request, PEM.

    Returns:
        The bytes: all of it, unambiguous.
    """
    return b"edgefleet-enrol-csr-v1\n" + to_json([device, nonce, challenge, csr])


def client_id(device: str, secret: str) -> str:
    """Return the client identifier of a device.

    Args:
        device: Its identifier, which has no colon.
        secret: 32 hexadecimal digits that only the device and its controller know.

    Returns:
        The client identifier.
    """
    return f"{device}:{secret}"


def is_client_id_of(device: str, identifier: str) -> bool:
    """Tell whether a client identifier has the form of a device's, and of no other device's."""
    name, _, secret = identifier.partition(":")
    return name == device and CLIENT_SECRET.fullmatch(secret) is not None

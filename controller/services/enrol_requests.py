"""Checks a request to enrol before anything is looked up for it.

Rules:
- A request is for the device that its topic names, and shows that the sender holds the key in it.
- Every size is bounded.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Final

import msgspec

from controller.domain.acceptance import MAX_SERIAL_CHARS, is_serial
from controller.domain.selectors import checked_labels
from controller.errors import EnrolmentError
from wire.enrolling import EnrolRequest
from wire.enrolment import challenged_proof, enrol_proof, is_client_id_of
from wire.profile import checked_profile
from wire.trust.envelope import is_valid

MIN_PASSWORD_CHARS: Final = 16
MAX_PASSWORD_CHARS: Final = 256
MAX_TOKEN_CHARS: Final = 256
NEW_TOKEN: Final = "make another with `fleet token create`"  # noqa: S105 - a text
UNKNOWN_TOKEN: Final = f"the token is wrong, expired, used up or revoked; {NEW_TOKEN}"
_RESERVED: Final = re.compile(r"enrol-[0-9a-f]{8}")
"""User names of enrolment accounts; see `wire.enrolment`."""


def check_request(device: str, request: EnrolRequest) -> None:
    """Refuse an invalid request before the database is queried.

    Args:
        device: The device's identifier, from the topic.
        request: The device's request.

    Raises:
        EnrolmentError: Another device, a reserved name, sizes out of bounds, or no proof.
        WireFormatError: An impossible profile.
    """
    checked_profile(request.profile)
    faults = [
        (request.device != device, "the request is for another device"),
        (_RESERVED.fullmatch(device) is not None, "that identifier is reserved"),
        (
            not MIN_PASSWORD_CHARS <= len(request.password) <= MAX_PASSWORD_CHARS,
            f"a password has {MIN_PASSWORD_CHARS} to {MAX_PASSWORD_CHARS} characters",
        ),
        (len(request.token) > MAX_TOKEN_CHARS, UNKNOWN_TOKEN),
        (
            not _has_own_client_id(device, request),
            "the client identifier is not that of the device",
        ),
        (
            isinstance(request.serial, str) and not is_serial(request.serial),
            f"its serial number is not 1 to {MAX_SERIAL_CHARS} of A-Z a-z 0-9 . _ : / -",
        ),
        (not _is_proven(device, request), "the proof of possession is not valid"),
    ]
    for wrong, text in faults:
        if wrong:
            raise EnrolmentError(text)
    checked_labels(request.labels, kept=request.labels)


def account_client_id(request: EnrolRequest) -> str:
    """Return the client identifier of the account for which a device asks."""
    own = request.client_id
    return request.device if isinstance(own, msgspec.UnsetType) else own


def _has_own_client_id(device: str, request: EnrolRequest) -> bool:
    own = account_client_id(request)
    return own == device or is_client_id_of(device, own)


def _is_proven(device: str, request: EnrolRequest) -> bool:
    try:
        key = base64.b64decode(request.public_key, validate=True)
        signature = base64.b64decode(request.signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    # Base64 can spell the same bytes in several ways, but stored keys are compared as text.
    canonical = base64.b64encode(key).decode() == request.public_key
    return canonical and is_valid(key, _proof(device, request), signature)


def _proof(device: str, request: EnrolRequest) -> bytes:
    """Return the bytes that the device must have signed."""
    if isinstance(request.challenge, msgspec.UnsetType):
        return enrol_proof(device, request.token, request.password)
    return challenged_proof(
        device=device,
        token=request.token,
        password=request.password,
        client_id=account_client_id(request),
        nonce="" if isinstance(request.nonce, msgspec.UnsetType) else request.nonce,
        challenge=request.challenge,
    )

"""How a device gets its next certificate, over the connection that the present one opened.

Rules:
- Only that device may publish on the topic of the request: the broker sees to that.
- The director signs the answer (`wire.trust.envelope`), for one device and one request.
- A refused request gets no answer: a device that is shut out hears nothing.
"""

from __future__ import annotations

from typing import Final

import msgspec

from wire.messages import Message

CERTIFICATE_PAYLOAD_TYPE: Final = "application/vnd.edgefleet.certificate+json"


class DeviceCertificate(msgspec.Struct, frozen=True, kw_only=True):
    """A certificate with which a device connects to the broker, and where."""

    pem: str
    port: int
    """Where the broker listens for devices with certificates; the host is the same."""

    begins_at_s: float
    """Wall time at the controller when it was made, seconds since 1970."""

    ends_at_s: float


class CertificateRequest(Message, frozen=True, kw_only=True):
    """A device asks for its next certificate."""

    device: str
    csr: str
    """A certificate signing request, PEM."""

    signature: str
    """Base64 of what the device's own key signs of it: `wire.enrolment.csr_proof`, without a nonce.
    So who has stolen a certificate with its key does not renew it."""


class CertificateAnswer(Message, frozen=True, kw_only=True):
    """What the director signs in answer to such a request."""

    device: str
    csr_sha256: str
    """SHA-256 of the text of the request."""

    certificate: DeviceCertificate

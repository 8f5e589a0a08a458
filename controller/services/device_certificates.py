"""Certificates with which devices connect to the broker: the first with an enrolment, then renewed.

Rules:
- Only a device that is enrolled gets one: its state is read in the transaction that notes until
  when it may hold one, before anything is signed.
- A device asks for the next one over a connection that the present one opened, so the broker says
  who asks. A device that is shut out gets no answer.
- An identifier that goes to a device with another key has to wait until the certificate of the
  device before has ended, unless the operator says that nobody has that device's key any more.
"""

from __future__ import annotations

import base64
import binascii
import logging

import msgspec

from controller.broker.device_authority import DeviceAuthority, check_csr
from controller.errors import EnrolmentError
from controller.services.director import Publisher
from controller.services.own_messages import own_message
from controller.store import certificates
from controller.store.database import Database
from controller.store.device_tables import DeviceRow
from wire import topics
from wire.certificates import (
    CERTIFICATE_PAYLOAD_TYPE,
    CertificateAnswer,
    CertificateRequest,
    DeviceCertificate,
)
from wire.clock import Clock
from wire.codec import sha256_hex, to_json
from wire.enrolling import EnrolRequest
from wire.enrolment import csr_proof
from wire.trust.envelope import SigningKey, is_valid, seal

NEEDS_CERTIFICATE = (
    "this fleet lets devices in by certificates, and the device asked for none: update its agent, "
    "or install openssl there"
)
NOT_OWN = "the device's own key did not sign the request for a certificate"
STILL_VALID = (
    "the device that had this identifier holds a certificate that is still valid for {hours:.0f} "
    "hours; wait, or give this one another name; or, if nobody has that key any more: "
    "`fleet device readmit --key-is-gone`"
)
_log = logging.getLogger(__name__)


class DeviceCertificates:
    """Gives devices certificates.

    Args:
        authority: Signs them; None in a fleet whose devices have passwords alone.
        database: The control state.
        publisher: Sends the answers.
        key: The director's private key, which signs the answers.
        clock: Wall time.
        accept_passwords: Whether devices are let in that ask for no certificate.
    """

    def __init__(
        self,
        authority: DeviceAuthority | None,
        database: Database,
        publisher: Publisher,
        key: SigningKey,
        clock: Clock,
        *,
        accept_passwords: bool,
    ) -> None:
        self._authority = authority
        self._database = database
        self._publisher = publisher
        self._key = key
        self._clock = clock
        self._accept_passwords = accept_passwords

    def asked(self, request: EnrolRequest) -> str | None:
        """Return the certificate signing request of a device that enrols, checked.

        Args:
            request: Its request, whose key and challenge are checked apart.

        Returns:
            The request for a certificate, PEM; None for a device that gets a password.

        Raises:
            EnrolmentError: It asks for no certificate and must, or its request cannot be used.
        """
        if self._authority is None:
            return None
        if isinstance(request.csr, msgspec.UnsetType):
            if self._accept_passwords:
                return None
            raise EnrolmentError(NEEDS_CERTIFICATE)
        check_csr(request.csr)
        if not _is_own(request, request.csr):
            raise EnrolmentError(NOT_OWN)
        return request.csr

    def check_free(self, row: DeviceRow | None, public_key: str) -> None:
        """Check that no other device can show a certificate with an identifier.

        Args:
            row: The device that has the identifier, or had it; None for a new one.
            public_key: Key of the device that is to get it.

        Raises:
            EnrolmentError: A device with another key holds one.
        """
        now_s = self._clock.now_s()
        if row is None or row.public_key == public_key:
            return
        if row.certificate_ends_at_s is not None and certificates.is_held(row, now_s=now_s):
            hours = (row.certificate_ends_at_s - now_s) / 3600.0
            raise EnrolmentError(STILL_VALID.format(hours=hours + 0.5))

    def issue(self, device: str, csr: str) -> DeviceCertificate | None:
        """Sign a certificate for a device that is enrolled.

        Args:
            device: Its identifier.
            csr: Its certificate signing request, PEM.

        Returns:
            The certificate; None if it is not enrolled.

        Raises:
            EnrolmentError: The request cannot be used.
            DatabaseError: The database does not answer.
        """
        if self._authority is None:
            return None
        signed = self._authority.sign(device, csr)
        with self._database.transaction() as transaction:
            if not certificates.note_issued(transaction, device, ends_at_s=signed.ends_at_s):
                return None
        return signed

    def renew(self, device: str, payload: bytes) -> None:
        """Answer a device that asks for its next certificate.

        Args:
            device: Its identifier, from the topic.
            payload: Its request, as received.

        Raises:
            WireFormatError: It is malformed, or for another device.
            EnrolmentError: The request cannot be used.
            DatabaseError: The database does not answer; the device asks again.
        """
        request = own_message(payload, CertificateRequest, device)
        with self._database.reading() as transaction:
            key = certificates.enrolled_key(transaction, device)
        # Nobody else makes the authority sign.
        signed = None
        if key is not None:
            proof = csr_proof(device=device, nonce="", challenge="", csr=request.csr)
            if not _has_signed(key, proof, request.signature):
                raise EnrolmentError(NOT_OWN)
            signed = self.issue(device, request.csr)
        if signed is None:
            _log.warning("device %s gets no certificate: it is not enrolled", device)
            return
        answer = CertificateAnswer(
            device=device, csr_sha256=sha256_hex(request.csr.encode()), certificate=signed
        )
        sealed = seal(to_json(answer), payload_type=CERTIFICATE_PAYLOAD_TYPE, keys=(self._key,))
        self._publisher.publish(topics.down(device, "certificate"), sealed)
        _log.info("device %s has its next certificate", device)


def _is_own(request: EnrolRequest, csr: str) -> bool:
    """Tell whether the device's own key signed its request for a certificate."""
    if isinstance(request.csr_signature, msgspec.UnsetType):
        return False
    proof = csr_proof(
        device=request.device,
        nonce="" if isinstance(request.nonce, msgspec.UnsetType) else request.nonce,
        challenge="" if isinstance(request.challenge, msgspec.UnsetType) else request.challenge,
        csr=csr,
    )
    return _has_signed(request.public_key, proof, request.csr_signature)


def _has_signed(public_key: str, proof: bytes, signature: str) -> bool:
    """Tell whether a key, in base64, made a signature, in base64."""
    try:
        raw = base64.b64decode(signature, validate=True)
    except (binascii.Error, ValueError):
        return False
    return is_valid(base64.b64decode(public_key), proof, raw)

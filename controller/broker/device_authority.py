"""Signs the certificates with which devices connect to the broker. The door to X.509.

Rules:
- The authority is the controller's own, apart from the one that signs the broker's certificate:
  who takes over the controller can pass for devices, but not for another broker.
- A certificate says one thing: the name of the device, as the controller knows it. Whatever else
  stands in a request is not looked at.
- A request is signed by the key that it names, or it is refused.
"""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controller.certificate_settings import DeviceCertificatesConfig
from controller.errors import EnrolmentError, SettingsError
from controller.named_files import read_small
from wire.certificates import DeviceCertificate
from wire.clock import Clock
from wire.topics import checked_device

MAX_CSR_CHARS: Final = 8192
"""One of an RSA key of 4,096 bits has 1,600."""

MIN_RSA_BITS: Final = 2048
MAX_RSA_BITS: Final = 4096
CURVES: Final = frozenset({"secp256r1", "secp384r1"})
BACKDATED_S: Final = 300.0
"""The broker's clock may be behind the controller's."""

AUTHORITY: Final = "the devices' authority"
AUTHORITY_KEY: Final = "the key of the devices' authority"
REMEDY: Final = "bring both files back, or make new ones: fleet broker devices-authority DIR"


class DeviceAuthority:
    """Signs certificates for devices.

    Args:
        config: Which files, and how long a certificate is valid.
        clock: Wall time.

    Raises:
        SettingsError: The files cannot be read, or do not belong together.
    """

    def __init__(self, config: DeviceCertificatesConfig, clock: Clock) -> None:
        self._config = config
        self._clock = clock
        ca_file, key_file = Path(config.ca_file), Path(config.key_file)
        try:
            certificate = x509.load_pem_x509_certificate(read_small(ca_file, AUTHORITY))
            key = serialization.load_pem_private_key(read_small(key_file, AUTHORITY_KEY), None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as exc:
            raise SettingsError(
                f"{ca_file} and {key_file} are not a certificate and its key in PEM form",
                remedy=REMEDY,
            ) from exc
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise SettingsError(f"{key_file} is not the key of an elliptic curve", remedy=REMEDY)
        if key.public_key() != certificate.public_key():
            raise SettingsError(f"{key_file} is not the key of {ca_file}", remedy=REMEDY)
        self._key = key
        self._name = certificate.subject
        self._key_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())

    def sign(self, device: str, csr: str) -> DeviceCertificate:
        """Sign a certificate for a device.

        Args:
            device: Its identifier, which the caller has proven.
            csr: Its certificate signing request, PEM.

        Returns:
            The certificate, which begins now.

        Raises:
            EnrolmentError: The request cannot be used.
        """
        request = check_csr(csr)
        begins_at_s = self._clock.now_s()
        ends_at_s = begins_at_s + self._config.valid_s
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, checked_device(device))])
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(self._name)
            .public_key(request.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(_at(begins_at_s - BACKDATED_S))
            .not_valid_after(_at(ends_at_s))
        )
        for extension, is_critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_only_signs(), True),
            (x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), False),
            (self._key_id, False),
        ):
            builder = builder.add_extension(extension, critical=is_critical)
        signed = builder.sign(self._key, hashes.SHA256())
        return DeviceCertificate(
            pem=signed.public_bytes(serialization.Encoding.PEM).decode(),
            port=self._config.port,
            begins_at_s=begins_at_s,
            ends_at_s=ends_at_s,
        )


def check_csr(csr: str) -> x509.CertificateSigningRequest:
    """Check a certificate signing request.

    Args:
        csr: PEM, from anybody.

    Returns:
        The request, which the key in it has signed.

    Raises:
        EnrolmentError: It is malformed or too long, its key is of another kind, or did not sign it.
    """
    if len(csr) > MAX_CSR_CHARS:
        raise EnrolmentError(f"the request for a certificate has over {MAX_CSR_CHARS} characters")
    try:
        request = x509.load_pem_x509_csr(csr.encode())
        key, is_signed = request.public_key(), request.is_signature_valid
    except (ValueError, TypeError, UnsupportedAlgorithm, InvalidSignature) as exc:
        raise EnrolmentError("the request for a certificate cannot be read") from exc
    if not _is_usable(key):
        raise EnrolmentError(
            "the key for the certificate must be on the curve P-256 or P-384, or RSA with "
            f"{MIN_RSA_BITS} to {MAX_RSA_BITS} bits"
        )
    if not is_signed:
        raise EnrolmentError("the request for a certificate is not signed by the key in it")
    return request


def _is_usable(key: object) -> bool:
    if isinstance(key, rsa.RSAPublicKey):
        return MIN_RSA_BITS <= key.key_size <= MAX_RSA_BITS
    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES


def _only_signs() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=False, crl_sign=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _at(time_s: float) -> dt.datetime:
    return dt.datetime.fromtimestamp(time_s, dt.UTC)
